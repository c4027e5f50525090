"""Format, size and orientation of an encoded image, read from its header without decoding it.

Every backend computes its geometry from these numbers before the pixels exist. The parsers follow the published
layouts: JPEG (ITU-T T.81 annex B), EXIF 2.3 section 4.6, PNG (W3C, chunks IHDR and eXIf), WebP (RFC 9649), TIFF 6.0
section 2 and the BITMAPINFOHEADER family.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import numpy.typing as npt

from preprocess.errors import BadImage

Encoded = bytes | bytearray | memoryview | npt.NDArray[np.uint8]
"""The bytes of an image file."""

ImageFormat = Literal["JPEG", "PNG", "WebP", "TIFF", "BMP"]
FORMATS: tuple[ImageFormat, ...] = ("JPEG", "PNG", "WebP", "TIFF", "BMP")

_ORIENTATION_TAG = 0x0112
_TIFF_WIDTH_TAG, _TIFF_HEIGHT_TAG = 0x0100, 0x0101
_TIFF_SHORT, _TIFF_LONG = 3, 4
_JPEG_END = b"\xff\xd9"


@dataclass(frozen=True, slots=True)
class Header:
    """What an encoded image says about itself. Sizes are as stored, before the EXIF orientation is applied."""

    format: ImageFormat
    height: int
    width: int
    orientation: int = 1
    """EXIF orientation, 1 to 8."""
    exif_span: tuple[int, int] | None = None
    """Byte range of a WebP file's EXIF chunk, header and padding included; None elsewhere."""

    @property
    def oriented_hw(self) -> tuple[int, int]:
        """(height, width) in pixels after the EXIF orientation is applied."""
        return (self.width, self.height) if self.orientation >= 5 else (self.height, self.width)


def byte_view(data: Encoded) -> memoryview:
    """The bytes of an encoded image, without a copy."""
    # NumPy declares the buffer protocol to type checkers from Python 3.12 on only.
    return memoryview(cast(bytes, data)).cast("B")


def read_header(data: Encoded) -> Header:
    """Read the header of an encoded image.

    Raises ``BadImage`` with code ``unsupported_format`` for anything but JPEG, PNG, WebP, TIFF and BMP, and with
    ``corrupt`` where the header is cut short or declares an impossible size.
    """
    view = byte_view(data)
    for magic, parse in _PARSERS:
        if bytes(view[: len(magic)]) == magic:
            try:
                header = parse(view)
            except (struct.error, IndexError):
                name = "WebP" if magic == b"RIFF" else parse.__name__.removeprefix("_read_").upper()
                raise BadImage("corrupt", f"the {name} header is cut short at {len(view)} bytes") from None
            if header.height < 1 or header.width < 1:
                size = f"{header.width}x{header.height}"
                raise BadImage("corrupt", f"the {header.format} header declares {size} pixels")
            return header
    raise BadImage("unsupported_format", f"got {_describe(view)}; allowed: {', '.join(FORMATS)}")


def _read_jpeg(view: memoryview) -> Header:
    position, orientation = 2, 1
    while True:
        while view[position] == 0xFF and view[position + 1] == 0xFF:
            position += 1
        if view[position] != 0xFF:
            raise BadImage("corrupt", f"expected a JPEG marker at byte {position}, got 0x{view[position]:02x}")
        marker = view[position + 1]
        if marker == 0x01 or 0xD0 <= marker <= 0xD7:
            position += 2
            continue
        if marker in (0xD9, 0xDA):
            raise BadImage("corrupt", "the JPEG has no frame header before its data")
        (length,) = struct.unpack_from(">H", view, position + 2)
        if marker == 0xE1 and bytes(view[position + 4 : position + 10]) == b"Exif\x00\x00":
            orientation = _exif_orientation(view[position + 10 : position + 2 + length])
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            precision, height, width = struct.unpack_from(">BHH", view, position + 4)
            if precision != 8:
                raise BadImage("unsupported_format", f"got a {precision}-bit JPEG; allowed: 8-bit JPEG")
            complete = bytes(view[-2:]) == _JPEG_END or bytes(view).rfind(_JPEG_END) > position
            if not complete:
                raise BadImage("corrupt", f"the JPEG is cut short: no end marker in its {len(view)} bytes")
            return Header("JPEG", height, width, orientation)
        position += 2 + length


def _read_png(view: memoryview) -> Header:
    if bytes(view[12:16]) != b"IHDR":
        raise BadImage("corrupt", "the PNG does not begin with an IHDR chunk")
    width, height = struct.unpack_from(">II", view, 16)
    position = 8
    orientation = 1
    while position + 8 <= len(view):
        (length,) = struct.unpack_from(">I", view, position)
        kind = bytes(view[position + 4 : position + 8])
        if kind == b"eXIf":
            orientation = _exif_orientation(view[position + 8 : position + 8 + length])
        if kind in (b"IDAT", b"IEND"):
            break
        position += 12 + length
    return Header("PNG", height, width, orientation)


def _read_webp(view: memoryview) -> Header:
    if bytes(view[8:12]) != b"WEBP":
        raise BadImage("unsupported_format", f"got a RIFF file that is not WebP; allowed: {', '.join(FORMATS)}")
    kind = bytes(view[12:16])
    if kind == b"VP8 ":
        if bytes(view[23:26]) != b"\x9d\x01\x2a":
            raise BadImage("corrupt", "the WebP has no VP8 key frame")
        width, height = (size & 0x3FFF for size in struct.unpack_from("<HH", view, 26))
        return Header("WebP", height, width)
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", view, 21)
        return Header("WebP", (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1)
    if kind != b"VP8X":
        raise BadImage("corrupt", f"the WebP begins with an unknown chunk {kind!r}")
    if view[20] & 0x02:
        raise BadImage("unsupported_format", "got an animated WebP; allowed: still images")
    width = int.from_bytes(view[24:27], "little") + 1
    height = int.from_bytes(view[27:30], "little") + 1
    position = 12
    while position + 8 <= len(view):
        (length,) = struct.unpack_from("<I", view, position + 4)
        end = position + 8 + length + length % 2
        if bytes(view[position : position + 4]) == b"EXIF":
            exif = view[position + 8 : position + 8 + length]
            exif = exif[6:] if bytes(exif[:6]) == b"Exif\x00\x00" else exif
            return Header("WebP", height, width, _exif_orientation(exif), (position, min(end, len(view))))
        position = end
    return Header("WebP", height, width)


def _read_tiff(view: memoryview) -> Header:
    tags = _tiff_tags(view)
    if _TIFF_WIDTH_TAG not in tags or _TIFF_HEIGHT_TAG not in tags:
        raise BadImage("corrupt", "the TIFF declares no size")
    orientation = tags.get(_ORIENTATION_TAG, 1)
    return Header("TIFF", tags[_TIFF_HEIGHT_TAG], tags[_TIFF_WIDTH_TAG], _valid_orientation(orientation))


def _read_bmp(view: memoryview) -> Header:
    (header_bytes,) = struct.unpack_from("<I", view, 14)
    if header_bytes == 12:
        width, height = struct.unpack_from("<HH", view, 18)
    else:
        width, height = struct.unpack_from("<ii", view, 18)
    return Header("BMP", abs(height), width)


_PARSERS: tuple[tuple[bytes, Callable[[memoryview], Header]], ...] = (
    (b"\xff\xd8\xff", _read_jpeg),
    (b"\x89PNG\r\n\x1a\n", _read_png),
    (b"RIFF", _read_webp),
    (b"II*\x00", _read_tiff),
    (b"MM\x00*", _read_tiff),
    (b"BM", _read_bmp),
)


def _exif_orientation(exif: memoryview) -> int:
    """Orientation in a TIFF-structured EXIF block; 1 where it is absent or unreadable, as decoders do."""
    try:
        return _valid_orientation(_tiff_tags(exif).get(_ORIENTATION_TAG, 1))
    except (struct.error, IndexError, BadImage):
        return 1


def _valid_orientation(value: int) -> int:
    return value if 1 <= value <= 8 else 1


def _tiff_tags(view: memoryview) -> dict[int, int]:
    """SHORT and LONG single-value tags of the first directory."""
    order = {b"II": "<", b"MM": ">"}.get(bytes(view[:2]))
    if order is None:
        raise BadImage("corrupt", "unknown TIFF byte order")
    (offset,) = struct.unpack_from(order + "I", view, 4)
    (count,) = struct.unpack_from(order + "H", view, offset)
    tags: dict[int, int] = {}
    for entry in range(offset + 2, offset + 2 + 12 * count, 12):
        tag, kind, values = struct.unpack_from(order + "HHI", view, entry)
        if values == 1 and kind in (_TIFF_SHORT, _TIFF_LONG):
            (tags[tag],) = struct.unpack_from(order + ("H" if kind == _TIFF_SHORT else "I"), view, entry + 8)
    return tags


_ISO_BRANDS = {b"avif": "AVIF", b"avis": "AVIF", b"heic": "HEIC", b"heix": "HEIC", b"mif1": "HEIF"}


def _describe(view: memoryview) -> str:
    """A short name for something that is none of the allowed formats. Never echoes content beyond four bytes."""
    head = bytes(view[:256])
    if head[:4] == b"GIF8":
        return "GIF"
    if head[4:8] == b"ftyp":
        return _ISO_BRANDS.get(head[8:12], "an ISO media file")
    if head[:12] == b"\x00\x00\x00\x0cjP  \r\n\x87\n" or head[:4] == b"\xff\x4f\xff\x51":
        return "JPEG 2000"
    if head[:5] == b"%PDF-":
        return "PDF"
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith(b"<svg") or (text.startswith(b"<?xml") and b"<svg" in bytes(view[:4096]).lower()):
        return "SVG"
    if head and all(byte in b"\t\r\n" or 32 <= byte < 127 for byte in head):
        return "text"
    return f"an unknown format beginning with 0x{head[:4].hex()}"
