"""JPEG (ITU-T T.81 annex B): markers up to the first scan."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from onestream.preprocess.headers import base
from onestream.preprocess.headers.base import (
    MAX_PARTS,
    Header,
    Profile,
    SizeCheck,
    Span,
    corrupt,
    exif_orientation,
    kept_around,
    parts_of_a_file,
    profile_in,
    unsupported,
)

_PROGRESSIVE_FRAME = 0xC2
_HUFFMAN_FRAMES = (0xC0, 0xC1, _PROGRESSIVE_FRAME)
_TABLES = (0xC4, 0xDB, 0xDD)
_COMMENT, _APP0, _APP15, _METADATA_APP, _PROFILE_APP, _ADOBE_APP = 0xFE, 0xE0, 0xEF, 0xE1, 0xE2, 0xEE
_SCAN = 0xDA
_ADOBE_BYTES, _JFIF_BYTES = 12, 14
_MAX_SCANS = 64
"""Encoders write about ten. Each costs a pass over all pixels, and a file of 32 MB could hold 280,000 empty ones."""
_SCANS_OF_EQUAL_EFFORT = 6
"""So many further scans take as long as the pixels of a baseline JPEG."""
_NOT_FILL, _SCAN_MARKER, _END = re.compile(rb"[^\xff]"), re.compile(rb"\xff\xda"), re.compile(rb"\xff\xd9")


def read(view: memoryview, check_size: SizeCheck, parts: Iterator[int] | None = None) -> Header:
    """Read a JPEG header and check that the file has its end marker.

    ``parts`` is what is left of ``parts_of_a_file`` where the JPEG is inside another file.
    """
    position, height, width, components, orientation = 2, 0, 0, b"", 1
    scans, has_exif, progressive, jfif = 1, False, False, False
    adobe: int | None = None
    profile: Profile | None = None
    dropped: list[Span] = []
    for _ in parts_of_a_file() if parts is None else parts:
        if view[position] != 0xFF:
            raise corrupt(f"expected a JPEG marker at byte {position}, got 0x{view[position]:02x}")
        marker = view[position + 1]
        if marker == 0xFF:
            code = base.search(_NOT_FILL, view, position)
            position = code.start() - 1 if code else len(view)
            marker = view[position + 1]
        first, end = position + 4, position + 2 + struct.unpack_from(">H", view, position + 2)[0]
        if end < first:
            raise corrupt(f"the JPEG segment at byte {position} declares {end - position - 2} bytes; it needs 2")
        if marker == _SCAN:
            break
        if marker == _METADATA_APP:
            if not has_exif and bytes(view[first : first + 6]) == b"Exif\x00\x00":
                orientation, has_exif = exif_orientation(view[first + 6 : end]), True
            dropped.append((position, end))
        elif marker == _PROFILE_APP:
            if profile is None and bytes(view[first : min(first + 12, end)]) == b"ICC_PROFILE\x00":
                profile = profile_in(view[first:end])
        elif marker == _ADOBE_APP:
            if end - first >= _ADOBE_BYTES and bytes(view[first : first + 5]) == b"Adobe":
                adobe = view[first + _ADOBE_BYTES - 1]
        elif marker == _APP0:
            jfif = jfif or (end - first >= _JFIF_BYTES and bytes(view[first : first + 5]) == b"JFIF\x00")
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            if components:
                raise corrupt("the JPEG has two frame headers")
            height, width, components = _frame(view, marker, first)
            progressive = marker == _PROGRESSIVE_FRAME
            check_size(height, width)
        elif not (_APP0 <= marker <= _APP15 or marker in _TABLES or marker == _COMMENT):
            raise corrupt(f"unexpected JPEG marker 0xff{marker:02x} at byte {position}")
        position = end
    else:
        raise corrupt(f"the file has more than {MAX_PARTS} segments before its data")
    if not components:
        raise corrupt("the JPEG has no frame header before its data")
    if len(components) == 4 and adobe is None:
        raise unsupported("a CMYK JPEG without an Adobe marker, which would say if it is inverted", "one with it")
    if progressive or view[first] < len(components):
        scans = _count_scans(view, end)
    if not _END.match(view, len(view) - 2) and not base.search(_END, view, end):
        raise corrupt(f"the JPEG is cut short: no end marker in its {len(view)} bytes")
    kept = kept_around(dropped, beginning=2, end=len(view))
    return Header(
        "JPEG",
        height,
        width,
        orientation,
        kept,
        _gray_or_ycc(components, jfif=jfif, adobe=adobe),
        1 + (scans - 1) / _SCANS_OF_EQUAL_EFFORT,
        profile,
    )


def _count_scans(view: memoryview, position: int) -> int:
    """The number of scans of a JPEG; the first one's data begins at ``position``."""
    scans = 1
    while marker := base.search(_SCAN_MARKER, view, position):
        scans, position = scans + 1, marker.end()
        if scans > _MAX_SCANS:
            raise unsupported(f"a JPEG with more than {_MAX_SCANS} scans", f"up to {_MAX_SCANS}")
    return scans


def _gray_or_ycc(components: bytes, *, jfif: bool, adobe: int | None) -> bool:
    """How libjpeg guesses the colours (``default_decompress_parms`` in its jdapimin.c); ``adobe`` is the transform."""
    if len(components) != 3:
        return len(components) == 1
    if jfif:
        return True
    return components != b"RGB" if adobe is None else adobe != 0


def _frame(view: memoryview, marker: int, first: int) -> tuple[int, int, bytes]:
    """Height, width and the identifiers of the components."""
    precision, height, width, components = struct.unpack_from(">BHHB", view, first)
    if marker not in _HUFFMAN_FRAMES:
        raise unsupported(
            f"a JPEG with frame type 0xff{marker:02x} (lossless, hierarchical or arithmetic)", "baseline, progressive"
        )
    if precision != 8:
        raise unsupported(f"a {precision}-bit JPEG", "8-bit JPEG")
    if components not in (1, 3, 4):
        raise unsupported(f"a JPEG with {components} components", "1 (gray), 3 (colour) or 4 (CMYK)")
    identifiers = bytes(view[first + 6 : first + 6 + 3 * components : 3])
    if len(identifiers) != components:
        raise corrupt("the JPEG's frame header is cut short")
    return height, width, identifiers
