"""The loops that draw into one plane of a frame, compiled by Numba when this module is first imported, cached on disk.

The global interpreter lock is released.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onestream.preprocess.cpu.loops import compiled

_Plane = npt.NDArray[np.uint8]


@compiled("void(uint8[:,:], int64[:,::1], uint8[::1])")
def fill(plane: _Plane, rectangles: npt.NDArray[np.int64], levels: _Plane) -> None:
    """Fill rectangles (n, 4), as top, left, bottom, right, each with its level; what lies outside is left out."""
    height, width = plane.shape
    for number in range(len(rectangles)):
        level = levels[number]
        left, right = max(0, rectangles[number, 1]), min(width, rectangles[number, 3])
        for y in range(max(0, rectangles[number, 0]), min(height, rectangles[number, 2])):
            for x in range(left, right):
                plane[y, x] = level


@compiled("void(uint8[:,:], int64, int64, uint8[:,::1], uint8[::1])")
def stamp(plane: _Plane, top: int, left: int, mask: _Plane, levels: _Plane) -> None:
    """Write ``levels[mask]`` with its first sample at (top, left), both from 0 on, as far as it lies in the plane."""
    height, width = min(mask.shape[0], plane.shape[0] - top), min(mask.shape[1], plane.shape[1] - left)
    for y in range(height):
        for x in range(width):
            plane[top + y, left + x] = levels[mask[y, x]]
