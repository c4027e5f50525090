"""From a network's scores on its own grid to masks of the picture's size, as PNG files.

A cell of the grid covers the same part of the network's input everywhere; the inverse of the definition's geometry says
which cell a pixel of the picture lies in. Pixels that a crop kept from the network have no cell.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from onestream.postprocess.matte.stretch import Steps, mixed
from onestream.preprocess import Definition
from onestream.preprocess.geometry import Size
from onestream.preprocess.plan import Planner

UNKNOWN = 255
"""The level of a pixel that the network did not see, in a mask of classes."""

Activation = Literal["softmax", "sigmoid", "none"]
Levels = npt.NDArray[np.uint8]
_Scores = npt.NDArray[np.floating[Any]]
_TIE = 2.0**-20
"""Of a pixel or a cell: a centre that lies on an edge belongs to what follows it, whatever floats make of its place."""
_ROWS = 256
"""Rows of a mask that are stretched at a time, so that memory does not grow with the picture."""


@dataclass(frozen=True, slots=True, eq=False)
class _Axis:
    """Where the pixels of a picture lie along one axis of the grid.

    ``seen`` tells which of them the network saw; ``at`` is the position of a pixel's centre in cells, from the outer
    corner of the first; ``first`` and ``last`` are the outermost cells that show anything of the picture.
    """

    seen: npt.NDArray[np.bool_]
    at: npt.NDArray[np.float64]
    first: int
    last: int

    @property
    def nearest(self) -> npt.NDArray[np.int64]:
        """The cell that each pixel's centre lies in."""
        return np.floor(self.at).clip(self.first, self.last).astype(np.int64)

    @property
    def steps(self) -> Steps:
        """The bilinear stretch between the centres of cells, positions rounded to 256ths.

        Beyond the outermost cells of the picture their own values hold: cells of a border are not mixed in.
        """
        at = np.rint((self.at - 0.5).clip(self.first, self.last) * 256).astype(np.int64)
        first = at >> 8
        second = np.minimum(first + 1, self.last)
        return Steps(first.astype(np.uint64), second.astype(np.uint64), (at & 255).astype(np.uint16))


class Place:
    """Where a picture of ``size_hw`` (height, width) lies on a network's grid of ``grid_hw`` cells."""

    def __init__(self, definition: Definition, size_hw: Size, grid_hw: Size) -> None:
        self.size_hw = size_hw
        placed = Planner(definition).mapping(size_hw)
        axes = []
        for axis in (0, 1):
            on_canvas = (np.arange(size_hw[axis]) + 0.5) * placed.scale[axis] + placed.offset[axis] + _TIE
            low, high = placed.spans[axis]
            cells = grid_hw[axis] / placed.canvas_hw[axis]
            first = min(int(low * cells + _TIE), grid_hw[axis] - 1)
            last = max(first, math.ceil(high * cells - _TIE) - 1)
            axes.append(_Axis((on_canvas >= low) & (on_canvas < high), on_canvas * cells, first, last))
        self._rows, self._columns = axes

    def classes(self, grid: Levels) -> Levels:
        """The class of each pixel, (height, width), from that of its cell; ``UNKNOWN`` where it has none."""
        mask = grid.take(self._columns.nearest, 1).take(self._rows.nearest, 0)
        self._fill_unseen(mask, UNKNOWN)
        return mask

    def levels(self, grid: Levels) -> Levels:
        """The level of each pixel, (height, width), bilinear between cells and rounded half up; 0 where it has none."""
        mask = np.empty(self.size_hw, np.uint8)
        wide, rows = mixed(grid, self._columns.steps, axis=1), self._rows.steps
        for top in range(0, len(mask), _ROWS):
            block = slice(top, top + _ROWS)
            mask[block] = mixed(wide, Steps(rows.first[block], rows.second[block], rows.weights[block]), axis=0)
        self._fill_unseen(mask, 0)
        return mask

    def values(self, grid: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The value of each pixel, (height, width), bilinear between the centres of cells; 0 where it has none."""
        values = grid
        for axis, number in ((self._columns, 1), (self._rows, 0)):
            at = (axis.at - 0.5).clip(axis.first, axis.last)
            first = at.astype(np.int64)
            second = np.minimum(first + 1, axis.last)
            part = np.expand_dims((at - first).astype(np.float32), 1 - number)
            start = values.take(first, number)
            values = start + (values.take(second, number) - start) * part
        self._fill_unseen(values, 0)
        return values

    def _fill_unseen(self, mask: npt.NDArray[Any], level: int) -> None:
        mask[~self._rows.seen] = level
        mask[:, ~self._columns.seen] = level


def class_grid(scores: _Scores, *, activation: Activation) -> Levels:
    """The class of each cell, (height, width), from scores (classes, height, width); the lowest id among equals.

    Of one class, class 1 is where its probability is above one half, class 0 elsewhere.
    """
    best = scores.argmax(axis=0) if len(scores) > 1 else probabilities(scores, activation=activation)[0] > 0.5
    grid: Levels = best.astype(np.uint8)
    return grid


def level_grids(probabilities: _Scores) -> Levels:
    """Probabilities, 0 to 1, as levels of 0 to 255 of the same shape; 0 for what is no number."""
    known = np.nan_to_num(probabilities.astype(np.float32).clip(0, 1))
    levels: Levels = (known * np.float32(255) + np.float32(0.5)).astype(np.uint8)
    return levels


def probabilities(scores: _Scores, *, activation: Activation) -> npt.NDArray[np.float32]:
    """Probabilities of scores (classes, height, width); softmax is over the classes."""
    values = scores.astype(np.float32)
    if activation == "none":
        return values
    if activation == "sigmoid":
        # 1 / (1 + exp(-x)) overflows; this is the same and does not.
        half = np.float32(0.5)
        between: npt.NDArray[np.float32] = half * np.tanh(half * values) + half
        return between
    exponentials = np.exp(values - values.max(axis=0))
    normalized: npt.NDArray[np.float32] = exponentials / exponentials.sum(axis=0)
    return normalized


def png(mask: Levels) -> bytes:
    """A mask as a PNG file, 8-bit gray. More compression takes twice as long for a third less."""
    file = io.BytesIO()
    Image.fromarray(mask).save(file, "PNG", compress_level=1)
    return file.getvalue()
