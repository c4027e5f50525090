"""NVDEC's pictures to RGB: the CUDA kernel, run by a C++ compiler, equals the definition's conversion in every bit."""

from __future__ import annotations

from typing import Any

import numpy as np
from gpu_frames import a_surface
from host_gpu import HostDevice, view
from hypothesis import given
from hypothesis import strategies as st

from onestream.preprocess.video.common.color import ColorRule, Planes, to_rgb_reference
from onestream.preprocess.video.common.orientation import Orientation
from onestream.preprocess.video.gpu.surfaces import LAYOUTS, surface_rgb


@given(
    key=st.sampled_from(sorted(LAYOUTS)),
    height=st.integers(1, 19),
    width=st.integers(1, 70),
    seed=st.integers(0, 99),
    matrix=st.sampled_from(["bt601", "bt709", "bt2020"]),
    range_=st.sampled_from(["limited", "full"]),
    orientation=st.builds(Orientation, st.booleans(), st.booleans(), st.booleans()),
)
def test_the_kernel_does_the_sums_of_the_definition(
    key: tuple[tuple[int, int], int], height: int, width: int, seed: int, matrix: Any, range_: Any, orientation: Any
) -> None:
    shifts, depth = key
    random = np.random.default_rng(seed)
    chroma = (-(-height // (1 << shifts[0])), -(-width // (1 << shifts[1])))
    dtype = np.uint8 if depth == 8 else np.uint16
    y, u, v = (random.integers(0, 1 << depth, size, dtype) for size in ((height, width), chroma, chroma))
    planes = Planes(y, u, v, (height, width), shifts, depth, 2, False)
    stream: Any = HostDevice().stream()
    surface = a_surface(planes, stream)
    rule = ColorRule(matrix=matrix, range=range_)
    rgb = surface_rgb(surface, rule, orientation, stream)
    stream.sync()
    assert np.array_equal(view(rgb), orientation.turn(to_rgb_reference(planes, rule)))
    back = surface.to_host(stream)
    assert np.array_equal(back.y[:, :width], y)
    assert np.array_equal(back.u[:, : chroma[1]], u)
    assert np.array_equal(back.v[:, : chroma[1]], v)
