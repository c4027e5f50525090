"""Pictures whose levels are their masks' classes, in many orientations, and the mapping of a mask in whole numbers."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
from image_sets import save_turned
from PIL import Image

from onestream.preprocess import Definition, Resize
from onestream.preprocess.geometry import Size
from onestream.preprocess.training import SegmentationFiles, read_masks

CLASSES = ("ground", "disc", "bar")
LEVELS = np.array([40, 230, 130], np.uint8)
"""Of the pixels of each class."""


def drawn_mask(size_hw: Size, seed: int) -> np.ndarray:
    """A disc and a bar on the ground."""
    height, width = size_hw
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[:height, :width]
    radius = min(size_hw) * random.uniform(0.15, 0.3)
    mask = np.zeros(size_hw, np.uint8)
    left = int(random.integers(0, width - 8))
    mask[:, left : left + 8] = 2
    y, x = (random.uniform(radius, side - radius) for side in size_hw)
    mask[(rows - y) ** 2 + (columns - x) ** 2 < radius**2] = 1
    return mask


def save_picture(path: Path, mask: np.ndarray, orientation: int = 1) -> None:
    """The picture of a mask, stored so that the EXIF orientation turns it upright."""
    save_turned(path, np.repeat(LEVELS[mask][..., None], 3, axis=2), orientation)


def save_mask(path: Path, mask: np.ndarray) -> None:
    """As a PNG of 8-bit gray."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(mask).save(path)


def write_set(folder: Path, count: int) -> SegmentationFiles:
    """``folder/photos`` and ``folder/masks``."""
    random = np.random.default_rng(count)
    for number in range(count):
        height, width = (int(side) for side in random.integers(70, 260, 2))
        mask = drawn_mask((height, width), number)
        save_picture(folder / "photos" / f"{number:03}.png", mask, (1, 6, 3, 8)[number % 4])
        save_mask(folder / "masks" / f"{number:03}.png", mask)
    return read_masks(folder / "photos", masks=folder / "masks", classes=CLASSES)


def mapped(mask: np.ndarray, definition: Definition) -> np.ndarray:
    """What a definition's geometry makes of a mask: each pixel's centre led back, exactly; 255 where nothing was."""
    rows, columns = (_led_back(definition, (mask.shape[0], mask.shape[1]), axis) for axis in (0, 1))
    whole = np.pad(mask, ((0, 1), (0, 1)), constant_values=255)
    return whole[np.ix_(rows, columns)]


def _led_back(definition: Definition, size_hw: Size, axis: int) -> list[int]:
    """The place of each of the canvas's pixels along an axis of the picture, or -1."""
    sizes, steps = [size_hw], []
    for operation in definition.geometry:
        if isinstance(operation, Resize):
            after = operation.resized(sizes[-1])
            steps.append((Fraction(sizes[-1][axis], after[axis]), 0))
        else:
            window = operation.window(sizes[-1])
            after = (window.height, window.width)
            steps.append((Fraction(1), (window.top, window.left)[axis]))
        sizes.append(after)
    found = []
    for number in range(sizes[-1][axis]):
        place = number + Fraction(1, 2)
        for size, (scale, first) in zip(sizes[-2::-1], steps[::-1], strict=True):
            place = place * scale + first
            if not 0 <= place < size[axis]:
                place = Fraction(-1)
                break
        found.append(int(place))
    return found
