"""Whether a video file ends before its container says: one rule, for the training loader and for streams.

FFmpeg takes the end of a file that was cut short for a normal one, so what the container declares is looked up here.
"""

from __future__ import annotations

import io
from typing import BinaryIO

TRUNCATED = "truncated"
"""The word for such a file, in every message and result."""

_HEAD_BYTES = 4096
_TS_PACKET, _TS_SYNC = 188, 0x47
"""Bytes of a transport stream's packet, and the first of each (ISO/IEC 13818-1, 2.4.3.2)."""

_ISO_FIRST = (b"ftyp", b"styp", b"moov", b"mdat", b"wide", b"free", b"skip")
_ISO_MEDIA = (b"moov", b"moof", b"mdat")
"""Boxes that an MP4 or QuickTime file begins with, and those that lead to pictures or hold them."""


def truncation(content: BinaryIO | None, *, packets: int, last_incomplete: bool, indexed: int = 0) -> str | None:
    """How it shows that a file was cut short, as a clause that begins with ``TRUNCATED``; None where nothing shows it.

    ``content``: the file, which is moved within; None where it cannot be, as in a pipe. So many ``packets`` of video
    were read up to the end. ``last_incomplete``: less of the last of them was there than the container declares.
    ``indexed``: how many an index of the container lists; 0 where none lists all.
    """
    if content is not None:
        size = content.seek(0, io.SEEK_END)
        declared = declared_bytes(content)
        if declared is not None and size < declared:
            return f"{TRUNCATED}: the file ends after {size} of {declared} bytes"
    if last_incomplete:
        return f"{TRUNCATED}: the file ends within its picture {packets}"
    if packets < indexed:
        return f"{TRUNCATED}: the file ends after {packets} of {indexed} pictures"
    return None


def declared_bytes(content: BinaryIO) -> int | None:
    """How long an MP4, Matroska, AVI or MPEG-TS file says that it is at least; None where it does not say."""
    head = _read(content, 0, _HEAD_BYTES)
    if head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        return 8 + int.from_bytes(head[4:8], "little")
    if head[:4] == b"\x1a\x45\xdf\xa3":
        return _of_matroska(head)
    if head[4:8] in _ISO_FIRST:
        return _of_iso(content)
    if len(head) > 2 * _TS_PACKET and {head[0], head[_TS_PACKET], head[2 * _TS_PACKET]} == {_TS_SYNC}:
        return _of_transport_stream(content)
    return None


def _of_matroska(head: bytes) -> int | None:
    """The end of the segment, which holds everything but the head."""
    length, at = _ebml_size(head, 4)
    at += length or 0
    if head[at : at + 4] != b"\x18\x53\x80\x67":
        return None
    length, at = _ebml_size(head, at + 4)
    return None if length is None else at + length


def _ebml_size(head: bytes, at: int) -> tuple[int | None, int]:
    """An EBML variable-length size (RFC 8794, 4) and where it ends; None where the size is unknown."""
    first = head[at] if at < len(head) else 0
    if first == 0:
        return None, at
    width = 9 - first.bit_length()
    value = int.from_bytes(head[at : at + width], "big") & ((1 << 7 * width) - 1)
    return (None if value == (1 << 7 * width) - 1 else value), at + width


def _of_iso(content: BinaryIO) -> int:
    """The end of the last box that is there in full or in part and matters (ISO/IEC 14496-12, 4.2)."""
    size = content.seek(0, io.SEEK_END)
    end = at = 0
    while at <= size - 8:
        header = _read(content, at, 16)
        length, kind = int.from_bytes(header[:4], "big"), header[4:8]
        if length == 1:
            length = int.from_bytes(header[8:16], "big")
        # A box of length 0 reaches to the end of the file; anything else below 8 is no box.
        if length < 8:
            break
        at += length
        if kind in _ISO_MEDIA:
            end = at
    return end


def _of_transport_stream(content: BinaryIO) -> int:
    """Whole packets only; what follows the last one and is no packet does not count."""
    size = content.seek(0, io.SEEK_END)
    last = size // _TS_PACKET * _TS_PACKET
    cut = _read(content, last, 1) == bytes([_TS_SYNC]) and _read(content, last - _TS_PACKET, 1) == bytes([_TS_SYNC])
    return last + _TS_PACKET if cut else last


def _read(content: BinaryIO, at: int, length: int) -> bytes:
    content.seek(at)
    return content.read(length)
