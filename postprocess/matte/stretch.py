"""Bilinear stretching of small planes in integers, one axis after the other."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Levels = npt.NDArray[np.uint8]


class Steps(NamedTuple):
    """How one axis is stretched: entry i mixes entries ``first[i]`` and ``second[i]``, that by ``weights[i]`` / 256."""

    first: npt.NDArray[np.uint64]
    second: npt.NDArray[np.uint64]
    weights: npt.NDArray[np.uint16]


@lru_cache(maxsize=64)
def steps(size: int, cells: int, *, per_cell: tuple[int, int] | None = None) -> Steps:
    """The bilinear stretch of ``cells`` entries to ``size`` with half-pixel centres, positions cut to 256ths.

    A cell spans ``size / cells`` pixels, or ``per_cell[0] / per_cell[1]``. Beyond the outer centres the outer entry
    holds.
    """
    pixels, of_cells = per_cell or (size, cells)
    at = (2 * np.arange(size, dtype=np.int64) + 1) * 256 * of_cells // (2 * pixels) - 128
    at = at.clip(0, (cells - 1) * 256)
    first = at >> 8
    second = np.minimum(first + 1, cells - 1)
    return Steps(first.astype(np.uint64), second.astype(np.uint64), (at & 255).astype(np.uint16))


def mixed(values: Levels, along: Steps, *, axis: int) -> Levels:
    """``values`` (height, width) stretched along an axis."""
    weights = along.weights.astype(np.int32)
    if axis == 0:
        weights = weights[:, None]
    first, second = (values.take(entries.astype(np.int64), axis).astype(np.int32) for entries in along[:2])
    levels: Levels = ((first * (256 - weights) + second * weights + 128) >> 8).astype(np.uint8)
    return levels
