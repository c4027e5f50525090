"""A small smooth displacement of a canvas: the points of a grid move, and what lies between moves with them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, field_validator

from onestream.preprocess.cpu.pillow_weights import bicubic
from onestream.preprocess.geometry import Size

_Row = tuple[tuple[float, float], ...]


class Warp(BaseModel):
    """Where each pixel of a canvas looks: a frozen value, equal by content, that is written as JSON.

    ``moved`` are rows of (x, y), in pixels of the canvas: the displacement at the points of an even grid, from the
    canvas's top left corner to its bottom right one. Between them it is Keys's cubic with a = -0.5, along y and then
    along x; beyond the last point that is repeated. Raises ``ValidationError``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    moved: tuple[_Row, ...]

    @field_validator("moved")
    @classmethod
    def _is_a_grid(cls, moved: tuple[_Row, ...]) -> tuple[_Row, ...]:
        if len(moved) < 2 or len({len(row) for row in moved}) != 1 or len(moved[0]) < 2:
            raise ValueError(f"must be 2 rows or more of 2 points or more, got rows of {[len(row) for row in moved]}")
        return moved

    def displacements(self, canvas_hw: Size) -> npt.NDArray[np.float64]:
        """What is added to x and to y of each pixel before it is looked up in the picture, (2, height, width)."""
        grid = np.array(self.moved)
        for axis, count in enumerate(canvas_hw):
            taps, weights = _neighbours(count, grid.shape[axis])
            shape = [-1 if one == axis else 1 for one in range(3)]
            # One product after the other: the same bits on every machine.
            parts = [np.take(grid, taps[:, tap], axis) * weights[:, tap].reshape(shape) for tap in range(4)]
            grid = ((parts[0] + parts[1]) + parts[2]) + parts[3]
        return np.ascontiguousarray(grid.transpose(2, 0, 1))

    def __str__(self) -> str:
        most = np.abs(self.moved).max()
        return f"warp of {len(self.moved[0])}x{len(self.moved)} points by up to {most:.3g} px"


def _neighbours(count: int, points: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """The four points around each of ``count`` pixels' centres along an axis, and their weights, (count, 4) each."""
    places = (np.arange(count) + 0.5) * (points - 1) / count
    taps = np.floor(places).astype(np.int64)[:, None] + np.arange(-1, 3)
    return np.clip(taps, 0, points - 1), bicubic(taps - places[:, None])
