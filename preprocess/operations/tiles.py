"""The operation that cuts a picture into tiles: its options, its geometry and its specification."""

from __future__ import annotations

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
from onestream.preprocess.operations.tile_grids import best_resolution, closest_grid, inside, up_to_multiples

_MOST_TILES = 256


class Tiles(Operation):
    """Square tiles of a picture, as vision-language models take them. Only ``normalize`` may follow, and no ``output``.

    A picture of (height, width, 3) becomes (n, 3, size, size): it is resized to a grid of tiles, which follow each
    other from left to right and from top to bottom, and the thumbnail is the whole picture as one tile.
    """

    layout: ClassVar[Literal["tiles"]] = "tiles"
    pad_to: ClassVar[None] = None
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
            return best_resolution(size_hw, self.resolutions)
        if self.max_tiles is not None:
            rows, columns = closest_grid(size_hw, self.size, self.min_tiles, self.max_tiles)
            canvas_hw = rows * self.size, columns * self.size
        else:
            canvas_hw = up_to_multiples(size_hw, self.size)
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
        return self._resize(inside(size_hw, canvas_hw)), Pad(size=canvas_hw)

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
