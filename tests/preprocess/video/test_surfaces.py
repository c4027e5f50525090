"""NVDEC's pictures to RGB: the CUDA kernel, run by a C++ compiler, equals the definition's conversion in every bit."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import numpy as np
from gpu_frames import a_surface
from host_gpu import HostDevice, HostStream, view
from hypothesis import given
from hypothesis import strategies as st

from onestream.preprocess.video.common.color import ColorRule, Planes, to_rgb_reference
from onestream.preprocess.video.common.orientation import Orientation
from onestream.preprocess.video.gpu.surfaces import KERNEL, LAYOUTS, surface_rgb


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


def test_arguments_have_the_types_that_the_kernel_declares() -> None:
    """cuda-core passes a whole number as an address of 8 bytes, and NumPy's int32 as 4; a GPU would not complain."""
    from cuda.core._kernel_arg_handler import ParamHolder

    given: list[Any] = []

    class Stream(HostStream):
        def launch(self, _kernel: Any, grid: Any, block: Any, arguments: Any) -> None:
            assert [a * b for a, b in zip(grid, block, strict=True)] == [64, 16]
            given.extend(arguments)

    stream: Any = Stream(HostDevice())
    planes = Planes(*(np.zeros((9, 33), np.uint8) for _ in range(3)), (9, 33), (0, 0), 8, 2, False)
    surface_rgb(a_surface(planes, stream), ColorRule(), Orientation(), stream)
    found = re.search(r"yuv_to_rgb\((.*?)\)", KERNEL, re.DOTALL)
    assert found is not None
    declared = found[1].split(",")
    assert len(declared) == len(given)
    holder = ParamHolder(given)
    addresses = (ctypes.c_void_p * len(given)).from_address(holder.ptr)
    for parameter, argument, address in zip(declared, given, addresses, strict=True):
        kind = ctypes.c_uint64 if "*" in parameter else ctypes.c_int32
        assert isinstance(argument, np.int32) == (kind is ctypes.c_int32), parameter
        assert kind.from_address(address).value == argument
