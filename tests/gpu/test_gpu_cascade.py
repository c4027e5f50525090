"""A cascade on one stream: its answers, our waits, one for each stage, those of others by name, and memory."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import detectors
import gpu_engines
import numpy as np
import onnx
import pytest
from detected_cells import assert_same, by_the_reference, drawn
from gpu_files import encoded
from networks import mean_color
from PIL import Image
from test_gpu_memory import assert_flat, free_mib

from onestream.preprocess import BadImage, Decode, Definition, Limits, Normalize, Pad, Region, Resize
from onestream.preprocess.cuda.device import Device, Stream
from onestream.serving.engine import EngineTensor, FreeSession, open_free_session
from onestream.serving.graph import onnx_graph
from onestream.serving.models.cascade_stream import CascadeStream
from onestream.serving.models.deadline import ANYBODY
from onestream.serving.models.stages import OpenStage
from onestream.serving.pipeline import GpuOptions

pytestmark = pytest.mark.needs_engine("onnxruntime")

BATCHES = 200
OPTIONS = GpuOptions(engine="onnxruntime", max_batch_size=8)
SCALED = Normalize(scale=255, mean=(0, 0, 0), std=(1, 1, 1))
SIDE = detectors.SIDE
FIND = Definition(operations=[Decode(), Resize(mode="exact", size=(SIDE, SIDE)), SCALED])
NAME = Definition(operations=[Region(of="find", margin=0.2), Resize(mode="exact", size=(32, 32)), SCALED])
WIDE = Definition(
    operations=[
        Region(of="find", shape="quad", color="bgr", upright=1.1),
        Resize(mode="height", size=(16, 400), rounding="up"),
        Pad(size=(16, 16), multiple_of=(0, 8), align="top_left", value=7),
        SCALED,
    ]
)
FOUND = (EngineTensor("boxes", "float32", (-1, 4)), EngineTensor("image_size", "int32", (2,)))
NAMED = (EngineTensor("scores", "float32", (7,)),)


def found(outputs: Any, sizes: Sequence[Any], _parameters: Sequence[Any] = ()) -> list[Any]:
    """The cells that are red, as boxes in pixels of the picture."""
    columns = outputs["output0"][0].T
    x, y, width, height = columns[columns[:, 4] > 0.5, :4].T
    boxes = np.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], axis=1) / SIDE
    (size,) = sizes
    return [{"boxes": (boxes * [*size[::-1], *size[::-1]]).astype(np.float32)[None], "image_size": np.array([size])}]


def named(outputs: Any, _sizes: Sequence[Any], _parameters: Sequence[Any] = ()) -> list[Any]:
    return [{"scores": outputs["scores_out"]}]


STAGES = (
    OpenStage("find", FIND, found, FOUND, gpu_batch=8),
    OpenStage("name", NAME, named, NAMED, gpu_batch=8),
    OpenStage("wide", WIDE, named, NAMED, gpu_batch=8),
)


@cache
def networks() -> dict[str, bytes]:
    """The served networks by their stages."""
    with TemporaryDirectory() as folder:
        detectors.level_detector(Path(folder) / "find.onnx")
        found = onnx.load(str(Path(folder) / "find.onnx"))
    made = {"find": found, "name": mean_color(), "wide": mean_color(("batch", 3, "height", "width"))}
    definitions = {stage.name: stage.definition for stage in STAGES}
    return {name: onnx_graph.prepare(one, definitions[name]).SerializeToString() for name, one in made.items()}


@pytest.fixture(scope="module")
def cascade(device: Device) -> CascadeStream:
    """On a stream of its own, with ONNX Runtime."""

    def open_session(stage: OpenStage, stream: Stream) -> FreeSession:
        session = open_free_session(networks()[stage.name], OPTIONS, stream, definition=stage.definition)
        gpu_engines.ran(session)
        return session

    return CascadeStream(STAGES, open_session, Limits(), device=device, options=OPTIONS)


def run(cascade: CascadeStream, images: Sequence[bytes]) -> list[Any]:
    return cascade.run(images, [ANYBODY] * len(images))


def cells(size_hw: tuple[int, int], seed: int) -> Image.Image:
    """Noise with no, few or many red cells."""
    return Image.fromarray(drawn(size_hw, seed, share=(0, 0.1, 0.4)[seed % 3]))


SIZES = [(90, 130), (64, 64), (200, 77), (480, 640), (401, 333), (64, 64)]


def test_answers_are_those_of_the_cpu_and_bad_pictures_hurt_nobody(cascade: CascadeStream, record: Any) -> None:
    pictures = [cells(size, seed) for seed, size in enumerate(SIZES)]
    expected = [by_the_reference(STAGES, networks(), np.asarray(picture)) for picture in pictures]
    images = [encoded(picture, "PNG") for picture in pictures]
    record("cascade: regions of a batch", sum(one["boxes"].shape[1] for one in expected))
    for _ in range(2):
        for answer, one in zip(run(cascade, images), expected, strict=True):
            # Sums of the network in another order; TF32 is off.
            assert_same(answer, one, most=1e-3)
        mixed = run(cascade, [images[0], b"text", images[3][:-50], images[4]])
        assert [type(one) for one in mixed] == [dict, BadImage, BadImage, dict]
        assert_same(mixed[0], expected[0], most=1e-3)
        assert_same(mixed[3], expected[4], most=1e-3)


def test_our_code_waits_once_for_each_stage_and_works_on_one_stream(
    cascade: CascadeStream, device: Device, tracing: Any, record: Any
) -> None:
    images = [encoded(cells(size, 20 + seed), "JPEG", quality=95) for seed, size in enumerate(SIZES)]
    for _ in range(3):
        run(cascade, images)
    before = device.syncs
    tracing.start()
    answers = run(cascade, images)
    trace = tracing.stop()
    assert all(isinstance(answer, dict) for answer in answers)
    assert device.syncs - before == len(STAGES)
    trace.check(record, "cascade", ours=len(STAGES))


def test_memory_is_flat_over_batches_with_any_regions(cascade: CascadeStream, device: Device, record: Any) -> None:
    chosen = random.Random(3)
    sizes = [(chosen.randrange(64, 700), chosen.randrange(64, 700)) for _ in range(60)]
    pool = [encoded(cells(size, seed), "JPEG", quality=90) for seed, size in enumerate(sizes)]
    free: list[float] = []
    for number in range(BATCHES):
        answers = run(cascade, chosen.sample(pool, chosen.randrange(1, 9)))
        assert all(isinstance(answer, dict) for answer in answers)
        if number % (BATCHES // 20) == 0:
            free.append(free_mib(device))
    assert_flat(free, record, f"cascade: GPU memory over the second half of {BATCHES} batches")
