"""From a network's prototypes to the run lengths of the mask of each object in the picture."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from onestream.preprocess.cpu.loops import compiled
from onestream.preprocess.geometry import Boxes, Mapping

_Floats = npt.NDArray[np.float32]


def run_lengths(values: _Floats, boxes: Boxes, prototypes: _Floats, mapping: Mapping) -> list[npt.NDArray[np.int64]]:
    """The runs of each object's mask, column by column, of 0 first, in the picture that ``mapping`` is of.

    ``values`` is (n, maps), ``boxes`` (n, 4) in pixels of the picture and within it, ``prototypes`` (maps, height,
    width) over the network's input. A mask is where the sum of the maps, each times its value, is above 0 within the
    box; between the places of a map it is interpolated bilinearly.
    """
    height, width = mapping.source_hw
    rows, columns = prototypes.shape[1:]
    # Place of a pixel's middle in the maps: pixel * step + start.
    steps = [
        scale * size / side for scale, size, side in zip(mapping.scale, (rows, columns), mapping.canvas_hw, strict=True)
    ]
    starts = [
        (scale / 2 + offset) * size / side - 0.5
        for scale, offset, size, side in zip(
            mapping.scale, mapping.offset, (rows, columns), mapping.canvas_hw, strict=True
        )
    ]
    found = []
    for value, box in zip(values, boxes.tolist(), strict=True):
        left, top, right, bottom = (math.ceil(side) for side in box)
        first_row, last_row = _between(top, bottom, steps[0], starts[0], rows)
        first_column, last_column = _between(left, right, steps[1], starts[1], columns)
        window = np.tensordot(value, prototypes[:, first_row:last_row, first_column:last_column], 1)
        counts = np.empty((right - left) * (bottom - top + 1) + 2, np.int64)
        count = _runs(
            np.ascontiguousarray(window, np.float32),
            (left, top, right, bottom),
            (steps[0], starts[0] - first_row, steps[1], starts[1] - first_column),
            (height, width),
            counts,
        )
        found.append(counts[:count].copy())
    return found


def _between(first: int, last: int, step: float, start: float, size: int) -> tuple[int, int]:
    """The places of a map that pixels ``first`` to ``last`` are made of; one at least."""
    ends = sorted((first * step + start, (last - 1) * step + start))
    low = min(max(math.floor(ends[0]), 0), size - 1)
    return low, min(max(math.floor(ends[1]) + 2, low + 1), size)


@compiled("int64(float32[:,::1], UniTuple(int64, 4), UniTuple(float64, 4), UniTuple(int64, 2), int64[::1])")
def _runs(
    window: _Floats,
    box: tuple[int, int, int, int],
    place: tuple[float, float, float, float],
    size_hw: tuple[int, int],
    counts: npt.NDArray[np.int64],
) -> int:
    """Fill ``counts`` with the runs of one mask; how many these are."""
    left, top, right, bottom = box
    rows, columns = window.shape
    count, last, inside = 0, 0, False
    for x in range(left, right):
        u = min(max(x * place[2] + place[3], 0.0), columns - 1.0)
        u0 = int(u)
        u1, part_u = min(u0 + 1, columns - 1), np.float32(u - u0)
        for y in range(top, bottom):
            v = min(max(y * place[0] + place[1], 0.0), rows - 1.0)
            v0 = int(v)
            v1, part_v = min(v0 + 1, rows - 1), np.float32(v - v0)
            above = window[v0, u0] + (window[v0, u1] - window[v0, u0]) * part_u
            below = window[v1, u0] + (window[v1, u1] - window[v1, u0]) * part_u
            is_one = above + (below - above) * part_v > 0
            if is_one != inside:
                here = x * size_hw[0] + y
                if is_one and count > 0 and here == last:
                    # The run of the column before ends where this one begins.
                    count -= 1
                    last -= counts[count]
                else:
                    counts[count] = here - last
                    last = here
                    count += 1
                inside = is_one
        if inside:
            here = x * size_hw[0] + bottom
            counts[count] = here - last
            last = here
            count += 1
            inside = False
    if last < size_hw[0] * size_hw[1] or count == 0:
        counts[count] = size_hw[0] * size_hw[1] - last
        count += 1
    return count
