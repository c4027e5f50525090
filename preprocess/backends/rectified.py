"""A perspective transform of a picture by NumPy: the specification in code."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onestream.preprocess.cpu.rectify_weights import DIGITS, STEPS, step_weights
from onestream.preprocess.geometry import Size

Pixels = npt.NDArray[np.uint8]


def rectified(
    picture: Pixels,
    transform: npt.NDArray[np.float64],
    size_hw: Size,
    *,
    fill: int | None = None,
    moved: npt.NDArray[np.float64] | None = None,
) -> Pixels:
    """The rectangle of ``size_hw`` that a perspective transform (``projection.homographies``) takes from a picture.

    Each pixel's centre is mapped to the picture in float64 and rounded to 1/256 of a pixel there. The level is that of
    Keys's cubic with a = -0.5 (Pillow's *bicubic* without antialiasing) over the four by four pixels around it, whose
    weights along each axis are multiples of 2^-11 (``cpu.rectify.step_weights``). The border is repeated outwards, a
    half of a level is rounded up, and levels are clipped to 8 bit. With ``fill`` pixels whose centres lie beyond the
    picture have that level. ``moved``, (2, height, width), is added to x and y of each centre before it is mapped.
    """
    out = np.empty((*size_hw, 3), np.uint8)
    across, down = np.meshgrid(np.arange(size_hw[1]) + 0.5, np.arange(size_hw[0]) + 0.5)
    if moved is not None:
        across, down = across + moved[0], down + moved[1]
    for line in range(size_hw[0]):
        divisor, x, y = ((one * across[line] + two * down[line]) + three for one, two, three in transform[[2, 0, 1]])
        columns, along_rows, beside = _neighbours(x / divisor - 0.5, picture.shape[1])
        rows, down_columns, above_or_below = _neighbours(y / divisor - 0.5, picture.shape[0])
        # (pixels, rows, columns, channels)
        levels = picture[rows[:, :, None], columns[:, None, :]].astype(np.int32)
        weights = down_columns[:, :, None] * along_rows[:, None, :]
        total = (weights[..., None] * levels).sum(axis=(1, 2), dtype=np.int32) + (1 << (2 * DIGITS - 1))
        out[line] = np.clip(total >> (2 * DIGITS), 0, 255)
        if fill is not None:
            out[line, beside | above_or_below] = fill
    return out


def _neighbours(
    places: npt.NDArray[np.float64], side: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
    """The four pixels around places on a line of ``side`` pixels, and their weights, (places, 4) each.

    Also which places lie beyond the line, half a pixel or more from the centres of its ends, (places,).
    """
    steps = np.floor(np.clip(places, -2, side + 1) * STEPS + 0.5).astype(np.int64)
    taps = steps[:, None] // STEPS + np.arange(-1, 3)
    beyond = (steps < -(STEPS // 2)) | (steps > side * STEPS - STEPS // 2)
    return np.clip(taps, 0, side - 1), step_weights()[steps % STEPS], beyond
