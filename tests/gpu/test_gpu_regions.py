"""Regions on a GPU: cut, rectified, resized and normalized to the reference's every bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu_files import downloaded, uploaded

from onestream.preprocess import Definition, Limits, Normalize, Pad, Region, Resize, compile_from_picture
from onestream.preprocess.backends.gpu_pictures import GpuFromPicture
from onestream.preprocess.cuda.device import Device, DeviceArray

QUADS = np.array(
    [
        [[30, 40], [330, 70], [327, 110], [27, 80]],
        [[200, 100], [222, 102], [205, 330], [180, 327]],
        [[-20, 300], [90, 280], [140, 380], [5, 420]],
    ],
    np.float32,
)


@pytest.mark.parametrize("shape", ["box", "quad"])
def test_every_bit_is_the_references(shape: Any, device: Device) -> None:
    device.enter()
    stream = device.stream()
    definition = Definition(
        operations=[
            Region(of="find", color="bgr", shape=shape, upright=1.5),
            Resize(mode="height", size=(48, 3200), rounding="up"),
            Pad(size=(48, 320), multiple_of=(0, 8), align="top_left", value=128),
            Normalize(mean=(0.5, 0.4, 0.3), std=(0.5, 0.25, 0.3)),
        ]
    )
    chosen = np.random.default_rng(0)
    pictures = [chosen.integers(0, 256, (*size, 3)).astype(np.uint8) for size in ((480, 640), (401, 333))]
    on_gpu = GpuFromPicture(definition, Limits(), stream=stream)
    seen = on_gpu.enqueue([uploaded(picture, stream) for picture in pictures], [QUADS, QUADS[1:]])
    run = compile_from_picture(definition).run
    expected = [*run(pictures[0], QUADS), *run(pictures[1], QUADS[1:])]
    assert len(seen) == len(expected)
    assert all(isinstance(sample, DeviceArray) for sample in seen)
    for sample, reference in zip(downloaded(seen, stream), expected, strict=True):  # type: ignore[arg-type]
        np.testing.assert_array_equal(sample, reference)
