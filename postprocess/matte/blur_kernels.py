"""The steps of a blurred background, compiled by Numba when this module is first imported and cached on disk.

Integers only; ``onestream.postprocess.matte.blur_reference`` has the same in NumPy. The global interpreter lock is
released.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onestream.preprocess.cpu.loops import compiled

_u8, _u16, _u32 = np.uint8, np.uint16, np.uint32
_Plane = npt.NDArray[np.uint8]


@compiled("void(uint8[:,::1], int64, int64, int64, int64, uint8[:,::1])")
def cell_means(plane: _Plane, height: int, width: int, cell_height: int, cell_width: int, out: _Plane) -> None:
    """See ``blur_reference.cell_means``."""
    sums = np.empty(out.shape[1] * cell_width, np.uint16)
    count = cell_height * cell_width
    half, shift = count >> 1, 0
    while 1 << shift < count:
        shift += 1
    for row in range(out.shape[0]):
        for x in range(width):
            sums[x] = _u16(0)
        for tap in range(cell_height):
            line = plane[min(row * cell_height + tap, height - 1)]
            for x in range(width):
                sums[x] = _u16(sums[x] + _u16(line[x]))
        for x in range(width, sums.size):
            sums[x] = sums[width - 1]
        for cell in range(out.shape[1]):
            total = half
            for x in range(cell * cell_width, (cell + 1) * cell_width):
                total += sums[x]
            out[row, cell] = _u8(total >> shift)


@compiled("void(uint8[:,::1], int64)")
def box_filter(cells: _Plane, reach: int) -> None:
    """See ``blur_reference.box_filter``."""
    height, width = cells.shape
    count = 2 * reach + 1
    factor, half = _u32(65536 // count), _u32(32768)
    before = np.empty(width, np.uint8)
    for y in range(height):
        row = cells[y]
        for x in range(width):
            before[x] = row[x]
        total = 0
        for x in range(-reach, reach + 1):
            total += before[min(max(x, 0), width - 1)]
        for x in range(width):
            row[x] = _u8(_u32(_u32(total) * factor + half) >> _u32(16))
            total += before[min(x + reach + 1, width - 1)]
            total -= before[max(x - reach, 0)]
    original = cells.copy()
    sums = np.zeros(width, np.uint32)
    for y in range(-reach, reach + 1):
        row = original[min(max(y, 0), height - 1)]
        for x in range(width):
            sums[x] = _u32(sums[x] + _u32(row[x]))
    for y in range(height):
        row, entering, leaving = cells[y], original[min(y + reach + 1, height - 1)], original[max(y - reach, 0)]
        for x in range(width):
            row[x] = _u8(_u32(_u32(sums[x] * factor) + half) >> _u32(16))
            sums[x] = _u32(_u32(sums[x] + _u32(entering[x])) - _u32(leaving[x]))
