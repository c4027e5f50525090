"""Letters on a ground: which pixels of a picture are letters, and another ground behind them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image

Pixels = npt.NDArray[np.uint8]
LUMA = (0.299, 0.587, 0.114)
"""Of RGB (ITU-R 601)."""


def on_background(pixels: Pixels, colors: npt.NDArray[np.float32], share: float) -> Pixels:
    """Pixels (height, width, channels) whose ground is mixed by ``share`` with a tint (``changes.Background``).

    ``colors`` (4, 3) are RGB at the top left, top right, bottom right and bottom left; evenly between them. In float32,
    rounded to nearest.
    """
    is_gray = pixels.shape[2] == 1
    luma = pixels[:, :, 0] if is_gray else np.asarray(Image.fromarray(pixels).convert("L"))
    letters, ground = _letters_and_ground(luma)
    down, across = ((np.arange(side, dtype=np.float32)[:, None] + 0.5) / side for side in luma.shape)
    one, two, three, four = colors
    top, bottom = one + (two - one) * across, four + (three - four) * across
    tint = top + (bottom - top) * down[:, None]
    if is_gray:
        tint = (tint * np.array(LUMA, np.float32)).sum(axis=2, keepdims=True)
    tint = tint * np.float32(letters / 255) if letters > ground else 255 - (255 - tint) * np.float32(1 - letters / 255)
    of_ground = np.float32(1) - (luma - np.float32(ground)) / np.float32((letters - ground) or 1)
    mixed = np.clip(of_ground, 0, 1)[:, :, None] * np.float32(share)
    changed: Pixels = np.floor(pixels + mixed * (tint - pixels) + np.float32(0.5)).astype(np.uint8)
    return changed


def _letters_and_ground(luma: Pixels) -> tuple[float, float]:
    """The mean lumas of the fewer pixels and of the others, by Otsu's threshold; equal where there is one luma."""
    counts = np.bincount(luma.ravel(), minlength=256)
    below, sums = np.cumsum(counts), np.cumsum(counts * np.arange(256))
    above, total = below[-1] - below, sums[-1]
    divides = np.flatnonzero((below > 0) & (above > 0))
    if not len(divides):
        return float(total / below[-1]), float(total / below[-1])
    means, others = sums[divides] / below[divides], (total - sums[divides]) / above[divides]
    best = int(np.argmax(below[divides] * above[divides] * (means - others) ** 2.0))
    low, high = float(means[best]), float(others[best])
    return (low, high) if below[divides[best]] <= above[divides[best]] else (high, low)
