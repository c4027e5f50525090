"""The operation that cuts a picture into tiles: its options, its geometry and its specification.

Grids are chosen as transformers does, in the same floats. Sizes are (height, width) in pixels, grids (rows, columns).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image
from pydantic import Field, model_validator

from onestream.preprocess.errors import BadImage
from onestream.preprocess.geometry import Size
from onestream.preprocess.moves import Pad, Resize
from onestream.preprocess.operations import (
    MAX_SIDE_OF_OPERATION,
    Arithmetic,
    Filter,
    Grid,
    Operation,
    Side,
    TensorSpec,
)

_MOST_TILES = 256


class Tiles(Operation):
    """Square tiles of a picture, as vision-language models take them. Only ``normalize`` may follow, and no ``output``.

    A picture of (height, width, 3) becomes (n, 3, size, size): it is resized to a grid of tiles, which follow each
    other from left to right and from top to bottom, and the thumbnail is the whole picture as one tile.
    """

    layout: ClassVar[Literal["tiles"]] = "tiles"
    pad_to: ClassVar[None] = None
    pads: ClassVar[Literal[False]] = False
    op: Literal["tiles"] = "tiles"
    size: Side = Field(description="side of a tile in pixels")
    mode: Literal["resolutions", "aspect_ratio", "multiple"] = Field(
        description="how the grid is chosen: *resolutions*: that of ``resolutions`` which keeps most of the picture's "
        "pixels, then wastes fewest (LLaVA-NeXT); *aspect_ratio*: that of ``min_tiles`` to ``max_tiles`` whose ratio "
        "is closest (InternVL); *multiple*: each side up to a multiple of ``size`` (Idefics3)"
    )
    resolutions: tuple[tuple[Side, Side], ...] = Field(
        default=(), description="[height, width] in pixels, multiples of ``size``; of equally good ones the first"
    )
    min_tiles: int = Field(default=1, ge=1, le=_MOST_TILES, description="with *aspect_ratio*")
    max_tiles: int | None = Field(default=None, ge=1, le=_MOST_TILES, description="with *aspect_ratio*")
    fit: Literal["stretch", "pad"] = Field(
        default="stretch",
        description="how the picture comes to the grid: *stretch*: resized to its size; *pad*: resized into it, its "
        "aspect ratio kept, in the middle of black",
    )
    thumbnail: Literal["first", "last", "none"] = Field(
        default="last", description="where it stands: *first*, always; *last*, where there is more than one tile"
    )
    thumbnail_of: Literal["picture", "grid"] = Field(
        default="picture", description="what is resized to it: the picture, or the grid to which that was resized"
    )
    filter: Filter = Field(default="bicubic", description="as of ``resize``")
    arithmetic: Arithmetic = Field(default="pil", description="as of ``resize``")

    @model_validator(mode="after")
    def _options_suit_mode(self) -> Tiles:
        if (self.mode == "resolutions") != bool(self.resolutions):
            raise ValueError(f"resolutions go with mode 'resolutions', and it with them; got mode {self.mode!r}")
        if (self.mode == "aspect_ratio") != (self.max_tiles is not None):
            raise ValueError(f"max_tiles goes with mode 'aspect_ratio', and it with that; got mode {self.mode!r}")
        if self.min_tiles > (self.max_tiles or 1):
            raise ValueError(f"min_tiles must be at most max_tiles, got {self.min_tiles} and {self.max_tiles}")
        for resolution in self.resolutions:
            if any(side % self.size for side in resolution):
                raise ValueError(f"resolutions must be multiples of size {self.size}, got {list(resolution)}")
        _ = self._resize((self.size, self.size))
        return self

    def output(self, spec: TensorSpec) -> TensorSpec:
        """(height, width, 3) to (n, 3, size, size)."""
        if spec.channels != 3:
            raise ValueError(f"tiles have 3 channels, got {spec.channels}")
        return TensorSpec((None, *self.row_shape(spec.channels)), spec.dtype, "TILES")

    def row_shape(self, channels: int) -> tuple[int, ...]:
        """The shape of a tile."""
        return channels, self.size, self.size

    def count(self, grid: Grid) -> int:
        """How many tiles a picture of this grid has, with its thumbnail."""
        return grid[0]

    def grid(self, size_hw: Size) -> Grid:
        """The tiles of a picture of (height, width) with its thumbnail, and rows and columns of the grid.

        Raises ``BadImage`` (too_many_pixels) for a grid of more pixels a side than operations have.
        """
        height, width = self.canvas(size_hw)
        rows, columns = height // self.size, width // self.size
        return rows * columns + self.has_thumbnail((rows, columns)), rows, columns

    def has_thumbnail(self, grid: Size) -> bool:
        """Whether a picture of this grid has one."""
        return self.thumbnail == "first" or (self.thumbnail == "last" and grid != (1, 1))

    def canvas(self, size_hw: Size) -> Size:
        """(height, width) of the grid in pixels, of a picture of (height, width). Raises as ``grid``."""
        if self.mode == "resolutions":
            return _best_resolution(size_hw, self.resolutions)
        if self.max_tiles is not None:
            rows, columns = _closest_grid(size_hw, self.size, self.min_tiles, self.max_tiles)
            canvas_hw = rows * self.size, columns * self.size
        else:
            canvas_hw = _up_to_multiples(size_hw, self.size)
        if max(canvas_hw) > MAX_SIDE_OF_OPERATION:
            raise BadImage(
                "too_many_pixels",
                f"its tiles would have {canvas_hw[1]}x{canvas_hw[0]} pixels; at most {MAX_SIDE_OF_OPERATION} a side "
                "are allowed",
            )
        return canvas_hw

    def to_grid(self, size_hw: Size) -> tuple[Resize | Pad, ...]:
        """What brings a picture of (height, width) to its grid. Raises as ``grid``."""
        canvas_hw = self.canvas(size_hw)
        if self.fit == "stretch":
            return (self._resize(canvas_hw),)
        return self._resize(_inside(size_hw, canvas_hw)), Pad(size=canvas_hw)

    @property
    def to_thumbnail(self) -> Resize:
        """What makes a tile of the whole picture."""
        return self._resize((self.size, self.size))

    def _resize(self, size_hw: Size) -> Resize:
        return Resize(mode="exact", size=size_hw, filter=self.filter, arithmetic=self.arithmetic)

    def cut(self, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """The specification: (height, width, 3) to (n, 3, size, size), uint8. Raises as ``grid``."""
        picture = grid = Image.fromarray(pixels)
        for move in self.to_grid((picture.height, picture.width)):
            grid = move.apply(grid)
        size, (rows, columns) = self.size, (grid.height // self.size, grid.width // self.size)
        split = np.asarray(grid).reshape(rows, size, columns, size, 3)
        tiles = list(split.transpose(0, 2, 4, 1, 3).reshape(-1, 3, size, size))
        if self.has_thumbnail((rows, columns)):
            thumbnail = self.to_thumbnail.apply(picture if self.thumbnail_of == "picture" else grid)
            tiles.insert(0 if self.thumbnail == "first" else len(tiles), np.asarray(thumbnail).transpose(2, 0, 1))
        return np.stack(tiles)


def _best_resolution(size_hw: Size, resolutions: Sequence[Size]) -> Size:
    """The resolution that keeps most of a picture's pixels, and of several the one that wastes fewest: LLaVA-NeXT's.

    Of equal ones it is the first.
    """
    height, width = size_hw

    def merit(resolution: Size) -> tuple[int, int]:
        scale = min(resolution[1] / width, resolution[0] / height)
        kept = min(int(width * scale) * int(height * scale), height * width)
        return kept, kept - resolution[0] * resolution[1]

    return max(resolutions, key=merit)


def _inside(size_hw: Size, box_hw: Size) -> Size:
    """The size of a picture that is resized into a box and keeps its aspect ratio, rounded up."""
    (height, width), (most_high, most_wide) = size_hw, box_hw
    across, down = most_wide / width, most_high / height
    if across < down:
        return min(math.ceil(height * across), most_high), most_wide
    return most_high, min(math.ceil(width * down), most_wide)


def _closest_grid(size_hw: Size, tile: int, least: int, most: int) -> Size:
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


def _up_to_multiples(size_hw: Size, tile: int) -> Size:
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
