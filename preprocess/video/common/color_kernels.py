"""The loops that convert colours, compiled by Numba for 8-bit and deeper samples and cached on disk.

Integers only, so that every machine gives the same bits. The global interpreter lock is released.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.preprocess.cpu.loops import compiled

_int32 = np.int32
_Samples = npt.NDArray[Any]
_Bytes = npt.NDArray[np.uint8]
_Integers = npt.NDArray[np.int32]


def by_depth(signature: str) -> list[str]:
    """Signatures for samples of 8 bits and of more, by one with *plane* and *line* in their place."""
    return [
        signature.replace("plane", f"{samples}[:,::1]").replace("line", f"{samples}[::1]")
        for samples in ("uint8", "uint16")
    ]


@compiled(*by_depth("void(line, line, int32[:,::1], int64, int64, int32[::1])"))
def spread_chroma(u: _Samples, v: _Samples, chroma: _Integers, left: int, shift: int, factors: _Integers) -> None:
    """``chroma`` (3, width): what a row of chroma adds to red, green and blue of the pixels from ``left`` on."""
    v_red, u_green, v_green, u_blue, offset = factors[1], factors[2], factors[3], factors[4], factors[6]
    half = _int32(1 << (factors[7] - 1))
    # Every loop does one thing, and every result is cut to 32 bits, so that all of them vectorize.
    width = chroma.shape[1]
    first = left >> shift
    count = ((left + width - 1) >> shift) - first + 1
    sums = np.empty((3, count), np.int32)
    line_u, line_v = u[first:], v[first:]
    for at in range(count):
        from_u, from_v = _int32(_int32(line_u[at]) - offset), _int32(_int32(line_v[at]) - offset)
        sums[0, at] = _int32(_int32(v_red * from_v) + half)
        sums[1, at] = _int32(_int32(u_green * from_u) + _int32(v_green * from_v) + half)
        sums[2, at] = _int32(_int32(u_blue * from_u) + half)
    odd = left & shift
    for channel in range(3):
        shared, spread = sums[channel], chroma[channel]
        if shift == 0:
            for at in range(count):
                spread[at] = shared[at]
        else:
            if odd:
                spread[0] = shared[0]
            pairs, ahead = spread[odd:], shared[odd:]
            for at in range((width - odd) >> 1):
                pairs[2 * at] = ahead[at]
                pairs[2 * at + 1] = ahead[at]
            if (width - odd) & 1:
                spread[width - 1] = shared[count - 1]


@compiled(*by_depth("void(line, int32[:,::1], uint8[::1], int32[::1])"))
def to_levels(y: _Samples, chroma: _Integers, levels: _Bytes, factors: _Integers) -> None:
    """``levels`` (3 x width): red, green and blue of a row whose first sample is ``y[0]``."""
    luma, offset, bits = factors[0], factors[5], factors[7]
    zero, highest = _int32(0), _int32(255)
    width = chroma.shape[1]
    for channel in range(3):
        added, level = chroma[channel], levels[channel * width : (channel + 1) * width]
        for x in range(width):
            product = _int32(_int32(_int32(y[x]) - offset) * luma)
            value = _int32(_int32(product + added[x]) >> bits)
            level[x] = np.uint8(min(max(value, zero), highest))


@compiled(*by_depth("void(plane, plane, plane, uint8[:,:,::1], int64, int64, int64, int64, int32[::1])"))
def yuv_to_rgb(
    y: _Samples,
    u: _Samples,
    v: _Samples,
    out: _Bytes,
    top: int,
    left: int,
    vertical_shift: int,
    horizontal_shift: int,
    factors: _Integers,
) -> None:
    """``out`` (height, width, 3) = RGB from ``top``, ``left`` on, with the factors of ``color.coefficients``.

    The shifts are 0 or 1.
    """
    height, width = out.shape[0], out.shape[1]
    chroma = np.empty((3, width), np.int32)
    levels = np.empty(3 * width, np.uint8)
    done = -1
    for row in range(height):
        chroma_row = (top + row) >> vertical_shift
        if chroma_row != done:
            done = chroma_row
            spread_chroma(u[chroma_row], v[chroma_row], chroma, left, horizontal_shift, factors)
        to_levels(y[top + row, left:], chroma, levels, factors)
        pixels = out[row]
        for column in range(width):
            pixels[column, 0] = levels[column]
            pixels[column, 1] = levels[width + column]
            pixels[column, 2] = levels[2 * width + column]
