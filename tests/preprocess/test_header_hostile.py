"""Header reading under attack: random, mutated, cut and endless files raise nothing but ``BadImage``.

That it takes little work is counted in ``tests/hostile/test_hostile_headers.py``.
"""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from image_files import png_of, webp_extended
from oriented_files import HEIGHT, JPEG, ORIENTED, PIXELS, WIDTH
from sample_images import CONVERTED, PLAIN, photo, pillow_oriented

from onestream.preprocess import BadImage
from onestream.preprocess.headers.base import MAX_PARTS
from onestream.preprocess.headers.reader import Header, for_decoders, read_header

ALL_FILES = [make(photo("chelsea").resize((61, 47))) for make in (PLAIN | CONVERTED).values()] + [
    make(6, "<") for make in ORIENTED.values()
]


def outcome(data: bytes) -> Header | BadImage:
    """Read a header; anything but a header or ``BadImage`` fails the test."""
    try:
        result: Header | BadImage = read_header(data)
        bytes(for_decoders(data, result))
    except BadImage as error:
        result = error
    if isinstance(result, BadImage):
        assert result.reason.isprintable()
        assert "/" not in result.reason
        assert len(result.reason) < 400
    return result


@given(
    magic=st.sampled_from([b"", JPEG[:3], b"\x89PNG\r\n\x1a\n", b"RIFF\x40\0\0\0WEBP", b"II*\0", b"MM\0*", b"BM"]),
    body=st.binary(max_size=300),
)
def test_random_bytes_raise_nothing_else(magic: bytes, body: bytes) -> None:
    outcome(magic + body)


@given(data=st.data())
def test_mutated_files_raise_nothing_else(data: st.DataObject) -> None:
    file = bytearray(data.draw(st.sampled_from(ALL_FILES)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, min(len(file) - 1, 400)))
        match data.draw(st.sampled_from(["byte", "long", "delete", "insert", "copy"])):
            case "byte":
                file[at] = data.draw(st.integers(0, 255))
            case "long":
                value = st.sampled_from([0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 0x80000000]) | st.integers(0, 100_000)
                file[at : at + 4] = struct.pack(data.draw(st.sampled_from("<>")) + "I", data.draw(value))
            case "delete":
                del file[at : at + data.draw(st.integers(1, 12))]
            case "insert":
                file[at:at] = data.draw(st.binary(min_size=1, max_size=12))
            case "copy":
                source = data.draw(st.integers(0, len(file)))
                file[at : at + 12] = file[source : source + 12]
        if not file:
            return
    outcome(bytes(file))


@pytest.mark.parametrize("number", range(len(ALL_FILES)))
def test_a_file_cut_anywhere_is_refused(number: int) -> None:
    """Only what follows the picture may be missing; nothing that follows is needed in any format but TIFF."""
    file = ALL_FILES[number]
    whole = read_header(file)
    for length in range(0, len(file), max(1, len(file) // 150)):
        result = outcome(file[:length])
        if isinstance(result, Header):
            assert result == whole
            np.testing.assert_array_equal(np.asarray(pillow_oriented(file[:length])), np.asarray(pillow_oriented(file)))


@pytest.mark.parametrize(
    "data",
    [
        JPEG[:2] + b"\xff" * 20_000_000,
        JPEG[:2] + b"\xff\xe2\0\2" * 5_000_000,
        png_of(PIXELS)[:33] + b"\0\0\0\0tEXt\0\0\0\0" * 1_500_000,
        b"RIFF\x16\x24\xf4\0" + webp_extended([], (HEIGHT, WIDTH), 0)[8:30] + b"ABCD\0\0\0\0" * 2_000_000,
        b"II*\0" + struct.pack("<IH", 8, 65535) + struct.pack("<HHII", 9999, 3, 1, 1) * 65535,
    ],
    ids=["fill bytes", "segments", "chunks", "WebP chunks", "directory"],
)  # fmt: skip
def test_a_file_made_of_millions_of_parts_does_not_keep_the_reader_busy(data: bytes) -> None:
    result = outcome(data)
    assert isinstance(result, BadImage)
    if len(data) > 10_000_000 and data[2:4] != b"\xff\xff":
        assert f"more than {MAX_PARTS}" in result.reason


@pytest.mark.parametrize("form", [*PLAIN, *CONVERTED])
def test_the_last_byte_is_missed(form: str) -> None:
    file = (PLAIN | CONVERTED)[form](photo("rocket").resize((31, 22)))
    for missing in range(1, 9):
        assert isinstance(outcome(file[:-missing]), BadImage), missing
