"""The perspective transform of regions on a CPU, compiled by Numba: every bit is the reference's.

The reference is ``backends.reference.rectified``. Places are computed in float64, one operation after the
other; the rest is whole numbers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onestream.preprocess.cpu.loops import compiled
from onestream.preprocess.cpu.pillow_weights import Indices
from onestream.preprocess.cpu.rectify_weights import DIGITS, STEPS, step_weights
from onestream.preprocess.geometry import Size

Pixels = npt.NDArray[np.uint8]
_Doubles = npt.NDArray[np.float64]
_Packed = npt.NDArray[np.int64]


def rectify(
    picture: Pixels, transform: _Doubles, size_hw: Size, *, fill: int | None = None, moved: _Doubles | None = None
) -> Pixels:
    """The rectangle of ``size_hw`` that a transform takes from a contiguous picture, (height, width, 3) uint8.

    ``fill``: the level beyond the picture, whose border is repeated without it. ``moved``: as of the reference.
    """
    out = np.empty((*size_hw, 3), np.uint8)
    level = _REPEATED if fill is None else fill
    displaced = _UNMOVED if moved is None else moved
    height, width = picture.shape[:2]
    levels, is_small = picture.reshape(-1), height * width <= _PACKED_PIXELS * size_hw[0] * size_hw[1]
    packed = np.empty(height * width if is_small else 0, np.int64)
    _pack(levels, packed)
    _rectify(levels, height, width, transform, _WEIGHTS, level, displaced, packed, out)
    return out


_REPEATED = -1
_UNMOVED = np.empty((2, 0, 0))
_PACKED_PIXELS = 4
"""Of the picture for one of the rectangle: a larger picture takes longer to pack than that saves."""


_WEIGHTS = step_weights()
_STEPS = float(STEPS)
_SHIFT, _MASK = np.int32(STEPS.bit_length() - 1), np.int32(STEPS - 1)
_BEFORE = np.int32(-(STEPS // 2))
"""Where a picture begins, in steps behind the centre of its first pixel."""
_HALF, _DIGITS = np.int32(1 << (2 * DIGITS - 1)), np.int32(2 * DIGITS)
_ONE, _TWO, _THREE = np.uint64(1), np.uint64(2), np.uint64(3)
"""Channels; indices are unsigned where it counts, as in ``cuda.kernels``."""
_LANE_DIGITS = np.int64(21)
"""Of a lane of packed pixels: a column's sum is within -2^17 and 2^20, since negative weights are an eighth at most."""
_LANE = np.int64((1 << 21) - 1)
_RAISED = np.int64(1 << 18 | 1 << 39 | 1 << 60)
"""2^18 in each lane, so that none borrows from the next."""
_LOWERED_HALF = np.int64((1 << (2 * DIGITS - 1)) - (1 << (18 + DIGITS)))
"""Half a level, without what ``_RAISED`` became: the weights of a row sum to 2^DIGITS."""


@compiled("void(float64[::1], float64[::1], float64[::1], float64[::1], int64, int32[::1])")
def _map_row(
    factors: _Doubles, divisors: _Doubles, acrosses: _Doubles, downs: _Doubles, side: int, places: Indices
) -> None:
    """``places``, in steps, along one axis of the picture, ``side`` pixels long, of the pixels of a row."""
    by_across, by_down, constant = factors[0], factors[1], factors[2]
    across_one, down_one, one = divisors[0], divisors[1], divisors[2]
    last = side + 1.0
    for at in range(places.size):
        across, down = acrosses[at], downs[at]
        divisor = (across_one * across + down_one * down) + one
        place = ((by_across * across + by_down * down) + constant) / divisor - 0.5
        places[at] = np.int32(np.floor(min(max(place, -2.0), last) * _STEPS + 0.5))


@compiled("uint64(int32, int64, int64)")
def _inside(at: int, side: int, pitch: int) -> np.uint64:
    """Where a line of pixels begins that may lie outside the picture, whose border is repeated."""
    return np.uint64(min(max(at, 0), side - 1) * pitch)


@compiled("int32(uint8[::1], uint64, uint64, uint64, uint64, int32, int32, int32, int32)")
def _mixed(
    levels: Pixels, first: int, second: int, third: int, fourth: int, by_1: int, by_2: int, by_3: int, by_4: int
) -> np.int32:
    """The sum of four levels of a column, each by its weight."""
    return np.int32(
        by_1 * np.int32(levels[first])
        + by_2 * np.int32(levels[second])
        + by_3 * np.int32(levels[third])
        + by_4 * np.int32(levels[fourth])
    )


@compiled("void(uint8[::1], int64[::1])")
def _pack(levels: Pixels, packed: _Packed) -> None:
    """Each pixel's three levels as one number, ``_LANE_DIGITS`` binary digits apart."""
    for at in range(packed.size):
        first = np.uint64(3 * at)
        green, blue = np.int64(levels[first + _ONE]) << _LANE_DIGITS, np.int64(levels[first + _TWO]) << 2 * _LANE_DIGITS
        packed[at] = np.int64(levels[first]) | green | blue


@compiled("int64(int64[::1], uint64, uint64, int64, int64, int64, int64)")
def _mixed_pixels(
    packed: _Packed, first: np.uint64, pitch: np.uint64, by_1: int, by_2: int, by_3: int, by_4: int
) -> np.int64:
    """The sums of four pixels of a column, each by its weight, and ``_RAISED``: in three lanes, all positive."""
    second = first + pitch
    third = second + pitch
    total = by_1 * packed[first] + by_2 * packed[second] + by_3 * packed[third] + by_4 * packed[third + pitch]
    return np.int64(total + _RAISED)


@compiled(
    "void(uint8[::1], int64, int64, float64[:,::1], int32[:,::1], int64, float64[:,:,::1], int64[::1], uint8[:,:,::1])"
)
def _rectify(
    levels: Pixels,
    height: int,
    width: int,
    transform: _Doubles,
    weights: Indices,
    fill: int,
    moved: _Doubles,
    packed: _Packed,
    out: Pixels,
) -> None:
    """``levels`` are the picture's, (height x width x 3), ``packed`` the same by ``_pack``, or empty.

    A ``fill`` below 0 repeats the border.
    """
    last_x, last_y = width * STEPS + _BEFORE, height * STEPS + _BEFORE
    xs, ys = np.empty(out.shape[1], np.int32), np.empty(out.shape[1], np.int32)
    pitch = width * 3
    acrosses, downs = np.empty(out.shape[1]), np.empty(out.shape[1])
    for row in range(out.shape[0]):
        for at in range(out.shape[1]):
            acrosses[at], downs[at] = at + 0.5, row + 0.5
        if moved.size > 0:
            for at in range(out.shape[1]):
                acrosses[at] += moved[0, row, at]
                downs[at] += moved[1, row, at]
        _map_row(transform[0], transform[2], acrosses, downs, width, xs)
        _map_row(transform[1], transform[2], acrosses, downs, height, ys)
        for at in range(out.shape[1]):
            if fill >= 0 and (xs[at] < _BEFORE or ys[at] < _BEFORE or xs[at] > last_x or ys[at] > last_y):
                for channel in range(_THREE):
                    out[row, at, channel] = fill
                continue
            left, top = (xs[at] >> _SHIFT) - 1, (ys[at] >> _SHIFT) - 1
            along, down = weights[xs[at] & _MASK], weights[ys[at] & _MASK]
            # The weights of the columns, and of the rows.
            a, b, c, d = along[0], along[1], along[2], along[3]
            e, f, g, h = down[0], down[1], down[2], down[3]
            if packed.size > 0 and left >= 0 and top >= 0 and left + 4 <= width and top + 4 <= height:
                corner, step = np.uint64(top * width + left), np.uint64(width)
                sum_1 = _mixed_pixels(packed, corner, step, e, f, g, h)
                sum_2 = _mixed_pixels(packed, corner + _ONE, step, e, f, g, h)
                sum_3 = _mixed_pixels(packed, corner + _TWO, step, e, f, g, h)
                sum_4 = _mixed_pixels(packed, corner + _THREE, step, e, f, g, h)
                for channel in range(_THREE):
                    total = a * (sum_1 & _LANE) + b * (sum_2 & _LANE) + c * (sum_3 & _LANE) + d * (sum_4 & _LANE)
                    out[row, at, channel] = min(max((total + _LOWERED_HALF) >> _DIGITS, 0), 255)
                    sum_1, sum_2 = np.int64(sum_1 >> _LANE_DIGITS), np.int64(sum_2 >> _LANE_DIGITS)
                    sum_3, sum_4 = np.int64(sum_3 >> _LANE_DIGITS), np.int64(sum_4 >> _LANE_DIGITS)
                continue
            one, two = _inside(top, height, pitch), _inside(top + 1, height, pitch)
            three, four = _inside(top + 2, height, pitch), _inside(top + 3, height, pitch)
            column_1, column_2 = _inside(left, width, 3), _inside(left + 1, width, 3)
            column_3, column_4 = _inside(left + 2, width, 3), _inside(left + 3, width, 3)
            for channel in range(_THREE):
                at_1, at_2, at_3, at_4 = column_1 + channel, column_2 + channel, column_3 + channel, column_4 + channel
                level = _HALF + a * _mixed(levels, one + at_1, two + at_1, three + at_1, four + at_1, e, f, g, h)
                level += b * _mixed(levels, one + at_2, two + at_2, three + at_2, four + at_2, e, f, g, h)
                level += c * _mixed(levels, one + at_3, two + at_3, three + at_3, four + at_3, e, f, g, h)
                level += d * _mixed(levels, one + at_4, two + at_4, three + at_4, four + at_4, e, f, g, h)
                out[row, at, channel] = min(max(level >> _DIGITS, 0), 255)
