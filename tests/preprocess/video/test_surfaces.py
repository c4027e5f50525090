"""NVDEC's pictures on the way through the resize: its kernels, by a C++ compiler, equal the CPU's RGB in every bit."""

from __future__ import annotations

from typing import Any

import numpy as np
from gpu_frames import a_frame, a_surface
from host_gpu import HostDevice, view
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from onestream.preprocess import Resize
from onestream.preprocess.cuda.resize import ExactResize, ToResize
from onestream.preprocess.geometry import Size, Window
from onestream.preprocess.plan import Plan
from onestream.preprocess.video.common.color import ColorRule, to_rgb_reference
from onestream.preprocess.video.common.orientation import Orientation
from onestream.preprocess.video.gpu.surfaces import LAYOUTS, yuv_format

RESIZES = (None, *(Resize(mode="exact", size=(7, 40), filter=name) for name in ("bilinear", "bicubic", "nearest")))


@given(
    key=st.sampled_from(sorted(LAYOUTS)),
    size_hw=st.tuples(st.integers(1, 40), st.integers(1, 70)),
    seed=st.integers(0, 99),
    matrix=st.sampled_from(["bt601", "bt709", "bt2020"]),
    range_=st.sampled_from(["limited", "full"]),
    orientation=st.builds(Orientation, st.booleans(), st.booleans(), st.booleans()),
    resize=st.sampled_from(RESIZES),
    channels=st.sampled_from([3, 1]),
)
def test_the_resize_reads_a_surface_as_the_picture_that_the_definition_makes_of_it(
    key: tuple[tuple[int, int], int],
    size_hw: Size,
    seed: int,
    matrix: Any,
    range_: Any,
    orientation: Orientation,
    resize: Resize | None,
    channels: int,
) -> None:
    planes, rule = a_frame(size_hw, key, seed=seed), ColorRule(matrix=matrix, range=range_)
    stream: Any = HostDevice().stream()
    surface = a_surface(planes, stream)
    shown = Image.fromarray(orientation.turn(to_rgb_reference(planes, rule)))
    whole = Window(0, 0, shown.height, shown.width)
    resized_hw = whole.size_hw if resize is None else resize.resized(whole.size_hw)
    plan = Plan(whole.size_hw, whole, resized_hw, Window(0, 0, *resized_hw), (0, 0), resized_hw, whole)
    canvas = stream.allocate((*resized_hw, channels), np.uint8)
    resizer = ExactResize(resize, channels=channels, stream=stream)
    resizer.enqueue([ToResize(surface.memory, plan, canvas, yuv_format(surface, rule, orientation))])
    stream.sync()
    shown = shown if channels == 3 else shown.convert("L")
    expected = np.asarray(shown if resize is None else resize.apply(shown)).reshape(canvas.shape)
    assert np.array_equal(view(canvas), expected)
    back = surface.to_host(stream)
    assert np.array_equal(back.y[:, : size_hw[1]], planes.y)
    for seen, plane in ((back.u, planes.u), (back.v, planes.v)):
        assert np.array_equal(seen[:, : plane.shape[1]], plane)
