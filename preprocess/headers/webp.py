"""WebP (RFC 9649): a RIFF container whose first chunk is the picture or, in the extended form, a header."""

from __future__ import annotations

import struct

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

EXTENDED_HEADER_END = 30
ANIMATION_FLAG, EXIF_FLAG, ALPHA_FLAG = 0x02, 0x08, 0x10
_FIRST_CHUNK = 12
_EFFORT = 4.0
_PICTURES = (b"VP8 ", b"VP8L")


def read(view: memoryview, check_size: SizeCheck) -> Header:
    """Read a WebP header and check that its chunks are complete."""
    (riff_bytes,) = struct.unpack_from("<I", view, 4)
    if bytes(view[8:12]) != b"WEBP":
        raise unsupported("a RIFF file that is not WebP", "WebP")
    kind = bytes(view[_FIRST_CHUNK : _FIRST_CHUNK + 4])
    if kind in _PICTURES:
        canvas = _picture_size(view, kind, _FIRST_CHUNK)
    elif kind == b"VP8X":
        canvas = int.from_bytes(view[24:27], "little") + 1, int.from_bytes(view[27:30], "little") + 1
    else:
        raise corrupt(f"the WebP begins with an unknown chunk 0x{kind.hex()}")
    check_size(canvas[1], canvas[0])
    file_end = 8 + riff_bytes
    if file_end > len(view):
        raise corrupt(f"the WebP is cut short: it declares {file_end} bytes and has {len(view)}")
    _, end = _chunk(view, _FIRST_CHUNK, file_end)
    if kind != b"VP8X":
        return Header("WebP", canvas[1], canvas[0], effort=_EFFORT)
    flags = view[20]
    if end != EXTENDED_HEADER_END:
        raise corrupt(f"the WebP's extended header has {end - _FIRST_CHUNK - 8} bytes; it needs 10")
    position, orientation, has_exif, pictures, frames = end, 1, False, 0, 0
    profile: Profile | None = None
    dropped: list[Span] = []
    for _ in parts_of_a_file():
        if position + 8 > file_end:
            break
        kind, end = _chunk(view, position, file_end)
        if kind in _PICTURES:
            pictures += 1
            if pictures == 1 and _picture_size(view, kind, position) != canvas:
                raise corrupt("the WebP's picture and canvas have different sizes")
        elif kind == b"ANMF" and flags & ANIMATION_FLAG:
            frames += 1
        elif kind != b"ALPH" or pictures:
            dropped.append((position, end))
        if kind == b"ICCP" and profile is None:
            profile = profile_in(view[position + 8 : end])
        if kind == b"EXIF" and flags & EXIF_FLAG and not has_exif:
            block = view[position + 8 : end]
            block = block[6:] if bytes(block[:6]) == b"Exif\x00\x00" else block
            orientation, has_exif = exif_orientation(block), True
        position = end
    else:
        raise corrupt(f"the WebP has more than {MAX_PARTS} chunks")
    if frames and not pictures:
        # Only Pillow puts the first frame onto the canvas.
        more = frames > 1
        return Header(
            "WebP",
            canvas[1],
            canvas[0],
            orientation,
            effort=_EFFORT,
            profile=profile,
            has_more_frames=more,
            by_pillow=True,
        )
    if pictures != 1:
        raise corrupt(f"the WebP has {pictures} pictures; a still image has 1")
    kept = kept_around(dropped, beginning=EXTENDED_HEADER_END, end=position)
    return Header("WebP", canvas[1], canvas[0], orientation, kept, effort=_EFFORT, profile=profile)


def _chunk(view: memoryview, position: int, file_end: int) -> tuple[bytes, int]:
    """Kind and end of the chunk at ``position``, its padding included."""
    kind, length = struct.unpack_from("<4sI", view, position)
    end = position + 8 + length + length % 2
    if end > file_end:
        raise corrupt(f"the WebP is cut short: a chunk ends at byte {end} of {file_end}")
    return kind, end


def _picture_size(view: memoryview, kind: bytes, position: int) -> tuple[int, int]:
    """(width, height) of a VP8 key frame or a lossless picture."""
    if kind == b"VP8 ":
        if bytes(view[position + 11 : position + 14]) != b"\x9d\x01\x2a":
            raise corrupt("the WebP has no VP8 key frame")
        width, height = struct.unpack_from("<HH", view, position + 14)
        return width & 0x3FFF, height & 0x3FFF
    (bits,) = struct.unpack_from("<I", view, position + 9)
    return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
