"""One repair: nvImageCodec 0.9 cannot read a WebP whose EXIF chunk follows a chunk of odd length."""

from __future__ import annotations

import struct

from preprocess.header import Encoded, Header, byte_view


def with_leading_exif(data: Encoded, header: Header) -> bytes:
    """Rewrite a WebP so that a minimal EXIF chunk with its orientation stands first, where every parser finds it.

    The compressed pixels are copied unchanged. ``header.exif_span`` must not be None.
    """
    assert header.exif_span is not None
    view = byte_view(data)
    first, end = header.exif_span
    # Big-endian TIFF: one directory with one SHORT, tag 0x0112 (EXIF 2.3, section 4.6.4).
    exif = struct.pack(">2sHIHHHIHHI", b"MM", 42, 8, 1, 0x0112, 3, 1, header.orientation, 0, 0)
    chunk = struct.pack("<4sI", b"EXIF", len(exif)) + exif
    extended_header_end = 30
    body = bytes(view[8:extended_header_end]) + chunk + bytes(view[extended_header_end:first]) + bytes(view[end:])
    return b"RIFF" + struct.pack("<I", len(body)) + body
