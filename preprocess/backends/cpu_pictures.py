"""Decoded pictures and their regions by the compiled loops of the CPU."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onestream.preprocess.backends.base import FromPicture, Pixels, Sample
from onestream.preprocess.backends.exactness import refuse_inexact
from onestream.preprocess.backends.finish import CpuFinish
from onestream.preprocess.cpu.rectify import rectify
from onestream.preprocess.definition import Definition
from onestream.preprocess.geometry import Size
from onestream.preprocess.limits import Limits
from onestream.preprocess.plan import free_sizes, place


class CpuFromPicture(FromPicture):
    """The compiled resize, and tables; regions are read where they lie in the picture."""

    def __init__(self, definition: Definition, limits: Limits) -> None:
        super().__init__(definition, limits)
        refuse_inexact(definition, backend="dali", own_filter=False)
        self._finish = CpuFinish(definition)

    def _sample(self, pixels: Pixels) -> Sample:
        height, width = pixels.shape[:2]
        for size_hw in free_sizes(self.definition, (height, width)):
            self.limits.check_resized(size_hw)
        placement = place(self.definition, (height, width))
        part = self._finish.part(placement)
        (top, left), (kept_height, kept_width) = part.anchor, part.shape
        kept = np.ascontiguousarray(pixels[top : top + kept_height, left : left + kept_width])
        return self._finish.finish(kept, placement, part)

    def _rectified(
        self,
        picture: Pixels,
        transform: npt.NDArray[np.float64],
        size_hw: Size,
        *,
        fill: int | None = None,
        moved: npt.NDArray[np.float64] | None = None,
    ) -> Pixels:
        return rectify(picture, transform, size_hw, fill=fill, moved=moved)
