"""A cascade on one stream, in host memory: its answers, its waits, what goes through networks together, isolation."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import detectors
import numpy as np
import onnx
import pytest
import yaml
from builds import build
from detected_cells import assert_same, by_the_reference, drawn
from host_gpu import HostDevice, HostFreeSession, HostNvimgcodec, HostStream
from networks import mean_color
from PIL import Image, ImageDraw, ImageFont
from shared_server import READ

from onestream.postprocess.kinds import Opening, Tensors
from onestream.postprocess.kinds.text import Text
from onestream.postprocess.labels import read_labels
from onestream.preprocess import BadImage, CannotCompile, Limits
from onestream.preprocess.backends import batches, nvimgcodec
from onestream.serving.built.triton_config import from_text
from onestream.serving.cascade import SERVED_STAGES, ServedStage
from onestream.serving.engine import FreeSession
from onestream.serving.errors import NetworkFailed
from onestream.serving.models import cascade_stream
from onestream.serving.models.cascade_stream import CascadeStream
from onestream.serving.models.deadline import ANYBODY, Caller, NobodyWaits
from onestream.serving.models.stages import OpenStage
from onestream.serving.pipeline import GpuOptions

SCALED = {"op": "normalize", "scale": 255, "mean": [0, 0, 0], "std": [1, 1, 1]}
BATCH = 5
STAGES = ("find", "name", "wide")


def exact(side: int) -> dict[str, Any]:
    return {"op": "resize", "mode": "exact", "size": [side, side]}


def classify(*operations: dict[str, Any], **region: Any) -> dict[str, Any]:
    return {
        "preprocess": {"operations": [{"op": "region", "of": "find"} | region, *operations, SCALED]},
        "postprocess": {"kind": "classification", "top_k": 1, "labels": list("abcdefg")},
    }


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """*find* gives boxes, *name* cuts them, *wide* turns and rectifies them, to a width that follows from each."""
    folder = tmp_path_factory.mktemp("cascade")
    stages = {
        "find": {
            "preprocess": {"operations": [{"op": "decode"}, exact(detectors.SIDE), SCALED]},
            "postprocess": {"kind": "detection", "family": "yolo", "score_threshold": 0.5, "max_detections": 100},
        },
        "name": classify(exact(32), margin=0.3),
        "wide": classify(
            {"op": "resize", "mode": "height", "size": [16, 400], "rounding": "up"},
            {"op": "pad", "size": [16, 16], "multiple_of": [0, 8], "align": "top_left", "value": 7},
            shape="quad",
            color="bgr",
            upright=1.1,
        ),
    }
    described = {"stages": stages, "serving": {"gpu": {"engine": "onnxruntime", "max_batch_size": BATCH}}}
    (folder / "things.yaml").write_text(yaml.safe_dump(described, sort_keys=False))
    networks = {name: folder / f"{name}.onnx" for name in stages}
    detectors.level_detector(networks["find"])
    onnx.save(mean_color(), networks["name"])
    onnx.save(mean_color(("batch", 3, "height", "width")), networks["wide"])
    build(folder / "things.yaml", folder=folder / "repository", onnx_files=networks)
    return folder / "repository" / "things_fused"


@pytest.fixture(autouse=True)
def decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvimgcodec, "nvimgcodec", HostNvimgcodec())


def served(model: Path) -> tuple[ServedStage, ...]:
    config = from_text((model / "config.pbtxt").read_text())
    return SERVED_STAGES.validate_json(config.parameters["stages"].string_value)


def stages_of(model: Path) -> list[OpenStage]:
    found = []
    for one in served(model):
        labels = model / "stages" / one.name / "labels.txt"
        names = read_labels(labels, spaces=isinstance(one.postprocess, Text)) if labels.exists() else None
        found.append(OpenStage.of(one, one.postprocess.open(Opening(one.definition, labels=names))))
    return found


class Gone(Caller):
    """Has left."""

    def is_waiting(self) -> bool:
        return False


class Opened:
    """A cascade on a stream of host memory; ``sessions`` are the networks by their stages, ``steps`` what was told."""

    def __init__(self, model: Path, **options: Any) -> None:
        self.device, self.sessions, self.steps = HostDevice(), {}, []
        self._model, self._session = model, options.pop("session", HostFreeSession)
        self.stream = CascadeStream(
            stages_of(model),
            self._open,
            Limits(),
            device=self.device,
            options=GpuOptions(engine="onnxruntime", max_batch_size=BATCH),
            told=lambda step, _milliseconds: self.steps.append(step),
            **options,
        )

    def _open(self, stage: OpenStage, stream: HostStream) -> FreeSession:
        opened = self._session((self._model / "1" / f"{stage.name}.onnx").read_bytes(), stream)
        self.sessions[stage.name] = opened
        return opened

    def run(self, images: Sequence[bytes], callers: Sequence[Caller] = ()) -> list[Any]:
        return self.stream.run(images, callers or [ANYBODY] * len(images))


def on_the_cpu(model: Path, picture: np.ndarray) -> Tensors:
    networks = {one.name: model / "1" / f"{one.name}.onnx" for one in served(model)}
    return by_the_reference(stages_of(model), networks, picture)


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


PICTURES = [drawn((90, 130), 1), drawn((64, 64), 2), drawn((200, 77), 3, share=0), drawn((130, 90), 4)]
PICTURES.append(drawn((64, 64), 5, share=0.5))


def check_batches(opened: Opened, regions: int) -> None:
    """Regions of all pictures go through a network together, by their sizes."""
    opened.run([png(picture) for picture in PICTURES])
    assert opened.sessions["find"].batches == [(5, detectors.SIDE, detectors.SIDE, 3)]
    full, rest = divmod(regions, BATCH)
    assert [batch[0] for batch in opened.sessions["name"].batches] == [BATCH] * full + [rest] * bool(rest)
    widths = opened.sessions["wide"].batches
    assert sum(batch[0] for batch in widths) == regions
    assert len({batch[1:] for batch in widths}) > 1
    assert max(batch[0] for batch in widths) > 1
    each = [f"{stage}_{step}" for stage in STAGES for step in ("preprocess", "network", "read")]
    assert opened.steps == ["decode", *each]


def test_answers_are_those_of_the_same_stages_on_the_cpu_after_a_wait_for_each(model: Path) -> None:
    opened = Opened(model)
    expected = [on_the_cpu(model, picture) for picture in PICTURES]
    assert [one["boxes"].shape[1] > 0 for one in expected] == [True, True, False, True, True]
    check_batches(opened, sum(one["boxes"].shape[1] for one in expected))
    for _ in range(2):
        before = opened.device.syncs
        answers = opened.run([png(picture) for picture in PICTURES])
        assert opened.device.syncs - before == len(STAGES)
        for answer, one in zip(answers, expected, strict=True):
            assert_same(answer, one)
        kept = {name: value.copy() for name, value in answers[0].items()}
        opened.run([png(PICTURES[3])])
        # An answer is the caller's: nothing of it is in memory that the next batch uses.
        assert_same(answers[0], kept)


def test_bad_pictures_and_callers_who_left_hurt_nobody(model: Path) -> None:
    opened = Opened(model)
    good = png(PICTURES[0])
    images = [good, b"text", png(PICTURES[3])[:-60], png(PICTURES[4]), good]
    answers = opened.run(images, [ANYBODY] * 3 + [Gone(), ANYBODY])
    assert [type(answer) for answer in answers] == [dict, BadImage, BadImage, NobodyWaits, dict]
    assert [answers[1].code, answers[2].code] == ["unsupported_format", "corrupt"]
    for at in (0, 4):
        assert_same(answers[at], on_the_cpu(model, PICTURES[0]))
    before = opened.device.syncs
    assert [type(answer) for answer in opened.run([b"", b"text"])] == [BadImage, BadImage]
    assert opened.device.syncs == before
    (answer,) = opened.run([png(PICTURES[2])])
    assert answer["boxes"].shape == (1, 0, 4)
    assert opened.device.syncs - before == 1, "without regions it waits once"
    options = GpuOptions(engine="onnxruntime", decode="cpu")
    with pytest.raises(CannotCompile, match="expected decode gpu or hybrid, got cpu"):
        CascadeStream(stages_of(model), lambda *_: None, Limits(), device=HostDevice(), options=options)


def test_a_network_that_fails_for_one_size_fails_the_pictures_with_it(model: Path) -> None:
    class Failing(HostFreeSession):
        """Takes no pixels wider than 24, as one for which there is no memory."""

        def enqueue(self, pixels: Any) -> Any:
            if pixels.shape[1] == 16 and pixels.shape[2] > 24:
                raise RuntimeError("not enough memory")
            return super().enqueue(pixels)

    square, oblong = drawn((64, 64), 6), drawn((64, 128), 7)
    opened = Opened(model, session=Failing)
    answers = opened.run([png(square), png(oblong)])
    assert_same(answers[0], on_the_cpu(model, square))
    assert isinstance(answers[1], NetworkFailed)
    assert "stage wide" in str(answers[1])


def test_pictures_that_do_not_fit_together_follow_each_other(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def small(planned: Any, *, max_items: int) -> Any:
        return batches.groups(planned, max_items=max_items, max_pixels=12_000)

    monkeypatch.setattr(cascade_stream, "groups", small)
    opened = Opened(model)
    answers = opened.run([png(picture) for picture in PICTURES])
    for answer, picture in zip(answers, PICTURES, strict=True):
        assert_same(answer, on_the_cpu(model, picture))
    # 90x130 is a group, 64x64 the next; 200x77, 130x90 and 64x64 are three more.
    assert [batch[0] for batch in opened.sessions["find"].batches] == [1, 1, 1, 1, 1]


def test_the_host_s_own_steps_and_the_regions_are_counted(model: Path) -> None:
    timed, regions = [], []

    @contextmanager
    def step(name: str) -> Any:
        timed.append(name)
        yield

    opened = Opened(model, timed=step, looked_at=lambda stage, quads: regions.append((stage, len(quads))))
    answers = opened.run([png(PICTURES[0]), png(PICTURES[2])])
    found = answers[0]["boxes"].shape[1]
    assert timed == [f"{stage}_postprocess" for stage in STAGES]
    assert regions == [("name", found), ("name", 0), ("wide", found), ("wide", 0)]


@pytest.mark.slow
def test_text_is_read_as_on_the_cpu_with_three_waits(tmp_path: Path) -> None:
    """The networks of ``read``: pictures, lines and outputs of any size; lines of one width go together."""
    READ.write(tmp_path)
    read = build(tmp_path / "read.yaml", folder=tmp_path / "repository").folder / "read_fused"
    pages = [page("Hello GPU", "Hello 12"), page("upside down").rotate(180), page("a line of text", "short")]
    opened = Opened(read)
    answers = opened.run([png(np.asarray(one)) for one in pages])
    assert opened.device.syncs == 3
    assert any(batch[0] > 1 for batch in opened.sessions["turn"].batches)
    for answer, one in zip(answers, pages, strict=True):
        expected = on_the_cpu(read, np.asarray(one))
        assert_same(answer, expected)
    assert [text.decode() for text in answers[1]["texts"][0]] == ["upside down"]


def page(*lines: str) -> Image.Image:
    """Lines of text, drawn black on white."""
    drawn_on = Image.new("RGB", (420, 40 + 70 * len(lines)), "white")
    for row, line in enumerate(lines):
        ImageDraw.Draw(drawn_on).text((30, 25 + 70 * row), line, "black", ImageFont.load_default(40))
    return drawn_on
