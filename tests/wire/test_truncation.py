"""Files that end before their container says, cut at every length by what FFmpeg itself wrote."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import pytest
from clip_files import write_video
from hypothesis import given
from hypothesis import strategies as st

from onestream.wire.truncation import declared_bytes, truncation

COUNT = 6


@pytest.mark.parametrize(
    ("name", "codec", "container_options"),
    [
        ("a.mp4", "libx264", {"movflags": "faststart"}),
        ("a.mov", "libx264", {}),
        ("fragments.mp4", "libx264", {"movflags": "frag_keyframe+empty_moov+skip_trailer"}),
        ("a.mkv", "libx264", {}),
        ("a.webm", "libvpx-vp9", {}),
        ("a.avi", "mjpeg", {}),
        ("a.ts", "libx264", {}),
    ],
)
def test_a_whole_file_is_whole_and_a_cut_one_is_not(
    tmp_path: Path, name: str, codec: str, container_options: dict[str, str]
) -> None:
    more = {"container_options": container_options, "pixel_format": "yuvj420p" if codec == "mjpeg" else "yuv420p"}
    data = write_video(tmp_path / name, codec, count=COUNT, options={"g": "3"}, **more).read_bytes()
    assert truncation(io.BytesIO(data), packets=COUNT, last_incomplete=False) is None
    borders = whole_at(name, data)
    for length in range(1000, len(data)):
        cut = truncation(io.BytesIO(data[:length]), packets=1, last_incomplete=False)
        assert (cut is None) == (length in borders), length
        assert cut is None or cut.startswith(f"truncated: the file ends after {length} of ")


def whole_at(name: str, data: bytes) -> set[int]:
    """Lengths at which a cut file looks like a shorter whole one: containers that are made of pieces."""
    if name == "a.ts":
        return set(range(0, len(data), 188))
    if name == "fragments.mp4":
        # Less than the head of the next piece says nothing of it.
        starts = [at - 4 for at in range(len(data)) if data[at : at + 4] in (b"moof", b"mdat")]
        return {start + more for start in starts for more in range(8)}
    if name == "a.mov":
        # The index follows its pictures, and without it FFmpeg opens nothing.
        at = data.rfind(b"moov") - 4
        return set(range(at, at + 8))
    return set()


def test_what_the_packets_tell() -> None:
    assert truncation(None, packets=3, last_incomplete=False, indexed=3) is None
    assert truncation(None, packets=3, last_incomplete=False) is None
    cut = truncation(None, packets=3, last_incomplete=False, indexed=8)
    assert cut == "truncated: the file ends after 3 of 8 pictures"
    assert truncation(None, packets=3, last_incomplete=True) == "truncated: the file ends within its picture 3"


EBML = b"\x1a\x45\xdf\xa3\x83abc\x18\x53\x80\x67"
FTYP = struct.pack(">I4s8s", 16, b"ftyp", b"isomiso2")
PACKETS = (b"\x47" + bytes(187)) * 4


@pytest.mark.parametrize(
    ("data", "length"),
    [
        (b"RIFF\x10\x00\x00\x00AVI LIST", 24),
        (EBML + b"\x40\xff", 8 + 4 + 2 + 255),
        # Written by who does not know the length yet.
        (EBML + b"\x01" + b"\xff" * 7, None),
        (EBML, None),
        (b"", None),
        (b"\x00\x00\x00\x01\x67 raw H.264", None),
        (FTYP + struct.pack(">I4s", 100, b"mdat"), 116),
        (FTYP + struct.pack(">I4sQ", 1, b"mdat", 1 << 33), 16 + (1 << 33)),
        # A length of 0 is up to the end of the file, wherever that is.
        (FTYP + struct.pack(">I4s", 0, b"mdat") + b"x" * 50, 0),
        # Padding and an index for seeking hold no picture, and what is no box declares nothing.
        (FTYP + struct.pack(">I4s", 100, b"free"), 0),
        (FTYP + struct.pack(">I4s", 9, b"mdat") + b"x" + b"\x00\x00\x00\x03ID3 of somebody", 25),
        # What follows a transport stream and is none of its packets does not count.
        (PACKETS + b"\x00" * 50, len(PACKETS)),
        (PACKETS + b"\x47" + b"\x00" * 50, len(PACKETS) + 188),
    ],
)
def test_declared_length_is_read_where_there_is_one(data: bytes, length: int | None) -> None:
    assert declared_bytes(io.BytesIO(data)) == length


@given(
    st.sampled_from([b"", b"\x00\x00\x00\x10ftypisomiso2", b"\x1a\x45\xdf\xa3", b"RIFF", b"\x47" + bytes(187)]),
    st.lists(st.binary(max_size=24) | st.just(struct.pack(">I4sQ", 1, b"mdat", 2**64 - 1)), max_size=20).map(b"".join),
)
def test_whatever_a_file_holds_is_looked_through(head: bytes, rest: bytes) -> None:
    length = declared_bytes(io.BytesIO(head + rest))
    assert length is None or length >= 0
