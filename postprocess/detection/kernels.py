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


@compiled("void(uint8[:,:], float64[:,::1], int64, int64, int64, uint8[::1])")
def stroke(
    plane: _Plane, ends: npt.NDArray[np.float64], width: int, cell_height: int, cell_width: int, levels: _Plane
) -> None:
    """Draw lines (n, 4), x0 y0 x1 y1 in cells of so many samples, ``width`` cells wide, each with its level.

    A line is a square at every cell on its way; one whose ends are the same is a square.
    """
    height, columns = plane.shape
    for number in range(len(ends)):
        x, y = ends[number, 0], ends[number, 1]
        to_right, down = ends[number, 2] - x, ends[number, 3] - y
        steps = int(max(abs(to_right), abs(down))) + 1
        for step in range(steps + 1):
            left = int(np.floor(x + to_right * step / steps - (width - 1) / 2)) * cell_width
            top = int(np.floor(y + down * step / steps - (width - 1) / 2)) * cell_height
            for row in range(max(0, top), min(height, top + width * cell_height)):
                for column in range(max(0, left), min(columns, left + width * cell_width)):
                    plane[row, column] = levels[number]


@compiled("void(uint8[:,:], int64[::1], int64, int64, int64, int64)")
def tint(plane: _Plane, runs: npt.NDArray[np.int64], height: int, down: int, across: int, level: int) -> None:
    """Mix the samples of a mask with a level, half and half.

    ``runs`` are its run lengths in a frame of this height, of 0 first. A plane of fewer samples, by these shifts, has
    the mask of the first pixel of each.
    """
    rows, columns = (1 << down) - 1, (1 << across) - 1
    start = 0
    for number in range(len(runs)):
        if number % 2 == 1:
            for place in range(start, start + runs[number]):
                y, x = place % height, place // height
                if (y & rows) == 0 and (x & columns) == 0:
                    plane[y >> down, x >> across] = (plane[y >> down, x >> across] + level) // 2
        start += runs[number]
