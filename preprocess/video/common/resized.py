"""Makes the resized RGB picture of YUV: its levels, one channel after the other in a row, and then Pillow's resize.

Every bit is what ``color.to_rgb`` and then ``resample_fixed_point`` make, and loops over such rows vectorize.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.preprocess.cpu.fixed_point import remembered_weights, resample_lines
from onestream.preprocess.cpu.loops import compiled
from onestream.preprocess.cpu.pillow_weights import Weights, remembered
from onestream.preprocess.plan import Plan
from onestream.preprocess.video.common.color import ColorRule, Pixels, Planes, prepared
from onestream.preprocess.video.common.color_kernels import by_depth, spread_chroma, to_levels

_Samples = npt.NDArray[Any]
_Integers = npt.NDArray[np.int32]


def resized_rgb(planes: Planes, rule: ColorRule, plan: Plan, *, to_bgr: bool = False) -> Pixels:
    """Resample the window of a stored frame's plan with the triangle filter, along the rows first.

    Returns (height, width, 3) uint8, RGB or BGR. Raises ``ValueError`` where ``rule`` cannot be resolved.
    """
    window, factors = prepared(planes, rule, plan.part)
    size_hw, spans = plan.window.size_hw, plan.spans
    rows = remembered_weights(size_hw[0], *spans[0], window.height, "bilinear")
    columns = _of_planes(size_hw[1], *spans[1], window.width)
    levels = np.empty((window.height, 3 * window.width), np.uint8)
    _to_rows(planes.y, planes.u, planes.v, levels, window.top, window.left, planes.shifts[0], planes.shifts[1], factors)
    out = np.empty((size_hw[0], 3 * size_hw[1]), np.uint8)
    resample_lines(levels, out, rows, columns, channels=1)
    order = [2, 1, 0] if to_bgr else [0, 1, 2]
    return np.ascontiguousarray(out.reshape(size_hw[0], 3, size_hw[1])[:, order].transpose(0, 2, 1))


@remembered(256)
def _of_planes(count: int, start: float, end: float, source: int) -> Weights:
    """The weights of a row with three channels, one after the other."""
    first, counts, weights = remembered_weights(count, start, end, source, "bilinear")
    return (
        np.concatenate([first + channel * source for channel in np.arange(3, dtype=np.int32)]),
        np.tile(counts, 3),
        np.tile(weights, (3, 1)),
    )


@compiled(*by_depth("void(plane, plane, plane, uint8[:,::1], int64, int64, int64, int64, int32[::1])"))
def _to_rows(
    y: _Samples,
    u: _Samples,
    v: _Samples,
    levels: Pixels,
    top: int,
    left: int,
    vertical_shift: int,
    horizontal_shift: int,
    factors: _Integers,
) -> None:
    """Fill rows of ``levels``, (height, 3 x width), from the samples at ``top`` and ``left`` on."""
    chroma, spread = np.empty((3, levels.shape[1] // 3), np.int32), -1
    for row in range(levels.shape[0]):
        shared = (top + row) >> vertical_shift
        if shared != spread:
            spread_chroma(u[shared], v[shared], chroma, left, horizontal_shift, factors)
            spread = shared
        to_levels(y[top + row, left:], chroma, levels[row], factors)
