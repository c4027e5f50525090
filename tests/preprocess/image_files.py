"""Image files written by hand, for the forms that no library writes on request.

Every function returns a whole file, or a part of one, as bytes. Layouts: PNG (W3C), TIFF 6.0, BMP (BITMAPINFOHEADER),
WebP container (RFC 9649), EXIF 2.3.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from PIL import Image

Order = Literal["<", ">"]
Chunk = tuple[bytes, bytes]


def encode(image: Image.Image, file_format: str, **options: Any) -> bytes:
    """A file written by Pillow."""
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def exif_block(orientation: int, *, order: Order = "<", before: int = 0) -> bytes:
    """A TIFF-structured EXIF block; ``before`` other tags stand before the orientation."""
    entries = [*((0x0100 + index, 7) for index in range(before)), (0x0112, orientation)]
    head = b"II*\0" if order == "<" else b"MM\0*"
    packed = b"".join(struct.pack(order + "HHIHH", tag, 3, 1, value, 0) for tag, value in entries)
    return head + struct.pack(order + "IH", 8, len(entries)) + packed + struct.pack(order + "I", 0)


def jpeg_segment(marker: int, payload: bytes) -> bytes:
    """One marker segment."""
    return struct.pack(">BBH", 0xFF, marker, len(payload) + 2) + payload


def jpeg_with_segments(jpeg: bytes, *segments: bytes) -> bytes:
    """A JPEG with segments put right after its start marker."""
    return jpeg[:2] + b"".join(segments) + jpeg[2:]


def jpeg_exif(orientation: int, order: Order = "<") -> bytes:
    """The APP1 segment that carries an orientation."""
    return jpeg_segment(0xE1, b"Exif\0\0" + exif_block(orientation, order=order))


def jpeg_declaring(width: int, height: int) -> bytes:
    """A complete JPEG of a few hundred bytes whose frame header declares another size."""
    data = bytearray(encode(Image.new("RGB", (8, 8)), "JPEG", optimize=True))
    at = data.find(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def with_unknown_tables(jpeg: bytes) -> bytes:
    """A JPEG that only a decoder refuses: a quantization table that there cannot be."""
    return jpeg.replace(b"\xff\xdb\x00\x43\x01", b"\xff\xdb\x00\x43\x05", 1)


PNG_MAGIC = b"\x89PNG\r\n\x1a\n"


def png_chunk(kind: bytes, payload: bytes) -> bytes:
    """One chunk with its checksum."""
    return struct.pack(">I", len(payload)) + kind + payload + struct.pack(">I", zlib.crc32(kind + payload))


def png(
    rows: Sequence[bytes],
    width: int,
    *,
    bits: int,
    color: int,
    before: Sequence[Chunk] = (),
    after: Sequence[Chunk] = (),
    height: int | None = None,
) -> bytes:
    """A PNG of packed rows; ``color`` 0 gray, 2 RGB, 3 palette, 4 gray and alpha, 6 RGBA."""
    header = struct.pack(">IIBBBBB", width, len(rows) if height is None else height, bits, color, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    chunks = [(b"IHDR", header), *before, (b"IDAT", data), *after, (b"IEND", b"")]
    return PNG_MAGIC + b"".join(png_chunk(*chunk) for chunk in chunks)


def png_of(pixels: np.ndarray[Any, Any], **options: Any) -> bytes:
    """A PNG of an (h, w, channels) array of uint8 or uint16."""
    color = {1: 0, 2: 4, 3: 2, 4: 6}[pixels.shape[2]]
    big_endian = pixels.astype(pixels.dtype.newbyteorder(">"))
    rows = [row.tobytes() for row in big_endian]
    return png(rows, pixels.shape[1], bits=8 * pixels.dtype.itemsize, color=color, **options)


def png_interlaced(pixels: np.ndarray[Any, Any]) -> bytes:
    """An Adam7 PNG of an (h, w, 3) uint8 array."""
    passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
    parts = [pixels[top::down, left::right] for top, left, down, right in passes]
    data = b"".join(b"\0" + row.tobytes() for part in parts if part.size for row in part)
    header = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, 2, 0, 0, 1)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(data)), (b"IEND", b"")]
    return PNG_MAGIC + b"".join(png_chunk(*chunk) for chunk in chunks)


Tags = dict[int, tuple[int, Sequence[int]] | None]


def tiff(
    pixels: np.ndarray[Any, Any],
    *,
    order: Order = "<",
    planar: bool = False,
    rows_per_strip: int | None = None,
    tile: int | None = None,
    compression: int = 1,
    predictor: bool = False,
    tags: Tags | None = None,
    **options: Any,
) -> bytes:
    """A TIFF of an (h, w, channels) array. ``tags`` adds, replaces or (None) removes entries: tag → (type, values).

    Compression 1 is none, 8 is deflate. Type 3 is SHORT, 4 LONG, 1 BYTE.
    """
    height, width, channels = pixels.shape
    if predictor:
        pixels = np.diff(pixels, axis=1, prepend=np.zeros_like(pixels[:, :1]))
        tags = {317: (3, [2])} | (tags or {})
    pixels = pixels.astype(pixels.dtype.newbyteorder(order))
    planes = [pixels[:, :, index : index + 1] for index in range(channels)] if planar else [pixels]
    blocks: list[bytes] = []
    for plane in planes:
        down, right = tile or rows_per_strip or height, tile or width
        padded = np.pad(plane, ((0, -height % tile), (0, -width % tile), (0, 0))) if tile else plane
        blocks += [
            padded[top : top + down, left : left + right].tobytes()
            for top in range(0, padded.shape[0], down)
            for left in range(0, padded.shape[1], right)
        ]
    if compression == 8:
        blocks = [zlib.compress(block) for block in blocks]
    options |= {"order": order, "planar": planar, "rows_per_strip": rows_per_strip, "tile": tile, "tags": tags}
    return tiff_of_blocks(blocks, pixels.shape, pixels.dtype, compression=compression, **options)


def tiff_of_blocks(
    blocks: Sequence[bytes],
    shape: tuple[int, int, int],
    dtype: np.dtype[Any],
    *,
    order: Order = "<",
    photometric: int | None = None,
    planar: bool = False,
    rows_per_strip: int | None = None,
    tile: int | None = None,
    compression: int = 1,
    tags: Tags | None = None,
) -> bytes:
    """A TIFF of strips or tiles that are compressed already. A tag of None is left out."""
    height, width, channels = shape
    offsets = np.cumsum([8, *map(len, blocks)]).tolist()
    entries: Tags = {
        256: (4, [width]),
        257: (4, [height]),
        258: (3, [8 * dtype.itemsize] * channels),
        259: (3, [compression]),
        262: (3, [photometric if photometric is not None else (2 if channels >= 3 else 1)]),
        277: (3, [channels]),
        284: (3, [2 if planar else 1]),
        339: (3, [{"u": 1, "i": 2, "f": 3}[dtype.kind]] * channels),
    }
    if channels in (2, 4):
        entries[338] = (3, [2])
    if tile is not None:
        entries |= {322: (4, [tile]), 323: (4, [tile]), 324: (4, offsets[:-1]), 325: (4, [len(b) for b in blocks])}
    else:
        entries |= {273: (4, offsets[:-1]), 278: (4, [rows_per_strip or height]), 279: (4, [len(b) for b in blocks])}
    entries |= tags or {}
    body = b"".join(blocks)
    body += b"\0" * (len(body) % 2)
    return _tiff_file(body, {tag: entry for tag, entry in entries.items() if entry is not None}, order)


def _tiff_file(body: bytes, entries: dict[int, tuple[int, Sequence[int]]], order: Order) -> bytes:
    directory = 8 + len(body)
    extra_at = directory + 2 + 12 * len(entries) + 4
    packed, extra = b"", b""
    for tag, (kind, values) in sorted(entries.items()):
        value = struct.pack(f"{order}{len(values)}{ {1: 'B', 3: 'H', 4: 'I'}[kind] }", *values)
        if len(value) > 4:
            value, extra = struct.pack(order + "I", extra_at + len(extra)), extra + value + b"\0" * (len(value) % 2)
        packed += struct.pack(order + "HHI", tag, kind, len(values)) + value.ljust(4, b"\0")
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", directory)
    return head + body + struct.pack(order + "H", len(entries)) + packed + struct.pack(order + "I", 0) + extra


def bmp(
    rows: Sequence[bytes],
    width: int,
    *,
    bits: int,
    palette: bytes = b"",
    compression: int = 0,
    top_down: bool = False,
    header_bytes: int = 40,
    masks: bytes = b"",
    data: bytes | None = None,
) -> bytes:
    """A BMP. ``rows`` are packed, from the top of the picture; ``header_bytes`` 12 is the OS/2 form."""
    height = len(rows)
    padded = [row + b"\0" * (-len(row) % 4) for row in rows]
    body = b"".join(padded if top_down else padded[::-1]) if data is None else data
    signed_height = -height if top_down else height
    if header_bytes == 12:
        info = struct.pack("<IHHHH", 12, width, height, 1, bits)
    else:
        used = len(palette) // 4
        info = struct.pack(
            "<IiiHHIIiiII", header_bytes, width, signed_height, 1, bits, compression, len(body), 0, 0, used, 0
        )
        info = (info + masks).ljust(header_bytes, b"\0") if header_bytes > 40 else info + masks
    offset = 14 + len(info) + len(palette)
    return struct.pack("<2sIHHI", b"BM", offset + len(body), 0, 0, offset) + info + palette + body


def bmp_of(pixels: np.ndarray[Any, Any], **options: Any) -> bytes:
    """A 24- or 32-bit BMP of an (h, w, 3 or 4) uint8 RGB or RGBA array."""
    channels = pixels.shape[2]
    swapped = pixels[:, :, [2, 1, 0, 3][:channels]]
    return bmp([row.tobytes() for row in swapped], pixels.shape[1], bits=8 * channels, **options)


def webp_chunks(webp: bytes) -> list[Chunk]:
    """The chunks of a WebP file."""
    found, position = [], 12
    while position + 8 <= len(webp):
        (length,) = struct.unpack_from("<I", webp, position + 4)
        found.append((webp[position : position + 4], webp[position + 8 : position + 8 + length]))
        position += 8 + length + length % 2
    return found


def webp_file(chunks: Sequence[Chunk]) -> bytes:
    """A WebP file of chunks, odd ones padded."""
    body = b"WEBP" + b"".join(
        kind + struct.pack("<I", len(payload)) + payload + b"\0" * (len(payload) % 2) for kind, payload in chunks
    )
    return b"RIFF" + struct.pack("<I", len(body)) + body


def webp_extended(chunks: Sequence[Chunk], size_hw: tuple[int, int], flags: int) -> bytes:
    """A WebP with an extended header. Flags: 0x20 ICC, 0x10 alpha, 0x08 EXIF, 0x04 XMP, 0x02 animation."""
    height, width = size_hw
    header = struct.pack("<I", flags) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return webp_file([(b"VP8X", header), *chunks])
