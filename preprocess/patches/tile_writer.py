"""A picture's pixels to its tiles, by the compiled loops: what ``Tiles.cut`` states."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.preprocess.cpu.patches import write_rows
from onestream.preprocess.definition import Definition
from onestream.preprocess.limits import Limits
from onestream.preprocess.moves import Pad, Resize
from onestream.preprocess.operations import Decode, Output
from onestream.preprocess.operations.tiles import Tiles
from onestream.preprocess.patches.pictures import Pixels, from_picture

Values = npt.NDArray[Any]


def write_tiles(tiles: Tiles, pixels: Pixels, table: Values, rows: Values, limits: Limits) -> None:
    """Write the tiles of ``pixels``, (height, width, 3), to ``rows``, (tiles, 3 * size * size), by ``table``."""
    grid = _moved(pixels, tiles.to_grid((pixels.shape[0], pixels.shape[1])), limits)
    if grid.shape[0] * grid.shape[1] < len(rows) * tiles.size**2:
        whole = pixels if tiles.thumbnail_of == "picture" else grid
        first = tiles.thumbnail == "first"
        _write(tiles, _moved(whole, (tiles.to_thumbnail,), limits), table, rows[:1] if first else rows[-1:])
        rows = rows[1:] if first else rows[:-1]
    _write(tiles, grid, table, rows)


def _moved(pixels: Pixels, moves: tuple[Resize | Pad, ...], limits: Limits) -> Pixels:
    definition = Definition(operations=(Decode(), *moves, Output(layout="NHWC", dtype="uint8")))
    return from_picture(definition, limits).run(pixels)


def _write(tiles: Tiles, pixels: Pixels, table: Values, rows: Values) -> None:
    """A tile is written as a patch of its size, of one frame."""
    one = np.uint64(1)
    write_rows(pixels[None], table, np.uint64(tiles.size), one, one, False, rows)
