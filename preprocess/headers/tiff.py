"""TIFF 6.0: the first directory. Only the forms that every backend decodes alike are let through."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.preprocess.headers import jpeg
from onestream.preprocess.headers.base import (
    Header,
    Profile,
    SizeCheck,
    accept_size,
    corrupt,
    parts_of_a_file,
    profile_in,
    unsupported,
)


class _Tag(IntEnum):
    WIDTH = 256
    HEIGHT = 257
    BITS = 258
    COMPRESSION = 259
    PHOTOMETRIC = 262
    FILL_ORDER = 266
    STRIP_OFFSETS = 273
    ORIENTATION = 274
    SAMPLES = 277
    ROWS_PER_STRIP = 278
    STRIP_BYTES = 279
    PLANAR = 284
    PREDICTOR = 317
    COLOR_MAP = 320
    TILE_WIDTH = 322
    TILE_HEIGHT = 323
    TILE_OFFSETS = 324
    TILE_BYTES = 325
    EXTRA_SAMPLES = 338
    SAMPLE_FORMAT = 339
    JPEG_TABLES = 347
    PROFILE = 34675


_READ = frozenset(_Tag) - {_Tag.PROFILE}
_LONG_TAGS = (
    _Tag.STRIP_OFFSETS,
    _Tag.STRIP_BYTES,
    _Tag.TILE_OFFSETS,
    _Tag.TILE_BYTES,
    _Tag.COLOR_MAP,
    _Tag.JPEG_TABLES,
)
_MAX_VALUES = 16
"""Values of every other tag. Such tags have one value, or one for each sample of a pixel, of which 4 are read."""
_TYPES = {3: "u2", 4: "u4"}
"""SHORT and LONG."""
_BYTE_TYPES = (1, 7)
_NEXT_DIRECTORY_BYTES = 4

_WHITE_IS_ZERO, _BLACK_IS_ZERO, _RGB, _PALETTE, _YCBCR = 0, 1, 2, 3, 6
_UNCOMPRESSED, _JPEG = 1, 7
_COMPRESSIONS = {_UNCOMPRESSED: "none", 5: "LZW", 8: "deflate", 32946: "deflate", _JPEG: "JPEG"}
"""PackBits is left out: where a run crosses the end of a row, decoders silently differ."""
_ASSOCIATED_ALPHA = 1
_MAX_TILE_SIDE = 4096
_COMPRESSED_EFFORT = 2.5

Tags = dict[int, npt.NDArray[Any]]


def read(view: memoryview, check_size: SizeCheck) -> Header:
    """Read a TIFF's first directory and check that its data lies inside the file."""
    tags, profile, has_more_pages = _tags(view)
    width, height = _one(tags, _Tag.WIDTH), _one(tags, _Tag.HEIGHT)
    if width is None or height is None:
        raise corrupt("the TIFF header declares no size")
    check_size(height, width)
    _check_form(tags)
    effort = _check_data(tags, height, width, view)
    orientation = _one(tags, _Tag.ORIENTATION, 1)
    if orientation is None:
        raise corrupt("the TIFF has an orientation that is not one number")
    if orientation != 1 and _Tag.TILE_OFFSETS in tags:
        raise unsupported(f"a tiled TIFF with orientation {orientation}", "strips, or orientation 1")
    return Header(
        "TIFF",
        height,
        width,
        orientation if 1 <= orientation <= 8 else 1,
        effort=effort,
        profile=profile,
        bits=int(tags[_Tag.BITS][0]),
        is_gray=len(tags[_Tag.BITS]) == 1,
        has_more_frames=has_more_pages,
    )


def _tags(view: memoryview) -> tuple[Tags, Profile | None, bool]:
    """The entries of the first directory that matter here, as arrays of their values; its profile; whether there is
    another directory.
    """
    order = "<" if view[0] == ord("I") else ">"
    (offset,) = struct.unpack_from(order + "I", view, 4)
    (count,) = struct.unpack_from(order + "H", view, offset)
    end = offset + 2 + 12 * count
    if end + _NEXT_DIRECTORY_BYTES > len(view):
        raise corrupt(f"the TIFF is cut short: its directory ends at byte {end + _NEXT_DIRECTORY_BYTES} of {len(view)}")
    directory = view[offset + 2 : end]
    (next_directory,) = struct.unpack_from(order + "I", view, end)
    profile: Profile | None = None
    tags: Tags = {}
    for index, (tag, kind, values) in enumerate(struct.iter_unpack(order + "HHI4x", directory)):
        if tag == _Tag.PROFILE:
            (at,) = struct.unpack_from(order + "I", view, offset + 2 + 12 * index + 8)
            profile = profile_in(view[at : at + values])
        if tag not in _READ:
            continue
        if tag in tags or kind not in (_TYPES if tag != _Tag.JPEG_TABLES else _BYTE_TYPES):
            raise corrupt(f"the TIFF's tag {tag} comes twice or is of type {kind}")
        if values > _MAX_VALUES and tag not in _LONG_TAGS:
            raise unsupported(f"a TIFF with {values} values of tag {tag}", f"up to {_MAX_VALUES}")
        dtype = np.dtype(order + _TYPES.get(kind, "u1"))
        at = offset + 2 + 12 * index + 8
        if values * dtype.itemsize > 4:
            (at,) = struct.unpack_from(order + "I", view, at)
        tags[tag] = np.frombuffer(view, dtype, values, at) if values else np.empty(0, dtype)
    return tags, profile, next_directory != 0


def _one(tags: Tags, tag: int, default: int | None = None) -> int | None:
    """The single value of a tag: its default where it is absent, None where it has another number of values."""
    values = tags.get(tag)
    if values is None:
        return default
    return int(values[0]) if len(values) == 1 else None


def _check_form(tags: Tags) -> None:
    samples, photometric, compression = (
        _one(tags, _Tag.SAMPLES, 1),
        _one(tags, _Tag.PHOTOMETRIC),
        _one(tags, _Tag.COMPRESSION, 1),
    )
    bits = set(tags[_Tag.BITS].tolist()) if _Tag.BITS in tags else {1}
    extra = tags[_Tag.EXTRA_SAMPLES].tolist() if _Tag.EXTRA_SAMPLES in tags else []
    if compression not in _COMPRESSIONS:
        raise unsupported(f"a TIFF with compression {compression}", ", ".join(dict.fromkeys(_COMPRESSIONS.values())))
    if bits not in ({8}, {16}) or set(tags.get(_Tag.SAMPLE_FORMAT, np.ones(1)).tolist()) != {1}:
        raise unsupported(
            f"a TIFF with samples of {sorted(bits)} bit, format {tags.get(_Tag.SAMPLE_FORMAT, [1])[0]}",
            "unsigned integers of 8 or 16 bit",
        )
    gray = photometric in (_WHITE_IS_ZERO, _BLACK_IS_ZERO) and samples == 1
    color = photometric == _RGB and (samples == 3 or (samples == 4 and extra != [_ASSOCIATED_ALPHA]))
    palette = photometric == _PALETTE and samples == 1 and bits == {8} and len(tags.get(_Tag.COLOR_MAP, ())) == 3 * 256
    jpeg_color = photometric == _YCBCR and samples == 3 and bits == {8} and compression == _JPEG
    if not (gray or color or palette or jpeg_color):
        raise unsupported(
            f"a TIFF with photometric interpretation {photometric}, {samples} samples a pixel, extra samples {extra}",
            "gray, RGB, RGB and unassociated alpha, 8-bit palette, YCbCr in JPEG compression",
        )
    if len(tags.get(_Tag.BITS, ())) != samples or len(extra) != (1 if samples == 4 else 0):
        raise corrupt(
            f"the TIFF describes {len(tags.get(_Tag.BITS, ()))} samples and {len(extra)} extra ones of {samples}"
        )
    for tag, name, allowed in (
        (_Tag.PLANAR, "planar configuration", (1,)),
        (_Tag.FILL_ORDER, "fill order", (1,)),
        (_Tag.PREDICTOR, "predictor", (1, 2)),
    ):
        if _one(tags, tag, 1) not in allowed:
            raise unsupported(f"a TIFF with {name} {_one(tags, tag)}", " or ".join(map(str, allowed)))


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Strips or tiles: where they lie, their lengths in bytes, and their size in pixels."""

    offsets: npt.NDArray[Any]
    lengths: npt.NDArray[Any]
    height: int
    width: int
    tiled: bool


def _blocks(tags: Tags, height: int, width: int) -> _Blocks:
    """The strips or tiles, as many as the size needs."""
    tiled = _Tag.TILE_OFFSETS in tags
    offsets = tags.get(_Tag.TILE_OFFSETS if tiled else _Tag.STRIP_OFFSETS, np.empty(0))
    lengths = tags.get(_Tag.TILE_BYTES if tiled else _Tag.STRIP_BYTES, np.empty(0))
    if tiled == (_Tag.STRIP_OFFSETS in tags):
        raise corrupt("the TIFF does not say where its pixels are, or says it twice")
    if tiled:
        block_width, block_height = _one(tags, _Tag.TILE_WIDTH, 0) or 0, _one(tags, _Tag.TILE_HEIGHT, 0) or 0
        if not all(0 < side <= _MAX_TILE_SIDE and side % 16 == 0 for side in (block_width, block_height)):
            raise unsupported(
                f"a TIFF with tiles of {block_width}x{block_height}", f"multiples of 16, up to {_MAX_TILE_SIDE} a side"
            )
    else:
        block_width, block_height = width, min(_one(tags, _Tag.ROWS_PER_STRIP, height) or 0, height)
    if not block_height:
        raise corrupt("the TIFF has no rows in a strip")
    needed = -(-height // block_height) * -(-width // block_width)
    if not len(offsets) == len(lengths) == needed:
        raise corrupt(f"the TIFF has {len(offsets)} strips or tiles with {len(lengths)} lengths; it needs {needed}")
    return _Blocks(offsets, lengths, block_height, block_width, tiled)


def _check_data(tags: Tags, height: int, width: int, view: memoryview) -> float:
    """Check that the strips or tiles lie inside the file and, as far as the compression lets it be seen, are whole.

    Returns the header's ``effort``.
    """
    blocks, compression = _blocks(tags, height, width), _one(tags, _Tag.COMPRESSION, 1)
    end = int((blocks.offsets.astype(np.int64) + blocks.lengths).max())
    if end > len(view):
        raise corrupt(f"the TIFF is cut short: its pixels end at byte {end} of {len(view)}")
    held = int(blocks.lengths.sum(dtype=np.int64))
    if held > len(view):
        raise corrupt(f"the TIFF's strips or tiles overlap: they have {held} bytes together, the file {len(view)}")
    if compression == _UNCOMPRESSED:
        rows = len(blocks.offsets) * blocks.height if blocks.tiled else height
        expected = rows * blocks.width * len(tags[_Tag.BITS]) * int(tags[_Tag.BITS][0]) // 8
        if held < expected:
            raise corrupt(f"the TIFF holds {held} bytes of pixels of {expected}")
    if compression == _JPEG:
        return _check_jpeg_blocks(blocks, height, view)
    return (1.0 if compression == _UNCOMPRESSED else _COMPRESSED_EFFORT) * int(tags[_Tag.BITS][0]) / 8


def _check_jpeg_blocks(blocks: _Blocks, height: int, view: memoryview) -> float:
    """Check that each block is a JPEG of its size: decoders leave memory that a smaller one does not fill as it was.

    Returns the greatest ``effort`` of one.
    """
    parts, effort = parts_of_a_file(), 1.0
    for number, (offset, length) in enumerate(zip(blocks.offsets.tolist(), blocks.lengths.tolist(), strict=True)):
        next(parts, None)
        inner = jpeg.read(view[offset : offset + length], accept_size, parts)
        effort = max(effort, inner.effort)
        rows = blocks.height if blocks.tiled else min(blocks.height, height - number * blocks.height)
        if (inner.height, inner.width) != (rows, blocks.width):
            raise corrupt(
                f"the TIFF's strip or tile {number} is a JPEG of {inner.width}x{inner.height} pixels "
                f"instead of {blocks.width}x{rows}"
            )
    return effort
