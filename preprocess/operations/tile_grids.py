"""How the grid of a picture's tiles is chosen from its size: as transformers does, in the same floats.

Sizes are (height, width) in pixels, grids are (rows, columns).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from onestream.preprocess.geometry import Size


def best_resolution(size_hw: Size, resolutions: Sequence[Size]) -> Size:
    """The resolution that keeps most of a picture's pixels, and of several the one that wastes fewest: LLaVA-NeXT's.

    Of equal ones it is the first.
    """
    height, width = size_hw

    def merit(resolution: Size) -> tuple[int, int]:
        scale = min(resolution[1] / width, resolution[0] / height)
        kept = min(int(width * scale) * int(height * scale), height * width)
        return kept, kept - resolution[0] * resolution[1]

    return max(resolutions, key=merit)


def inside(size_hw: Size, box_hw: Size) -> Size:
    """The size of a picture that is resized into a box and keeps its aspect ratio, rounded up."""
    (height, width), (most_high, most_wide) = size_hw, box_hw
    across, down = most_wide / width, most_high / height
    if across < down:
        return min(math.ceil(height * across), most_high), most_wide
    return most_high, min(math.ceil(width * down), most_wide)


def closest_grid(size_hw: Size, tile: int, least: int, most: int) -> Size:
    """The grid of ``least`` to ``most`` tiles whose aspect ratio is closest to the picture's: InternVL's.

    Of grids that are as close it is the one of most tiles whose area is less than twice the picture's.
    """
    height, width = size_hw
    ratio = width / height
    distances = [(abs(ratio - columns / rows), (rows, columns)) for rows, columns in _grids(least, most)]
    shortest = min(distance for distance, _ in distances)
    first, *others = (grid for distance, grid in distances if distance == shortest)
    large = [grid for grid in others if height * width > 0.5 * tile * tile * grid[0] * grid[1]]
    return (large or [first])[-1]


@lru_cache(16)
def _grids(least: int, most: int) -> list[Size]:
    """By their number of tiles, and of equal ones the narrower first."""
    found = [
        (rows, columns)
        for columns in range(1, most + 1)
        for rows in range(1, most // columns + 1)
        if rows * columns >= least
    ]
    return sorted(found, key=lambda grid: grid[0] * grid[1])


def up_to_multiples(size_hw: Size, tile: int) -> Size:
    """The multiples of ``tile`` to which a picture grows: the longer side, then the other in proportion: Idefics3's."""
    height, width = size_hw
    ratio = width / height
    if width >= height:
        width = _up(width, tile)
        return _up(int(width / ratio), tile), width
    height = _up(height, tile)
    return height, _up(int(height * ratio), tile)


def _up(side: int, tile: int) -> int:
    return max(1, math.ceil(side / tile)) * tile
