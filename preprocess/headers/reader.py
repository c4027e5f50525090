"""Format, size and orientation of an encoded image, read from its header without decoding it.

Every backend computes its geometry from these numbers before the pixels exist. The readers follow the
published layouts and are strict: a file that is cut short, and every form that the backends would not decode alike, is
refused here by name.

Decoders get to see a file with the same compressed pixels, and only the orientation that was found here. They disagree
about metadata: which of two EXIF blocks counts, whether one may follow the pixels, what a damaged one means, whether
XMP or a text chunk may rotate. nvImageCodec 0.9 also refuses a WebP whose EXIF chunk follows a chunk of odd length.
With a single minimal block of ours there is nothing left to disagree about.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import get_args

from onestream.preprocess.errors import BadImage
from onestream.preprocess.headers import bmp, by_pillow, jpeg, png, tiff, webp
from onestream.preprocess.headers.base import (
    FORMATS,
    Checked,
    Encoded,
    Header,
    ImageFormat,
    SizeCheck,
    accept_size,
    byte_view,
)
from onestream.preprocess.headers.webp import ALPHA_FLAG, EXIF_FLAG

__all__ = ["FORMATS", "Checked", "Encoded", "Header", "ImageFormat", "byte_view", "for_decoders", "read_header"]

_READERS: tuple[tuple[bytes, ImageFormat, Callable[[memoryview, SizeCheck], Header]], ...] = (
    (b"\xff\xd8\xff", "JPEG", jpeg.read),
    (b"\x89PNG\r\n\x1a\n", "PNG", png.read),
    (b"RIFF", "WebP", webp.read),
    (b"II*\x00", "TIFF", tiff.read),
    (b"MM\x00*", "TIFF", tiff.read),
    (b"BM", "BMP", bmp.read),
)


_ALL = get_args(ImageFormat)


def read_header(data: Encoded, check_size: SizeCheck = accept_size, formats: tuple[ImageFormat, ...] = _ALL) -> Header:
    """Read the header of an encoded image, of GIF, AVIF and HEIC only where ``formats`` names them.

    ``check_size`` is called with (height, width) as soon as they are known and may raise ``BadImage``, so that a file
    that declares too much is refused for that reason, whatever else is wrong with it.

    Raises ``BadImage`` with code ``unsupported_format`` for anything else and for forms of these formats that are not
    decoded, and with ``corrupt`` where the file is cut short or contradicts itself.
    """
    if isinstance(data, Checked):
        return data.header
    view = byte_view(data)
    head = bytes(view[:8])

    def positive(height: int, width: int) -> None:
        if height < 1 or width < 1:
            raise BadImage("corrupt", f"the header declares {width}x{height} pixels")
        check_size(height, width)

    for magic, name, read in _READERS:
        if head.startswith(magic):
            try:
                return read(view, positive)
            except (struct.error, IndexError, ValueError):
                raise BadImage("corrupt", f"the {name} header is cut short at {len(view)} bytes") from None
    described = _describe(view)
    for pillows in _BY_PILLOW:
        if described == pillows and pillows in formats:
            return by_pillow.read(view, positive, pillows)
    raise BadImage("unsupported_format", f"got {described}; allowed: {', '.join(formats)}{_ADVICE.get(described, '')}")


_BY_PILLOW: tuple[ImageFormat, ...] = ("GIF", "AVIF", "HEIC")
_ADVICE: dict[str, str] = {name: f" ({name} where limits.formats names it)" for name in _BY_PILLOW} | {
    "HEIF": " (send it as JPEG)"
}
_MAGIC_NAMES = (
    (b"GIF8", "GIF"),
    (b"\x00\x00\x00\x0cjP  \r\n\x87\n", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
    (b"\x00\x00\x00\x0cJXL \r\n\x87\n", "JPEG XL"),
    (b"\xff\x0a", "JPEG XL"),
    (b"%PDF-", "PDF"),
    (b"II+\x00", "BigTIFF"),
    (b"MM\x00+", "BigTIFF"),
)
_ISO_BRANDS = {b"avif": "AVIF", b"avis": "AVIF", b"heic": "HEIC", b"heix": "HEIC", b"mif1": "HEIF"}


def _describe(view: memoryview) -> str:
    """A short name for something that is none of the allowed formats. Never echoes content beyond four bytes."""
    head = bytes(view[:256])
    for magic, name in _MAGIC_NAMES:
        if head.startswith(magic):
            return name
    if head[4:8] == b"ftyp":
        return _ISO_BRANDS.get(head[8:12], "an ISO media file")
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith(b"<svg") or (text.startswith(b"<?xml") and b"<svg" in bytes(view[:4096]).lower()):
        return "SVG"
    if head and all(byte in b"\t\r\n" or 32 <= byte < 127 for byte in head):
        return "text"
    return f"an unknown format beginning with 0x{head[:4].hex()}"


_WEBP_FLAGS_AT = 20


def for_decoders(data: Encoded, header: Header) -> bytes | memoryview:
    """``data`` without its metadata and with the orientation of ``header``; a view where there is nothing to change."""
    view = byte_view(data)
    if not header.kept:
        return view
    beginning, *rest = [bytes(view[first:end]) for first, end in header.kept]
    own_exif = _EXIF_PART[header.format](_exif(header.orientation)) if header.orientation != 1 else b""
    if header.format == "WebP":
        flags = beginning[_WEBP_FLAGS_AT] & ALPHA_FLAG | (EXIF_FLAG if own_exif else 0)
        riff_bytes = len(beginning) + len(own_exif) + sum(map(len, rest)) - 8
        beginning = struct.pack("<4sI", b"RIFF", riff_bytes) + beginning[8:20] + bytes([flags]) + beginning[21:]
    return b"".join((beginning, own_exif, *rest))


def _exif(orientation: int) -> bytes:
    """Big-endian TIFF structure: one directory with one SHORT, tag 0x0112 (EXIF 2.3, section 4.6.4)."""
    return struct.pack(">2sHIHHHIHHI", b"MM", 42, 8, 1, 0x0112, 3, 1, orientation, 0, 0)


def _jpeg_segment(exif: bytes) -> bytes:
    return struct.pack(">HH6s", 0xFFE1, 2 + 6 + len(exif), b"Exif\x00\x00") + exif


def _png_chunk(exif: bytes) -> bytes:
    return struct.pack(">I4s", len(exif), b"eXIf") + exif + struct.pack(">I", zlib.crc32(b"eXIf" + exif))


def _webp_chunk(exif: bytes) -> bytes:
    return struct.pack("<4sI", b"EXIF", len(exif)) + exif


_EXIF_PART = {"JPEG": _jpeg_segment, "PNG": _png_chunk, "WebP": _webp_chunk}
