"""PNG (W3C, third edition): every chunk is visited, so that a cut file is found and metadata can be left out."""

from __future__ import annotations

import struct
import zlib

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
)

_SIGNATURE_BYTES, _HEADER_END = 8, 33
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_BITS_OF_EQUAL_EFFORT = 6
"""A pixel of so many bits takes as long as a baseline JPEG's."""
_INTERLACED_EFFORT = 2
_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_GRAY_COLOR, _PALETTE_COLOR = 0, 3
_ANCILLARY_BIT = 0x20
_MAX_NAME_BYTES, _PROFILE_BEGINNING = 80, 4096


def read(view: memoryview, check_size: SizeCheck) -> Header:
    """Read a PNG header and check that its chunks are complete."""
    length, kind, width, height, bits, color, compression, filters, interlace = struct.unpack_from(
        ">I4sIIBBBBB", view, _SIGNATURE_BYTES
    )
    if kind != b"IHDR" or length != 13:
        raise corrupt("the PNG does not begin with an IHDR chunk")
    check_size(height, width)
    if bits not in _DEPTHS.get(color, ()) or compression or filters or interlace > 1:
        raise corrupt(
            f"the PNG header declares colour type {color}, {bits} bit, compression {compression}, filter {filters}, "
            f"interlace {interlace}, which no PNG has"
        )
    position, orientation, has_data, has_palette, has_exif = _HEADER_END, 1, False, False, False
    profile: Profile | None = None
    is_animated = False
    dropped: list[Span] = []
    for _ in parts_of_a_file():
        length, kind = struct.unpack_from(">I4s", view, position)
        end = position + 12 + length
        if end > len(view):
            raise corrupt(f"the PNG is cut short: its {_name(kind)} chunk ends at byte {end} of {len(view)}")
        if kind == b"IDAT":
            has_data = True
        elif kind == b"IEND":
            break
        elif kind == b"PLTE" and color == _PALETTE_COLOR and not has_palette and not has_data:
            has_palette = True
        elif kind == b"eXIf" and not has_exif:
            orientation, has_exif = exif_orientation(view[position + 8 : end - 4]), True
            dropped.append((position, end))
        elif kind[0] & _ANCILLARY_BIT or (kind == b"PLTE" and color != _PALETTE_COLOR):
            dropped.append((position, end))
            if kind == b"iCCP" and profile is None and not has_data:
                profile = _profile_in(view[position + 8 : end - 4])
            is_animated = is_animated or kind == b"acTL"
        else:
            raise corrupt(f"the PNG has an unknown or misplaced critical chunk {_name(kind)}")
        position = end
    else:
        raise corrupt(f"the PNG has more than {MAX_PARTS} chunks")
    if not has_data or (color == _PALETTE_COLOR and not has_palette):
        raise corrupt("the PNG has no pixel data or no palette")
    kept = kept_around(dropped, beginning=_HEADER_END, end=end)
    effort = max(1.0, bits * _CHANNELS[color] / _BITS_OF_EQUAL_EFFORT) * (_INTERLACED_EFFORT if interlace else 1)
    return Header(
        "PNG",
        height,
        width,
        orientation,
        kept,
        effort=effort,
        profile=profile,
        bits=max(bits, 8),
        is_gray=color == _GRAY_COLOR,
        has_more_frames=is_animated,
    )


def _profile_in(chunk: memoryview) -> Profile:
    """How the profile in an iCCP chunk calls itself: its name stands before it, and near its beginning."""
    named = bytes(chunk[:_MAX_NAME_BYTES])
    begins = named.find(b"\0") + 2
    try:
        beginning = zlib.decompressobj().decompress(chunk[begins:], _PROFILE_BEGINNING)
    except zlib.error:
        beginning = b""
    return profile_in(memoryview(named[:begins] + beginning))


def _name(kind: bytes) -> str:
    return kind.decode("ascii", "replace") if kind.isalpha() else f"0x{kind.hex()}"
