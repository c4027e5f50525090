"""The loop of the tone map, compiled by Numba and cached on disk. Integers only."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onestream.preprocess.cpu.loops import compiled

_Integers = npt.NDArray[np.int64]
_ZERO, _ONE = np.int64(0), np.int64(1)


@compiled("void(uint8[:,:,::1], uint8[:,:,::1], int64[::1], int64[::1], uint8[::1], int64[:,::1], int64, int64, int64)")
def map_tones(
    rgb: npt.NDArray[np.uint8],
    out: npt.NDArray[np.uint8],
    light: _Integers,
    kept: _Integers,
    levels: npt.NDArray[np.uint8],
    matrix: _Integers,
    matrix_bits: int,
    largest_bits: int,
    knee: int,
) -> None:
    """``out`` = ``tone.tone_mapped_reference`` of ``rgb``, both (height, width, 3), with its tables and constants."""
    mixed = np.empty(3, np.int64)
    for row in range(rgb.shape[0]):
        for column in range(rgb.shape[1]):
            red, green, blue = light[rgb[row, column, 0]], light[rgb[row, column, 1]], light[rgb[row, column, 2]]
            largest = _ONE
            for channel in range(3):
                total = matrix[channel, 0] * red + matrix[channel, 1] * green + matrix[channel, 2] * blue
                mixed[channel] = max(total >> matrix_bits, _ZERO)
                largest = max(largest, mixed[channel])
            place = largest >> largest_bits
            most = kept[place if place < kept.size else kept.size - 1]
            for channel in range(3):
                value = mixed[channel]
                if largest > knee:
                    value = value * most // largest
                out[row, column, channel] = levels[value]
