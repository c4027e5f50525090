"""Decoded pictures and their regions by Pillow and NumPy: the specification in code."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image

from onestream.preprocess.backends.base import FromPicture, Pixels, Sample, network_layout
from onestream.preprocess.backends.reference import in_color, moved_pixels
from onestream.preprocess.geometry import Size


class ReferenceFromPicture(FromPicture):
    """Executes a definition literally on decoded pictures."""

    def _sample(self, pixels: Pixels) -> Sample:
        image = in_color(Image.fromarray(pixels), self.definition.color)
        return network_layout(self.definition, moved_pixels(self.definition, image, self.limits))

    def _rectified(self, picture: Pixels, transform: npt.NDArray[np.float64], size_hw: Size) -> Pixels:
        return rectified(picture, transform, size_hw)


def rectified(picture: Pixels, transform: npt.NDArray[np.float64], size_hw: Size) -> Pixels:
    """The rectangle of ``size_hw`` that a perspective transform (``quads.homographies``) takes from a picture.

    Each pixel's centre is mapped to the picture in float64. The level there is interpolated in float32 from the four by
    four pixels around it, by Keys's cubic with a = -0.5 (Pillow's *bicubic* without antialiasing): in each column from
    top to bottom, then from left to right. The border is repeated outwards, a half of a level is rounded up, and levels
    are clipped to 8 bit.
    """
    height, width = picture.shape[:2]
    out = np.empty((*size_hw, 3), np.uint8)
    across = np.arange(size_hw[1]) + 0.5
    for row in range(size_hw[0]):
        x, y, divisor = (
            (factors[0] * across + factors[1] * (row + 0.5)) + factors[2] for factors in transform.astype(np.float64)
        )
        x, y = np.clip(x / divisor - 0.5, -2, width + 1), np.clip(y / divisor - 0.5, -2, height + 1)
        left, top = np.floor(x), np.floor(y)
        columns = np.clip(left[:, None].astype(np.int64) + np.arange(-1, 3), 0, width - 1)
        rows = np.clip(top[:, None].astype(np.int64) + np.arange(-1, 3), 0, height - 1)
        # (pixels, rows, columns, channels)
        levels = picture[rows[:, :, None], columns[:, None, :]].astype(np.float32)
        in_columns = _weighted(levels, _cubic((y - top).astype(np.float32))[:, :, None, None])
        level = _weighted(in_columns, _cubic((x - left).astype(np.float32))[:, :, None])
        out[row] = np.clip(np.floor(level + np.float32(0.5)), 0, 255).astype(np.uint8)
    return out


def _weighted(levels: npt.NDArray[np.float32], weights: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The sum over the second axis, added in order."""
    first, second, third, fourth = (levels[:, at] * weights[:, at] for at in range(4))
    return ((first + second) + third) + fourth


def _cubic(share: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The weights of four neighbours of a point ``share`` (0 to 1) behind the second, float32 (n, 4)."""
    half, one, three_halves, two, five_halves = (np.float32(value) for value in (0.5, 1.0, 1.5, 2.0, 2.5))
    return np.stack(
        [
            ((one - half * share) * share - half) * share,
            (three_halves * share - five_halves) * share * share + one,
            ((two - three_halves * share) * share + half) * share,
            (half * share - half) * share * share,
        ],
        axis=1,
    )
