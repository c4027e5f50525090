"""The steps of a blurred background in NumPy: the specification of ``blur_kernels``, equal in every bit."""

from __future__ import annotations

import numpy as np

from onestream.postprocess.matte.stretch import Levels


def cell_means(plane: Levels, height: int, width: int, cell_height: int, cell_width: int, out: Levels) -> None:
    """``out`` = means of the cells of ``plane``, rounded half up; beyond its edges the last row and column repeat."""
    rows = np.minimum(np.arange(out.shape[0] * cell_height), height - 1)
    columns = np.minimum(np.arange(out.shape[1] * cell_width), width - 1)
    cells = plane[rows[:, None], columns].reshape(out.shape[0], cell_height, out.shape[1], cell_width)
    count = cell_height * cell_width
    out[:] = (cells.sum((1, 3), dtype=np.int64) + count // 2) // count


def box_filter(cells: Levels, reach: int) -> None:
    """Each cell becomes the mean of those within ``reach``, along rows, then columns; the outer cells repeat.

    A mean is ``(sum * (65536 // count) + 32768) >> 16``.
    """
    count = 2 * reach + 1
    for axis in (1, 0):
        before = [(reach, reach) if each == axis else (0, 0) for each in (0, 1)]
        around = np.pad(cells.astype(np.int64), before, "edge")
        sums = np.lib.stride_tricks.sliding_window_view(around, count, axis).sum(2)
        cells[:] = (sums * (65536 // count) + 32768) >> 16
