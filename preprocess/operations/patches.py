"""The last operation of a definition for a vision-language model: pixels to rows of patches."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from onestream.preprocess.operations.base import Operation, Temporal, TensorSpec

Grid = tuple[int, int, int]
"""Rows along time, and patches down and across."""
Values = npt.NDArray[np.generic]


class Patches(Operation):
    """Square patches in rows, as vision-language models take them, in place of ``output``. Must be the last operation.

    A picture of (height, width, c) gives ``grid`` = (1, height / patch, width / patch) and a row for each patch. A row
    holds the same patch of ``temporal`` frames: those of a picture are equal, and a video that lacks some at its end
    repeats its last one.
    """

    newer_fields: ClassVar[tuple[str, ...]] = ("order", "flatten")
    op: Literal["patches"] = "patches"
    patch: int = Field(ge=1, le=256, description="side of a patch in pixels")
    temporal: Temporal = Field(default=2, description="frames of a row")
    merge: int = Field(default=2, ge=1, le=16, description="side of the square of patches that becomes one token")
    order: Literal["merged", "raster"] = Field(
        default="merged",
        description="of the rows: *merged*, those of a token's ``merge`` x ``merge`` patches follow each other; "
        "*raster*, from left to right and from top to bottom (PaddleOCR-VL)",
    )
    flatten: bool = Field(
        default=True,
        description="*true*: a row is one axis of (c, temporal, patch, patch) values; *false*: it stays "
        "(c * temporal, patch, patch) (PaddleOCR-VL)",
    )

    def output(self, spec: TensorSpec) -> TensorSpec:
        """HWC, of sides that ``patch * merge`` divides, to rows."""
        if any(side is not None and side % self.unit for side in spec.size_hw):
            raise ValueError(f"patch * merge {self.unit} must divide the sides, got {spec.size_hw}")
        return TensorSpec((None, *self.row_shape(spec.channels)), spec.dtype, "ROWS")

    @property
    def unit(self) -> int:
        """What divides the sides of a picture: the side of a token's square in pixels."""
        return self.patch * self.merge

    @property
    def square(self) -> int:
        """Side of the square of patches whose rows follow each other."""
        return self.merge if self.order == "merged" else 1

    def row_shape(self, channels: int) -> tuple[int, ...]:
        """The shape of a row."""
        shape = (channels * self.temporal, self.patch, self.patch)
        return (shape[0] * shape[1] * shape[2],) if self.flatten else shape

    def grid(self, size_hw: tuple[int, int], frames: int = 1) -> Grid:
        """Rows along time, and patches down and across, of a picture or of frames of (height, width)."""
        return -(-frames // self.temporal), size_hw[0] // self.patch, size_hw[1] // self.patch

    def rows(self, pixels: Values) -> Values:
        """The specification: (height, width, c), or (frames, height, width, c), to rows of the same dtype."""
        frames = pixels if pixels.ndim == 4 else pixels[None]
        (count, height, width, channels), square, patch = frames.shape, self.square, self.patch
        times, down, across = self.grid((height, width), count)
        frames = np.concatenate([frames, frames[-1:].repeat(times * self.temporal - count, axis=0)])
        split = frames.reshape(
            times, self.temporal, down // square, square, patch, across // square, square, patch, channels
        )
        return split.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7).reshape(-1, *self.row_shape(channels))
