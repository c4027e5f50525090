"""The colour conversion's loop, compiled by Numba for 8-bit and deeper samples and cached on disk.

Integers only, so that every machine gives the same bits. The global interpreter lock is released.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.preprocess.cpu.loops import compiled

_int32 = np.int32
_Samples = npt.NDArray[Any]
_SIGNATURES = [
    f"void({dtype}[:,::1], {dtype}[:,::1], {dtype}[:,::1], uint8[:,:,::1], int64, int64, int64, int64, int32[::1])"
    for dtype in ("uint8", "uint16")
]


@compiled(*_SIGNATURES)
def yuv_to_rgb(
    y: _Samples,
    u: _Samples,
    v: _Samples,
    out: npt.NDArray[np.uint8],
    top: int,
    left: int,
    vertical_shift: int,
    horizontal_shift: int,
    factors: npt.NDArray[np.int32],
) -> None:
    """``out`` (height, width, 3) = RGB from ``top``, ``left`` on, with the factors of ``color.coefficients``.

    The shifts are 0 or 1.
    """
    luma, v_red, u_green, v_green = factors[0], factors[1], factors[2], factors[3]
    u_blue, y_offset, c_offset, bits = factors[4], factors[5], factors[6], factors[7]
    height, width = out.shape[0], out.shape[1]
    half, zero, highest = _int32(1 << (bits - 1)), _int32(0), _int32(255)
    first = left >> horizontal_shift
    odd = left != first << horizontal_shift
    count = ((left + width - 1) >> horizontal_shift) - first + 1
    sums = np.empty((3, count), np.int32)
    chroma = np.empty((3, width), np.int32)
    levels = np.empty((3, width), np.uint8)
    done = -1
    # Every loop does one thing, and every result is cut to 32 bits, so that all of them vectorize.
    for row in range(height):
        chroma_row = (top + row) >> vertical_shift
        if chroma_row != done:
            done = chroma_row
            line_u, line_v = u[chroma_row, first:], v[chroma_row, first:]
            for at in range(count):
                from_u, from_v = _int32(_int32(line_u[at]) - c_offset), _int32(_int32(line_v[at]) - c_offset)
                sums[0, at] = _int32(_int32(v_red * from_v) + half)
                sums[1, at] = _int32(_int32(u_green * from_u) + _int32(v_green * from_v) + half)
                sums[2, at] = _int32(_int32(u_blue * from_u) + half)
            for channel in range(3):
                shared, spread = sums[channel], chroma[channel]
                if horizontal_shift == 0:
                    for at in range(count):
                        spread[at] = shared[at]
                elif not odd:
                    for at in range(width >> 1):
                        spread[2 * at] = shared[at]
                        spread[2 * at + 1] = shared[at]
                    if width & 1:
                        spread[width - 1] = shared[count - 1]
                else:
                    for column in range(width):
                        spread[column] = shared[(column + 1) >> 1]
        line_y = y[top + row, left:]
        for channel in range(3):
            spread, level = chroma[channel], levels[channel]
            for column in range(width):
                luma_part = _int32(_int32(_int32(line_y[column]) - y_offset) * luma)
                value = _int32(_int32(luma_part + spread[column]) >> bits)
                level[column] = np.uint8(min(max(value, zero), highest))
        pixels = out[row]
        for column in range(width):
            pixels[column, 0] = levels[0, column]
            pixels[column, 1] = levels[1, column]
            pixels[column, 2] = levels[2, column]
