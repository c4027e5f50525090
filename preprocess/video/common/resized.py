"""Makes the resized RGB picture of YUV in one pass over the rows, compiled by Numba and cached on disk.

It does what ``color.to_rgb`` and then ``resample.resample`` do, with the same sums in the same order, so that every bit
is equal. The RGB of a row stays in the processor's cache until the rows that are made of it are done, and its channels
lie one after the other, for which all loops over a row vectorize.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.preprocess.cpu.loops import compiled
from onestream.preprocess.cpu.resample import column_weights, reverse_pixels, row_weights
from onestream.preprocess.plan import Plan
from onestream.preprocess.video.common.color import ColorRule, Pixels, Planes, prepared
from onestream.preprocess.video.common.color_kernels import by_depth, spread_chroma, to_levels

_int32, _float32 = np.int32, np.float32
_Samples = npt.NDArray[Any]
_Bytes = npt.NDArray[np.uint8]
_Integers = npt.NDArray[np.int32]
_Floats = npt.NDArray[np.float32]
_Positions = npt.NDArray[np.uint64]


def resized_rgb(planes: Planes, rule: ColorRule, plan: Plan, *, antialias: bool = True, to_bgr: bool = False) -> Pixels:
    """Resample the window of a stored frame's plan with the triangle filter, (height, width, 3) uint8 RGB or BGR.

    Raises
    ``ValueError`` where ``rule`` cannot be resolved.
    """
    window, factors = prepared(planes, rule, plan.part)
    size_hw, spans = plan.window.size_hw, plan.spans
    rows = row_weights(size_hw[0], *spans[0], window.height, antialias)
    columns = column_weights(size_hw[1], *spans[1], window.width, antialias)
    out = np.empty((*size_hw, 3), np.uint8)
    _resize(
        planes.y,
        planes.u,
        planes.v,
        out,
        window.top,
        window.left,
        window.width,
        planes.shifts[0],
        planes.shifts[1],
        factors,
        rows[0],
        rows[1],
        rows[2],
        columns[0],
        columns[1],
        to_bgr,
    )
    return out


@compiled("void(uint8[:,::1], int64, int64, float32[::1], float32[::1])")
def _blend(ring: _Bytes, first: int, count: int, weights: _Floats, line: _Floats) -> None:
    """``resample.blend_rows``, of rows that lie in a ring."""
    for x in range(line.size):
        line[x] = _float32(0.0)
    tap, length = 0, ring.shape[0]
    # Three rows at once, added one after the other: the same sums, and a third of the passes over ``line``.
    while tap + 3 <= count:
        one, two, three = (
            ring[(first + tap) % length],
            ring[(first + tap + 1) % length],
            ring[(first + tap + 2) % length],
        )
        by_one, by_two, by_three = weights[tap], weights[tap + 1], weights[tap + 2]
        for x in range(line.size):
            value = line[x] + by_one * _float32(one[x])
            value += by_two * _float32(two[x])
            line[x] = value + by_three * _float32(three[x])
        tap += 3
    while tap < count:
        row, weight = ring[(first + tap) % length], weights[tap]
        for x in range(line.size):
            line[x] += weight * _float32(row[x])
        tap += 1


_ONE = np.uint64(1)


@compiled(
    *by_depth(
        "void(plane, plane, plane, uint8[:,:,::1], int64, int64, int64, int64, int64, int32[::1], "
        "int32[::1], int32[::1], float32[:,::1], uint64[::1], float32[:,::1], boolean)"
    )
)
def _resize(
    y: _Samples,
    u: _Samples,
    v: _Samples,
    out: _Bytes,
    top: int,
    left: int,
    width: int,
    vertical_shift: int,
    horizontal_shift: int,
    factors: _Integers,
    row_first: _Integers,
    row_count: _Integers,
    row_weights: _Floats,
    column_first: _Positions,
    column_weights: _Floats,
    to_bgr: bool,
) -> None:
    """Rows have the weights of ``resample.triangle_weights``, columns those of ``resample.padded_weights``."""
    ring = np.empty((row_weights.shape[1], 3 * width), np.uint8)
    line = np.empty(3 * width, np.float32)
    chroma = np.empty((3, width), np.int32)
    levels = np.empty(out.shape[1] * 3, np.float32)
    green_at, blue_at = np.uint64(width), np.uint64(2 * width)
    # The next row to convert, and the row of chroma that ``chroma`` holds.
    ready, spread = row_first[0], -1
    for row in range(out.shape[0]):
        ready = max(ready, row_first[row])
        while ready < row_first[row] + row_count[row]:
            shared = (top + ready) >> vertical_shift
            if shared != spread:
                spread_chroma(u[shared], v[shared], chroma, left, horizontal_shift, factors)
                spread = shared
            to_levels(y[top + ready, left:], chroma, ring[ready % ring.shape[0]], factors)
            ready += 1
        _blend(ring, row_first[row], row_count[row], row_weights[row], line)
        place = np.uint64(0)
        for x in range(out.shape[1]):
            # Half a level, then cut: rounds to nearest.
            red, green, blue = _float32(0.5), _float32(0.5), _float32(0.5)
            at = column_first[x]
            for tap in range(column_weights.shape[1]):
                weight = column_weights[x, tap]
                red += weight * line[at]
                green += weight * line[at + green_at]
                blue += weight * line[at + blue_at]
                at += _ONE
            levels[place], levels[place + _ONE], levels[place + _ONE + _ONE] = red, green, blue
            place += np.uint64(3)
        pixels = out[row].reshape(levels.size)
        if to_bgr:
            reverse_pixels(levels, pixels)
        else:
            for x in range(levels.size):
                pixels[x] = np.uint8(levels[x])
