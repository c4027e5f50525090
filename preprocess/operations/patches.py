"""The last operation of a definition for a vision-language model: pixels to rows of patches."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from onestream.preprocess.operations.base import Operation, TensorSpec


class Patches(Operation):
    """Square patches in rows, as vision-language models take them, in place of ``output``. Must be the last operation.

    A picture of (height, width, c) gives ``grid`` = (1, height / patch, width / patch) and a row for each patch. Rows
    of a square of ``merge`` x ``merge`` patches, which become one token, follow each other. A row holds
    (c, temporal, patch, patch) values; the frames of a picture are equal.
    """

    op: Literal["patches"] = "patches"
    patch: int = Field(ge=1, le=256, description="side of a patch in pixels")
    temporal: int = Field(default=2, ge=1, le=16, description="frames of a row")
    merge: int = Field(default=2, ge=1, le=16, description="side of the square of patches that becomes one token")

    def output(self, spec: TensorSpec) -> TensorSpec:
        """HWC, of sides that ``patch * merge`` divides, to rows."""
        if any(side is not None and side % self.unit for side in spec.size_hw):
            raise ValueError(f"patch * merge {self.unit} must divide the sides, got {spec.size_hw}")
        return TensorSpec((None, spec.channels * self.temporal * self.patch**2), spec.dtype, "ROWS")

    @property
    def unit(self) -> int:
        """What divides the sides of a picture: the side of a token's square in pixels."""
        return self.patch * self.merge

    def grid(self, size_hw: tuple[int, int]) -> tuple[int, int, int]:
        """Frames, and patches down and across, of a picture of (height, width)."""
        return 1, size_hw[0] // self.patch, size_hw[1] // self.patch

    def rows(self, pixels: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """The specification: (height, width, c) to rows, of the same dtype."""
        (height, width, channels), merge, patch = pixels.shape, self.merge, self.patch
        _, down, across = self.grid((height, width))
        split = pixels.reshape(down // merge, merge, patch, across // merge, merge, patch, channels)
        frames = split.transpose(0, 3, 1, 4, 6, 2, 5)[:, :, :, :, :, None].repeat(self.temporal, axis=5)
        return frames.reshape(down * across, -1)
