"""Who reads: a served pipeline of ours, and rapidocr with the same networks and thresholds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.agreement import ask
from benchmarks.photos import PhotosMissing
from onestream.postprocess.same_lines import Line, lines_of
from onestream.serving.networks.ppocr import Network, fetch_network
from onestream.wire.install import install_command

Reader = Callable[[bytes], list[Line]]
"""An encoded picture to the lines that are read on it."""

NETWORKS: Mapping[str, Network] = {"Det": "ppocr-v6-det", "Cls": "ppocr-cls", "Rec": "ppocr-v6-rec"}
"""What finds lines, turns them and reads them, by rapidocr's names for these parts."""
SETTINGS: Mapping[str, str | int | float | bool] = {
    "Global.text_score": 0.5,
    "Global.use_preprocess_img": False,  # which resizes pictures with a side below 30 or above 2000 pixels
    "Global.use_vertical_padding": False,  # which puts black above and below pictures eight times as wide as high
    "Global.log_level": "critical",
    "Det.limit_type": "max",
    "Det.limit_side_len": 960,
    "Det.thresh": 0.3,
    "Det.box_thresh": 0.5,
    "Det.unclip_ratio": 1.6,
    "Det.use_dilation": True,
    "Det.score_mode": "fast",
    "Det.max_candidates": 1000,
    "Cls.cls_thresh": 0.9,
}
"""Those of ``pipelines/read.yaml`` by rapidocr's names; what is not named is as rapidocr brings it."""
LINES_IN_A_BATCH = 6
"""rapidocr's own. Lines of a batch are padded to the widest of them, which ours never are."""


def served(model: str, *, grpc_address: str) -> Reader:
    """What a served text pipeline answers."""
    return lambda picture: lines_of(ask(model, [picture], grpc_address=grpc_address)[0])


def rapid_ocr(*, lines_in_a_batch: int = LINES_IN_A_BATCH, threads: int = 1) -> Reader:
    """The package rapidocr in this process, with the networks that ours runs. ``threads`` are ONNX Runtime's.

    Raises ``PhotosMissing`` naming the command that installs it, and ``WeightsError`` as ``fetch_network`` does.
    """
    try:
        from rapidocr import RapidOCR
    except ImportError as error:
        raise PhotosMissing(f"rapidocr cannot be imported ({error}); run: {install_command('bench')}") from None
    read = RapidOCR(
        params={
            **SETTINGS,
            **{f"{part}.model_path": str(fetch_network(network)) for part, network in NETWORKS.items()},
            "Cls.cls_batch_num": lines_in_a_batch,
            "Rec.rec_batch_num": lines_in_a_batch,
            "EngineConfig.onnxruntime.intra_op_num_threads": threads,
        }
    )
    return lambda picture: rapid_lines(read(picture))


def rapid_lines(output: Any) -> list[Line]:
    """The lines of rapidocr's answer, whose fields are None where it found nothing."""
    if not output.txts:
        return []
    rows = zip(output.boxes, output.txts, output.scores, strict=True)
    return [Line(np.asarray(quad, np.float64), text, float(score)) for quad, text, score in rows]
