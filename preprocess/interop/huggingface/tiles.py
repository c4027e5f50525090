"""What the configs of image processors that cut tiles state: those of LLaVA-NeXT, InternVL, Idefics3 and their like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import CannotImport
from onestream.preprocess.interop.common import pair, whole
from onestream.preprocess.interop.huggingface.files import Config
from onestream.preprocess.interop.huggingface.patches import exact_normalize
from onestream.preprocess.moves import Resize
from onestream.preprocess.operations import Filter
from onestream.preprocess.operations.tiles import Tiles

Tiling = Literal["pinpoints", "ratio", "longest"]
"""How a kind chooses its grid: among resolutions, by the aspect ratio, or by the longest edge."""
_MOST_LONGEST_EDGE = 4096
"""Idefics3 bounds the size once more above this."""


def in_tiles(definition: Definition, config: Config, kind: Tiling, filter: Filter, *, on_tensors: bool) -> Definition:
    """A definition without geometry, with that of a config that cuts tiles; ``on_tensors``: as those are resized."""
    decode = definition.source
    normalize = exact_normalize(definition, config, folded=on_tensors, what="tiles")
    operations = {"pinpoints": _of_pinpoints, "ratio": _of_ratio, "longest": _of_longest}[kind](config)
    if on_tensors and filter == "nearest":
        filter = "nearest-exact"
    resizing = {"filter": filter, "arithmetic": "aten" if on_tensors else "pil"}
    geometry = [one.model_copy(update=resizing) for one in operations]
    return Definition(operations=(decode, *geometry, normalize))


def _of_pinpoints(config: Config) -> list[Resize | Tiles]:
    """The tile is as large as the crop, else as the size; both must be that square, so that tiles keep their pixels."""
    tile = _square(config, "size")
    if config.get("crop_size") and (crop := _square(config, "crop_size")) != tile:
        raise CannotImport(
            f"size and crop_size are {tile} and {crop}: tiles are resized once more, which is not stated"
        )
    points = config.get("image_grid_pinpoints")
    if not isinstance(points, list | tuple) or not points:
        raise CannotImport(f"image_grid_pinpoints is {points!r}, expected resolutions such as [[336, 672], [672, 336]]")
    resolutions = tuple(pair(point, where="image_grid_pinpoints") for point in points)
    for resolution in resolutions:
        if any(side % tile for side in resolution):
            raise CannotImport(
                f"image_grid_pinpoints has {list(resolution)}, which is not made of tiles of {tile} pixels; exact are "
                "multiples of that"
            )
    return [Tiles(size=tile, mode="resolutions", resolutions=resolutions, fit="pad", thumbnail="first")]


def _of_ratio(config: Config) -> list[Resize | Tiles]:
    if not config.get("do_resize", True):
        raise CannotImport("do_resize must be true: without it some pictures keep their size")
    least, most = (whole(config.get(key, default), where=key) for key, default in _PATCHES)
    return [Tiles(size=_square(config, "size"), mode="aspect_ratio", min_tiles=least, max_tiles=most)]


_PATCHES = (("min_patches", 1), ("max_patches", 12))


def _of_longest(config: Config) -> list[Resize | Tiles]:
    tile = _longest_edge(config, "max_image_size")
    resize: list[Resize | Tiles] = []
    if config.get("do_resize", True):
        longest = _longest_edge(config, "size")
        if longest > _MOST_LONGEST_EDGE:
            raise CannotImport(f"size.longest_edge is {longest}; exact are up to {_MOST_LONGEST_EDGE}")
        resize.append(Resize(mode="longer", size=longest, rounding="even"))
    if not config.get("do_image_splitting", True):
        return [*resize, Tiles(size=tile, mode="aspect_ratio", max_tiles=1)]
    return [*resize, Tiles(size=tile, mode="multiple", thumbnail_of="grid")]


def _fields(config: Config, key: str) -> dict[str, Any]:
    size = config.get(key)
    if not isinstance(size, Mapping):
        raise CannotImport(f"{key} is {size!r}, expected a side such as {{'longest_edge': 384}}, or height and width")
    return {name: value for name, value in size.items() if value is not None}


def _longest_edge(config: Config, key: str) -> int:
    fields = _fields(config, key)
    if set(fields) != {"longest_edge"}:
        raise CannotImport(f"{key} is {fields}; exact is longest_edge alone")
    return whole(fields["longest_edge"], where=f"{key}.longest_edge")


def _square(config: Config, key: str) -> int:
    fields = _fields(config, key)
    sides = {whole(value, where=f"{key}.{name}") for name, value in fields.items()}
    if set(fields) not in ({"shortest_edge"}, {"height", "width"}) or len(sides) != 1:
        raise CannotImport(f"{key} is {fields}; tiles are squares: exact are shortest_edge, or equal height and width")
    return sides.pop()
