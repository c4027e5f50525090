"""Composing on a GPU against NumPy and OpenCV."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from composed_rgb import composed
from PIL import Image

from onestream.preprocess.cuda.device import Device
from onestream.serving.pipeline import BlurBackground, ColorBackground, Matte, PictureBackground, Pipeline

ROOT = Path(__file__).parents[2]
FRAME_HW = (1080, 1920)


@pytest.mark.parametrize(
    ("background", "tolerance"),
    [
        (ColorBackground(rgb=(0, 177, 64)), 2.0),  # the alpha is rounded before and after it is stretched
        (PictureBackground(path="temple.jpg"), 2.0),
        (BlurBackground(radius=28), 10.0),  # cells are not a Gaussian, and the photo has edges
    ],
    ids=["color", "picture", "blur"],
)
def test_a_frame_is_composed_within_the_roundings(
    background: Any, tolerance: float, device: Device, photos: dict[str, Image.Image], record: Any
) -> None:
    from onestream.serving.video.matte_gpu import GpuComposer

    definition = Pipeline.from_file(ROOT / "pipelines" / "matte.yaml").preprocess
    device.enter()
    stream, picture = device.stream(), np.asarray(photos["temple"])
    options = Matte(softness=0.5, background=background)
    composer = GpuComposer(options, definition, FRAME_HW, stream=stream, picture=picture)
    pixels = np.ascontiguousarray(photos["astronaut"].resize(FRAME_HW[::-1], Image.Resampling.LANCZOS))
    seeds = np.random.default_rng(0).random((8, 8), np.float32)
    probability = np.clip(cv2.resize(seeds, (256, 256), interpolation=cv2.INTER_CUBIC), 0, 1)
    frame, out = stream.allocate(pixels.shape, np.uint8), stream.allocate(pixels.shape, np.uint8)
    person, result = stream.allocate((256, 256), np.float32), stream.pinned(pixels.shape, np.uint8)
    stream.upload(pixels, frame)
    stream.upload(probability, person)
    begin, end = stream.event(), stream.event()
    composer.enqueue(frame, person, out)
    stream.record(begin)
    for _ in range(100):
        composer.enqueue(frame, person, out)
    stream.record(end)
    stream.download(out, result)
    stream.sync()
    difference = float(np.abs(result - composed(options, definition, pixels, probability, picture)).max())
    record(f"matte, {background.kind}: largest difference, levels", difference, f"≤ {tolerance:g}")
    record(f"matte, {background.kind}: 1080p frame, ms", end.milliseconds_since(begin) / 100, "")
    assert difference <= tolerance
