"""The GPU's perspective transform by a C++ compiler: every bit is the reference's and the CPU's."""

from __future__ import annotations

import numpy as np
import pytest
from host_gpu import HostDevice, HostStream, view
from hypothesis import given, settings
from hypothesis import strategies as st

from onestream.preprocess import Limits, Region
from onestream.preprocess.backends.reference_pictures import rectified
from onestream.preprocess.cpu.rectify import rectify
from onestream.preprocess.cuda.device import DeviceArray
from onestream.preprocess.cuda.rectify import Rectify, ToRectify
from onestream.preprocess.quads import cuts, homographies

QUAD = Region(of="find", shape="quad", upright=1.5, margin=0.1)
SIZES = st.tuples(st.integers(1, 60), st.integers(1, 60))


def on_gpu(pixels: np.ndarray, stream: HostStream, *, gap: int) -> DeviceArray:
    """A picture whose rows have a gap between them."""
    height, width, _ = pixels.shape
    memory = np.full((height, width * 3 + gap), 0xA5, np.uint8)
    memory[:, : width * 3] = pixels.reshape(height, -1)
    return DeviceArray(
        memory.ctypes.data, pixels.shape, np.dtype(np.uint8), stream.handle, memory, (memory.shape[1], 3, 1)
    )


@settings(max_examples=40)
@given(
    sizes=st.lists(SIZES, min_size=1, max_size=3),
    corners=st.lists(st.lists(st.floats(-20, 80, width=32), min_size=8, max_size=8), max_size=6),
    centers=st.lists(st.tuples(st.floats(0, 60), st.floats(0, 60), st.floats(-3.2, 3.2)), min_size=1, max_size=4),
    gap=st.integers(0, 5),
    seed=st.integers(0, 99),
)
def test_every_bit_is_the_references_and_the_cpus(
    sizes: list[tuple[int, int]],
    corners: list[list[float]],
    centers: list[tuple[float, float, float]],
    gap: int,
    seed: int,
) -> None:
    """Regions of pictures of any sizes in one batch, twice."""
    lines = []
    for x, y, angle in centers:
        along, down = np.array([np.cos(angle), np.sin(angle)]), np.array([-np.sin(angle), np.cos(angle)])
        lines.append([(x, y) + a * along + b * down for a, b in ((-20, -6), (20, -6), (20, 6), (-20, 6))])
    quads = np.concatenate([np.array(corners, np.float32).reshape(-1, 4, 2), np.array(lines, np.float32)])
    stream = HostDevice().stream()
    rectifier = Rectify(stream)
    for turn in range(2):
        items, expected = [], []
        for number, size_hw in enumerate(sizes):
            picture = np.random.default_rng(seed + number + turn).integers(0, 256, (*size_hw, 3)).astype(np.uint8)
            found = cuts(QUAD, quads, size_hw, limits=Limits())
            taken, areas = found.sizes[found.possible], found.quads[found.possible]
            source = on_gpu(picture, stream, gap=gap)
            for transform, (height, width) in zip(homographies(areas, taken), taken.tolist(), strict=True):
                items.append(ToRectify(source, transform, stream.allocate((height, width, 3), np.uint8)))
                expected.append(rectified(picture, transform, (height, width)))
                np.testing.assert_array_equal(rectify(picture, transform, (height, width)), expected[-1])
        rectifier.enqueue(items)
        stream.sync()
        for item, pixels in zip(items, expected, strict=True):
            np.testing.assert_array_equal(view(item.target), pixels)


def test_pixels_of_another_layout_are_not_read() -> None:
    stream = HostDevice().stream()
    planar = np.zeros((3, 9, 9), np.uint8)
    pixels = DeviceArray(planar.ctypes.data, (9, 9, 3), planar.dtype, stream.handle, planar, (9, 1, 81))
    with pytest.raises(ValueError, match="interleaved"):
        Rectify(stream).enqueue([ToRectify(pixels, np.eye(3), stream.allocate((4, 4, 3), np.uint8))])
