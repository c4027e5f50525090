"""The last operation of a definition for a vision-language model: pixels to rows of patches."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from onestream.preprocess.operations.base import Operation, PatchCount, Temporal, TensorSpec

Grid = tuple[int, int, int]
"""Rows along time, and patches down and across."""
Values = npt.NDArray[np.generic]


class Patches(Operation):
    """Square patches in rows, as vision-language models take them, in place of ``output``. Must be the last operation.

    A picture of (height, width, c) gives ``grid`` = (1, height / patch, width / patch) and a row for each patch. A row
    holds the same patch of ``temporal`` frames: those of a picture are equal, and a video that lacks some at its end
    repeats its last one. ``layout`` *image* leaves the cutting to the network.
    """

    newer_fields: ClassVar[tuple[str, ...]] = ("order", "layout", "flatten", "pad_to")
    op: Literal["patches"] = "patches"
    patch: int = Field(ge=1, le=256, description="side of a patch in pixels")
    temporal: Temporal = Field(default=2, description="frames of a row")
    merge: int = Field(default=2, ge=1, le=16, description="side of the square of patches that becomes one token")
    order: Literal["merged", "raster"] = Field(
        default="merged",
        description="of the rows: *merged*, those of a token's ``merge`` x ``merge`` patches follow each other; "
        "*raster*, from left to right and from top to bottom (PaddleOCR-VL)",
    )
    layout: Literal["CTHW", "THWC", "image"] = Field(
        default="CTHW",
        description="of the values: *CTHW*, a row is (c, temporal, patch, patch); *THWC*, (temporal, patch, patch, c) "
        "(SigLIP2-NaFlex); *image*, nothing is cut, a picture stays (c, height, width), and those of a batch are "
        "padded with zeros at the bottom and right to the largest of them (Pixtral)",
    )
    flatten: bool = Field(
        default=True,
        description="*true*: a row is one axis; *false*: one of *CTHW* stays (c * temporal, patch, patch) "
        "(PaddleOCR-VL)",
    )
    pad_to: PatchCount | None = Field(
        default=None,
        description="rows of every picture: those that it lacks are zeros, after ``normalize`` (SigLIP2-NaFlex: 256)",
    )

    @model_validator(mode="after")
    def _layout_suits(self) -> Patches:
        if not self.flatten and self.layout != "CTHW":
            raise ValueError(f"flatten false goes with layout 'CTHW' only, got layout {self.layout!r}")
        cut = (self.temporal, self.order, self.pad_to) != (1, "merged", None)
        if self.layout == "image" and cut:
            raise ValueError("layout 'image' cuts no rows: it takes temporal 1, and no order and pad_to")
        return self

    def output(self, spec: TensorSpec) -> TensorSpec:
        """HWC, of sides that ``patch * merge`` divides, to rows."""
        if any(side is not None and side % self.unit for side in spec.size_hw):
            raise ValueError(f"patch * merge {self.unit} must divide the sides, got {spec.size_hw}")
        if self.layout == "image":
            return TensorSpec((spec.channels, *spec.size_hw), spec.dtype, "CHW")
        return TensorSpec((self.pad_to, *self.row_shape(spec.channels)), spec.dtype, "ROWS")

    @property
    def unit(self) -> int:
        """What divides the sides of a picture: the side of a token's square in pixels."""
        return self.patch * self.merge

    @property
    def square(self) -> int:
        """Side of the square of patches whose rows follow each other."""
        return self.merge if self.order == "merged" else 1

    @property
    def pads(self) -> bool:
        """Whether pictures of a batch are padded to one shape; otherwise their rows follow each other."""
        return self.layout == "image" or self.pad_to is not None

    def row_shape(self, channels: int) -> tuple[int, ...]:
        """The shape of a row."""
        shape = (channels * self.temporal, self.patch, self.patch)
        return (shape[0] * shape[1] * shape[2],) if self.flatten else shape

    def grid(self, size_hw: tuple[int, int], frames: int = 1) -> Grid:
        """Rows along time, and patches down and across, of a picture or of frames of (height, width)."""
        return -(-frames // self.temporal), size_hw[0] // self.patch, size_hw[1] // self.patch

    def count(self, grid: Grid) -> int:
        """How many patches a grid has, along time, down and across."""
        return grid[0] * grid[1] * grid[2]

    def rows(self, pixels: Values) -> Values:
        """The specification: (height, width, c), or (frames, height, width, c), to its values, of the same dtype."""
        frames = pixels if pixels.ndim == 4 else pixels[None]
        if self.layout == "image":
            planes: Values = frames[0].transpose(2, 0, 1)
            return planes
        (count, height, width, channels), square, patch = frames.shape, self.square, self.patch
        times, down, across = self.grid((height, width), count)
        frames = np.concatenate([frames, frames[-1:].repeat(times * self.temporal - count, axis=0)])
        split = frames.reshape(
            times, self.temporal, down // square, square, patch, across // square, square, patch, channels
        )
        values = (8, 1, 4, 7) if self.layout == "CTHW" else (1, 4, 7, 8)
        rows = split.transpose(0, 2, 5, 3, 6, *values).reshape(-1, *self.row_shape(channels))
        lacking = 0 if self.pad_to is None else self.pad_to - len(rows)
        padded: Values = np.concatenate([rows, np.zeros((lacking, *rows.shape[1:]), rows.dtype)])
        return padded
