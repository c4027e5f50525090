"""The file that decoders get to see: the same compressed pixels, and only the orientation that the header reader found.

Decoders disagree about metadata: which of two EXIF blocks counts, whether one may follow the pixels, what a damaged one
means, whether XMP or a text chunk may rotate. nvImageCodec 0.9 also refuses a WebP whose EXIF chunk follows a chunk of
odd length. With a single minimal block of ours there is nothing left to disagree about.
"""

from __future__ import annotations

import struct
import zlib

from onestream.preprocess.headers.base import Encoded, Header, byte_view
from onestream.preprocess.headers.webp import ALPHA_FLAG, EXIF_FLAG

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
