"""Computes the sizes for composing on a GPU, without a GPU: the blur's sizes and the matte's scale."""

from __future__ import annotations

import math
from dataclasses import dataclass

from onestream.preprocess.geometry import Size

_CELL = 8
_LARGEST_SIGMA = 4.0
"""In cells: more would make CV-CUDA's two-dimensional kernel slow; larger cells do instead."""


@dataclass(frozen=True, slots=True)
class BlurPlan:
    """A blur by way of cells: their number (height, width), and the Gaussian's size and sigma in cells."""

    cells_hw: Size
    kernel: int
    sigma: float


def blur_plan(radius: int, size_hw: Size) -> BlurPlan:
    """The blur of a frame with about the standard deviation of ``background.Blur``, 8 (radius // 8) + 4.

    Shrinking and enlarging by n pixels with a triangle filter each add n² / 6 to the variance.
    """
    deviation = 8 * (radius // 8) + 4
    cell = _CELL
    while _sigma(deviation, cell) > _LARGEST_SIGMA:
        cell *= 2
    sigma = _sigma(deviation, cell)
    return BlurPlan((-(-size_hw[0] // cell), -(-size_hw[1] // cell)), 2 * math.ceil(3 * sigma) + 1, sigma)


def _sigma(deviation: float, cell: int) -> float:
    return math.sqrt(deviation**2 - cell**2 / 3) / cell


def alpha_line(softness: float) -> tuple[float, float]:
    """(factor, offset) by which a probability becomes a level, before it is cut to 0 to 255 and rounded."""
    return 255 / softness, 255 * (0.5 - 0.5 / softness)
