"""Decoded pictures and their regions by Pillow and NumPy: the specification in code."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image

from onestream.preprocess.backends.base import FromPicture, Pixels, Sample, network_layout
from onestream.preprocess.backends.rectified import rectified
from onestream.preprocess.backends.reference import in_color, moved_pixels
from onestream.preprocess.geometry import Size


class ReferenceFromPicture(FromPicture):
    """Executes a definition literally on decoded pictures."""

    def _sample(self, pixels: Pixels) -> Sample:
        image = in_color(Image.fromarray(pixels), self.definition.color)
        return network_layout(self.definition, moved_pixels(self.definition, image, self.limits))

    def _rectified(
        self,
        picture: Pixels,
        transform: npt.NDArray[np.float64],
        size_hw: Size,
        *,
        fill: int | None = None,
        moved: npt.NDArray[np.float64] | None = None,
    ) -> Pixels:
        return rectified(picture, transform, size_hw, fill=fill, moved=moved)
