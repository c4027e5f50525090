"""The perspective transform of regions on a CPU, compiled by Numba: every bit is the reference's.

The reference (``backends.reference_pictures.rectified``) fixes the order of the sums. Where a pixel's sixteen
neighbours lie inside the picture, the levels of four pixels of a row are one run of twelve bytes, which vectorizes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onestream.preprocess.cpu.loops import compiled
from onestream.preprocess.geometry import Size

Pixels = npt.NDArray[np.uint8]
_Floats = npt.NDArray[np.float32]
_Doubles = npt.NDArray[np.float64]
_Places = npt.NDArray[np.int32]

_float32, _int32 = np.float32, np.int32
_HALF, _ONE, _THREE_HALVES, _TWO, _FIVE_HALVES = (_float32(value) for value in (0.5, 1.0, 1.5, 2.0, 2.5))
_RUN = np.uint64(12)
"""Bytes of four neighbouring RGB pixels."""


def rectify(picture: Pixels, transform: npt.NDArray[np.float64], size_hw: Size) -> Pixels:
    """As ``backends.reference_pictures.rectified``, of a contiguous picture."""
    out = np.empty((*size_hw, 3), np.uint8)
    _rectify(picture.reshape(-1), picture.shape[0], picture.shape[1], np.ascontiguousarray(transform), out)
    return out


@compiled("void(float64[:,::1], float64, float64, float64, int32[:,::1], float32[:,:,::1])")
def _map_row(
    transform: _Doubles, down: float, height: float, width: float, firsts: _Places, weights: _Floats
) -> None:
    """For each pixel of a row: ``firsts``, its neighbours' second column and row, and ``weights`` along x and y."""
    for at in range(firsts.shape[1]):
        across = at + 0.5
        divisor = (transform[2, 0] * across + transform[2, 1] * down) + transform[2, 2]
        for axis in range(2):
            place = ((transform[axis, 0] * across + transform[axis, 1] * down) + transform[axis, 2]) / divisor - 0.5
            place = min(max(place, -2.0), (width if axis == 0 else height) + 1.0)
            first = np.floor(place)
            share = _float32(place - first)
            firsts[axis, at] = _int32(first)
            weights[axis, 0, at] = ((_ONE - _HALF * share) * share - _HALF) * share
            weights[axis, 1, at] = (_THREE_HALVES * share - _FIVE_HALVES) * share * share + _ONE
            weights[axis, 2, at] = ((_TWO - _THREE_HALVES * share) * share + _HALF) * share
            weights[axis, 3, at] = (_HALF * share - _HALF) * share * share


@compiled("void(uint8[::1], int64, int64, float64[:,::1], uint8[:,:,::1])")
def _rectify(levels: Pixels, height: int, width: int, transform: _Doubles, out: Pixels) -> None:
    """``levels`` are the picture's, (height x width x 3)."""
    firsts = np.empty((2, out.shape[1]), np.int32)
    weights = np.empty((2, 4, out.shape[1]), np.float32)
    columns = np.empty(_RUN, np.float32)
    starts = np.empty(4, np.uint64)
    pitch = width * 3
    zero, highest = _float32(0.0), _float32(255.0)
    for row in range(out.shape[0]):
        _map_row(transform, row + 0.5, float(height), float(width), firsts, weights)
        for at in range(out.shape[1]):
            left, top = firsts[0, at] - 1, firsts[1, at] - 1
            by_one, by_two, by_three, by_four = (
                weights[1, 0, at], weights[1, 1, at], weights[1, 2, at], weights[1, 3, at]
            )  # fmt: skip
            if left >= 0 and left + 3 < width and top >= 0 and top + 3 < height:
                one = np.uint64(top * pitch + left * 3)
                two, three, four = one + np.uint64(pitch), one + np.uint64(2 * pitch), one + np.uint64(3 * pitch)
                for place in range(_RUN):
                    columns[place] = (
                        (_float32(levels[one + place]) * by_one + _float32(levels[two + place]) * by_two)
                        + _float32(levels[three + place]) * by_three
                    ) + _float32(levels[four + place]) * by_four
            else:
                for tap in range(4):
                    starts[tap] = np.uint64(min(max(top + tap, 0), height - 1) * pitch)
                for tap in range(4):
                    column = np.uint64(min(max(left + tap, 0), width - 1) * 3)
                    for channel in range(np.uint64(3)):
                        place = column + channel
                        columns[tap * 3 + channel] = (
                            (
                                _float32(levels[starts[0] + place]) * by_one
                                + _float32(levels[starts[1] + place]) * by_two
                            )
                            + _float32(levels[starts[2] + place]) * by_three
                        ) + _float32(levels[starts[3] + place]) * by_four
            for channel in range(3):
                level = (
                    (columns[channel] * weights[0, 0, at] + columns[channel + 3] * weights[0, 1, at])
                    + columns[channel + 6] * weights[0, 2, at]
                ) + columns[channel + 9] * weights[0, 3, at]
                out[row, at, channel] = np.uint8(min(max(level + _HALF, zero), highest))
