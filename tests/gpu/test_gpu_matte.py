"""Composing and drawing on a GPU: decoded surfaces over backgrounds, with boxes, equal to the CPU's in every bit."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clip_files import write_video
from gpu_frames import a_frame, a_matte, a_surface, blank
from PIL import Image
from test_gpu_memory import assert_flat, free_mib
from test_gpu_video import decoded, packets_of

from onestream.postprocess.detection.drawing import DrawnBoxes
from onestream.postprocess.matte.background import Background, Blur, Color, Picture
from onestream.postprocess.matte.composer import Composer, MatteComposition
from onestream.postprocess.matte.composer_gpu import GpuComposer, prepare_composing
from onestream.postprocess.planes import displayed
from onestream.postprocess.planes_gpu import PlanesTaker
from onestream.preprocess.cuda.device import Device
from onestream.preprocess.video.common.color import ColorRule
from onestream.preprocess.video.common.orientation import Orientation
from onestream.preprocess.video.gpu.surfaces import LAYOUTS
from onestream.preprocess.video.streams.stream import StreamDecoder
from onestream.serving.pipeline import Pipeline
from onestream.serving.stream_options import VideoOutput
from onestream.serving.video.composed import ComposedVideo
from onestream.wire.tensor_names import BOXES, CLASS_IDS, LABELS, MATTE, SCORES, VIDEO

ROOT = Path(__file__).parents[2]
LARGE_HW = (1080, 1920)
MATTE_HW = (144, 256)
TIMES = 30
FOUND = {
    BOXES: np.array([[20.5, 31.2, 90, 120.9], [1, 2, 60, 70]], np.float32),
    SCORES: np.array([0.9, 0.5], np.float32),
    CLASS_IDS: np.array([17, 3], np.int32),
    LABELS: np.array([b"cat", b"car"], object),
}


@pytest.fixture
def backgrounds(photos: dict[str, Image.Image]) -> dict[str, Background]:
    return {"color": Color((0, 177, 64)), "picture": Picture(np.asarray(photos["temple"])), "blur": Blur(28)}


@pytest.fixture(params=["color", "picture", "blur"])
def background(request: pytest.FixtureRequest, backgrounds: dict[str, Background]) -> Background:
    return backgrounds[request.param]


@pytest.mark.parametrize("orientation", [Orientation(), Orientation(True, False, True)], ids=["upright", "turned"])
@pytest.mark.parametrize("key", sorted(LAYOUTS), ids=[LAYOUTS[key].format for key in sorted(LAYOUTS)])
@pytest.mark.parametrize("work", ["color", "picture", "blur", "boxes"])
def test_every_bit_is_that_of_the_cpu(
    work: str, key: Any, orientation: Orientation, backgrounds: dict[str, Background], device: Device
) -> None:
    """Frames composed over a background, and frames with boxes drawn into them."""
    device.enter()
    if work == "boxes":
        boxes = DrawnBoxes(ColorRule(), from_gpu=PlanesTaker(device.stream()))
    else:
        composer = GpuComposer(backgrounds[work], stream=device.stream())
    # Two frames of a size share its buffers; then the size changes.
    for seed, size_hw in enumerate([(271, 481), (271, 481), (144, 256)]):
        frame, matte = a_frame(size_hw, key, seed=seed), a_matte(MATTE_HW, seed)
        shown, surface = displayed(frame, orientation), a_surface(frame, device.stream())
        out, expected = blank(shown), blank(shown)
        if work == "boxes":
            boxes.write(shown, FOUND, expected)
            boxes.write_surface(surface, orientation, FOUND, out)
        else:
            expected = Composer(backgrounds[work]).compose_reference(shown, matte)
            composer.compose(surface, orientation, matte, out)
        for name in "yuv":
            np.testing.assert_array_equal(getattr(out, name), getattr(expected, name), err_msg=name)


def test_how_long_a_frame_takes(background: Background, device: Device, record: Any) -> None:
    """Composed and copied to the host, with every call; the frames before compile and allocate."""
    device.enter()
    prepare_composing(device)
    composer, frame = GpuComposer(background, stream=device.stream()), a_frame(LARGE_HW, seed=1)
    surface, matte, out = a_surface(frame, device.stream()), a_matte(MATTE_HW, 1), blank(frame)
    composer.compose(surface, Orientation(), matte, out)
    waits, began_s = device.syncs, time.perf_counter()
    for _ in range(TIMES):
        composer.compose(surface, Orientation(), matte, out)
    took_ms = 1000 * (time.perf_counter() - began_s) / TIMES
    name = type(background).__name__.lower()
    record(f"matte, {name}: 1080p frame composed and on the host, ms", took_ms)
    assert device.syncs == waits + TIMES


def test_a_decoded_clip_is_composed_and_encoded_as_on_the_cpu(
    background: Background, device: Device, tmp_path: Path, record: Any
) -> None:
    from onestream.preprocess.video.gpu.stream_gpu import GpuStreamDecoder

    definition = Pipeline.from_file(ROOT / "pipelines" / "matte.yaml").preprocess
    path = write_video(tmp_path / "clip.mp4", "libx264", count=24, size_hw=(270, 480), options={"bf": "2", "g": "12"})
    format, packets = packets_of(path)
    device.enter()
    on_gpu = GpuStreamDecoder(definition, format, stream=device.stream(), pictures=True)
    on_cpu = StreamDecoder(definition, format, pictures=True)
    found, expected = (
        [
            video(frame, {MATTE: a_matte((256, 256), frame.index)})[0][VIDEO].tobytes()
            for frame in decoded(decoder, packets)
        ]
        for decoder, video in (
            (on_gpu, composed(background, GpuComposer(background, stream=device.stream()))),
            (on_cpu, composed(background, None)),
        )
    )
    assert on_gpu.on_cpu is None
    assert len(found) == 24
    record("matte: packets of composed H.264 that differ from the CPU's", sum(map(bytes.__ne__, found, expected)), "0")
    assert found == expected


def composed(background: Background, on_gpu: GpuComposer | None) -> ComposedVideo:
    definition = Pipeline.from_file(ROOT / "pipelines" / "matte.yaml").preprocess
    work = MatteComposition(Composer(background, rule=ColorRule()), definition, on_gpu=on_gpu)
    return ComposedVideo(work, VideoOutput(crf=1), fps=25)


def test_memory_is_flat_over_many_videos(device: Device, record: Any) -> None:
    device.enter()
    stream, free = device.stream(), []
    frame = a_frame((540, 960), seed=1)
    surface, matte, out = a_surface(frame, stream), a_matte(MATTE_HW, 1), blank(frame)
    for number in range(40):
        GpuComposer(Blur(28), stream=stream).compose(surface, Orientation(), matte, out)
        if number % 8 == 7:
            free.append(free_mib(device))
    assert_flat(free, record, "matte: GPU memory over the second half of 40 videos", most=32)
