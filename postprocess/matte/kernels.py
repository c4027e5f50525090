"""The matte's loops over a frame's planes, compiled by Numba when this module is first imported and cached on disk.

Integers only, so that every machine gives the same bits; ``onestream.postprocess.matte.composer`` has the same in
NumPy. Levels are worked on in 16 bits, into which every intermediate result fits. The global interpreter lock is
released.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onestream.preprocess.cpu.loops import compiled

_u8, _u16 = np.uint8, np.uint16
_Plane = npt.NDArray[np.uint8]
_Indices = npt.NDArray[np.uint64]
"""Unsigned: a signed index is checked for a count from the end, which takes time."""
_Weights = npt.NDArray[np.uint16]


@compiled("void(uint8[::1], uint8[::1], uint16, uint8[::1], int64)")
def between(above: _Plane, below: _Plane, weight: int, line: _Plane, width: int) -> None:
    """``line`` = two rows mixed, the second by ``weight`` / 256."""
    rest = _u16(_u16(256) - weight)
    for x in range(width):
        mixed = _u16(_u16(_u16(above[x]) * rest) + _u16(_u16(below[x]) * weight))
        line[x] = _u8(_u16(mixed + _u16(128)) >> _u16(8))


@compiled("void(uint8[:,::1], uint64[::1], uint64[::1], uint16[::1], uint8[:,::1])")
def widen(small: _Plane, first: _Indices, second: _Indices, weights: _Weights, out: _Plane) -> None:
    """``out`` (height, width) = the columns of ``small`` (height, any) mixed at the positions of ``stretch.steps``."""
    width = out.shape[1]
    for y in range(out.shape[0]):
        row, line = small[y], out[y]
        for x in range(width):
            weight = weights[x]
            mixed = _u16(_u16(row[first[x]]) * _u16(_u16(256) - weight))
            mixed = _u16(mixed + _u16(_u16(row[second[x]]) * weight))
            line[x] = _u8(_u16(mixed + _u16(128)) >> _u16(8))


@compiled(
    "void(uint8[:,::1], uint8[:,::1], uint8[:,::1], uint64[::1], uint64[::1], uint16[::1],"
    " uint8[:,::1], uint64[::1], uint64[::1], uint16[::1])"
)
def compose(
    frame: _Plane,
    out: _Plane,
    alpha: _Plane,
    alpha_first: _Indices,
    alpha_second: _Indices,
    alpha_weights: _Weights,
    back: _Plane,
    back_first: _Indices,
    back_second: _Indices,
    back_weights: _Weights,
) -> None:
    """``out`` (height, >= width) = ``frame`` over ``back`` by ``alpha``.

    ``alpha`` and ``back`` are (any height, width); their rows are mixed at the positions of ``stretch.steps``.
    """
    width = alpha.shape[1]
    alpha_line, back_line = np.empty(width, np.uint8), np.empty(width, np.uint8)
    for y in range(alpha_first.size):
        levels, behind = alpha[alpha_first[y]], back[back_first[y]]
        if alpha_weights[y] != 0:
            between(levels, alpha[alpha_second[y]], alpha_weights[y], alpha_line, width)
            levels = alpha_line
        if back_weights[y] != 0:
            between(behind, back[back_second[y]], back_weights[y], back_line, width)
            behind = back_line
        before, row = frame[y], out[y]
        for x in range(width):
            level = _u16(levels[x])
            mixed = _u16(_u16(level * _u16(before[x])) + _u16(_u16(_u16(255) - level) * _u16(behind[x])))
            mixed = _u16(mixed + _u16(127))
            # Divided by 255: exact for every 16-bit value below 65535.
            row[x] = _u8(_u16(_u16(mixed + _u16(1)) + _u16(mixed >> _u16(8))) >> _u16(8))
