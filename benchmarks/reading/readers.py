"""Who reads: a served pipeline of ours, and rapidocr with the same networks and thresholds."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from benchmarks.agreement import ask
from benchmarks.photos import PhotosMissing
from onestream.measure.rapid_ocr import networks_of, open_rapid_ocr, settings_of
from onestream.postprocess.same_lines import Line, lines_of
from onestream.serving.cascade import Cascade
from onestream.wire.install import install_command

Reader = Callable[[bytes], list[Line]]
"""An encoded picture to the lines that are read on it."""

_READ = Cascade.from_file(Path(__file__).parents[2] / "pipelines" / "read.yaml")
NETWORKS = networks_of(_READ)
"""What finds lines, turns them and reads them, by rapidocr's names for these parts."""
SETTINGS = settings_of(_READ)
"""Those of ``pipelines/read.yaml`` by rapidocr's names; what is not named is as rapidocr brings it."""
LINES_IN_A_BATCH = 6
"""rapidocr's own. Lines of a batch are padded to the widest of them, which ours never are."""


def served(model: str, *, grpc_address: str) -> Reader:
    """What a served text pipeline answers."""
    return lambda picture: lines_of(ask(model, [picture], grpc_address=grpc_address)[0])


def rapid_ocr(*, lines_in_a_batch: int = LINES_IN_A_BATCH) -> Reader:
    """The package rapidocr in this process, with the networks that ours runs.

    Raises ``PhotosMissing`` naming the command that installs it, and ``WeightsError`` as ``fetch_network`` does.
    """
    settings = {
        **SETTINGS,
        "Cls.cls_batch_num": lines_in_a_batch,
        "Rec.rec_batch_num": lines_in_a_batch,
        "EngineConfig.onnxruntime.intra_op_num_threads": 1,
    }
    try:
        return open_rapid_ocr(settings, NETWORKS)
    except ImportError as error:
        raise PhotosMissing(f"rapidocr cannot be imported ({error}); run: {install_command(group='bench')}") from None


def on_a_pixel_less(reader: Reader) -> Reader:
    """The same reader on the picture without its first row and column, which hold no text; its lines in the whole one.

    What it reads otherwise then is chance: nobody sees that a pixel is missing.
    """

    def read(picture: bytes) -> list[Line]:
        whole = Image.open(io.BytesIO(picture)).convert("RGB")
        less = io.BytesIO()
        whole.crop((1, 1, whole.width, whole.height)).save(less, "PNG", compress_level=1)
        return [Line(line.quad + 1, line.text, line.score) for line in reader(less.getvalue())]

    return read
