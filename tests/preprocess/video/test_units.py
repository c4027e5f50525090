"""Packets by their units: those that would take much memory are refused, and NVDEC gets what FFmpeg reads."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from pathlib import Path

import av
import numpy as np
import pytest
from definitions import AS_IT_IS
from hypothesis import given
from hypothesis import strategies as st
from stream_files import stream_of

from onestream.preprocess import BadSample
from onestream.preprocess.video.common.units import MOST_HEADER_BYTES, MOST_SEI_BYTES, MOST_UNITS, PacketBounds
from onestream.preprocess.video.gpu.annexb import ByteStream
from onestream.preprocess.video.streams.stream import StreamDecoder, StreamFormat
from onestream.wire.video import Packet

AVCC = b"\1\x64\0\x28\xff\xe0\0" + bytes(4)
HVCC = b"\1" + bytes(20) + b"\xff\0" + bytes(4)
FORMS = [("h264", b""), ("h264", AVCC), ("hevc", b""), ("hevc", HVCC)]
SEI = {"h264": b"\6", "hevc": b"\x4e\1"}


def unit(extradata: bytes, content: bytes) -> bytes:
    return (len(content).to_bytes(4, "big") if extradata else b"\0\0\0\1") + content


@pytest.mark.parametrize(("codec", "extradata"), FORMS)
def test_units_are_counted_in_both_forms(codec: str, extradata: bytes) -> None:
    bounds = PacketBounds(codec, extradata)
    bounds.check(unit(extradata, b"\x65") * MOST_UNITS)
    with pytest.raises(BadSample, match=f"more than {MOST_UNITS} NAL units"):
        bounds.check(unit(extradata, b"\x65") * (MOST_UNITS + 1))


FLOODS = [b"\0\0\1\x65", b"\0\0\0\1\x65", b"\0\0\1\6\x80"]


@pytest.mark.parametrize(("extradata", "flood"), [*product([b"", AVCC], FLOODS), (AVCC, bytes(4))])
def test_floods_of_tiny_units(extradata: bytes, flood: bytes) -> None:
    """Start codes within a unit with a length count too: FFmpeg goes on there. Lengths may be 0."""
    with pytest.raises(BadSample, match="NAL units"):
        PacketBounds("h264", extradata).check(b"\0\0\1\x65" + flood * 200_000)


@pytest.mark.parametrize(("codec", "extradata"), FORMS)
def test_supplemental_information_is_bounded(codec: str, extradata: bytes) -> None:
    bounds = PacketBounds(codec, extradata)
    message = b"\5\x10" + b"A" * 16
    bounds.check(unit(extradata, SEI[codec] + message * 3000) + unit(extradata, b"\x65" + bytes(range(1, 255)) * 4000))
    with pytest.raises(BadSample, match=f"at most {MOST_SEI_BYTES} are allowed"):
        bounds.check(unit(extradata, SEI[codec] + message * 4000))


def test_a_codec_s_header_is_bounded() -> None:
    with pytest.raises(BadSample, match=f"at most {MOST_HEADER_BYTES} are allowed"):
        PacketBounds("av1", bytes(MOST_HEADER_BYTES + 1))
    with pytest.raises(BadSample, match="NAL units"):
        PacketBounds("h264", b"\0\0\1\x67" * 2000)


@given(st.sampled_from(FORMS), st.binary(max_size=300))
def test_whatever_comes_is_answered(form: tuple[str, bytes], data: bytes) -> None:
    PacketBounds(*form).check(data)


def test_a_stream_ends_at_such_a_packet() -> None:
    decoder = StreamDecoder(AS_IT_IS, StreamFormat(codec="h264", time_base=Fraction(1, 25)))
    with pytest.raises(BadSample, match="NAL units"):
        decoder.feed(Packet(b"\0\0\1\x65" * 1_000_000, 0, 0, 1, True))


START = b"\0\0\0\1"


def frames_of(codec: str, packets: list[bytes]) -> list[np.ndarray]:
    context = av.CodecContext.create(codec, "r")
    frames = [frame for data in packets for frame in context.decode(av.Packet(data))]
    return [frame.to_ndarray() for frame in [*frames, *context.decode(None)]]


@pytest.mark.parametrize("kind", ["h264", "h264-open-gop", "h264-ts", "h264-raw", "hevc"])
def test_a_converted_stream_is_the_same_without_its_container(videos: dict[str, Path], kind: str) -> None:
    format, packets = stream_of(videos[kind])
    stream = ByteStream(format.codec, format.extradata)
    converted = [stream.convert(packet.data) for packet in packets]
    with av.open(str(videos[kind])) as container:
        expected = [frame.to_ndarray() for frame in container.decode(video=0)]
    found = frames_of(format.codec, [stream.headers + converted[0], *converted[1:]])
    assert len(found) == len(expected)
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
    # Where decoding can begin is in the stream; containers call more than these keyframes.
    keys = [stream.is_key(data) for data in converted]
    assert keys[0]
    assert all(packet.is_key for packet, key in zip(packets, keys, strict=True) if key)


def test_parameter_sets_are_found_where_they_are(videos: dict[str, Path]) -> None:
    for kind, type_of in (("h264", lambda unit: unit & 31), ("hevc", lambda unit: unit >> 1 & 63)):
        format, packets = stream_of(videos[kind])
        stream = ByteStream(format.codec, format.extradata)
        sets = stream.sequence_sets(stream.headers)
        assert type_of(sets[0]) == {"h264": 7, "hevc": 33}[kind]
        assert stream.sequence_sets(stream.headers + stream.convert(packets[0].data)).startswith(sets)
        assert stream.sequence_sets(stream.convert(packets[1].data)) == b""
    assert ByteStream("vp9", b"").sequence_sets(b"\0\0\1\x67") == b""


def test_start_codes_in_the_place_of_lengths_stay() -> None:
    stream = ByteStream("h264", b"\1\x64\0\x0a\xff\xe0\0")
    assert stream.convert(b"\0\0\0\2\x65\x88" + b"\0\0\0\1\x41") == START + b"\x65\x88" + START + b"\x41"
    bare = START + b"\x65\x88" + START + b"\x41\x9a"
    assert stream.convert(bare) == bare
    assert ByteStream("h264", b"").convert(bare) == bare


@given(codec=st.sampled_from(["h264", "hevc"]), header=st.binary(max_size=60), data=st.binary(max_size=80))
def test_hostile_headers_and_packets_are_read_as_far_as_they_go(codec: str, header: bytes, data: bytes) -> None:
    for extradata in (header, b"\1" + header):
        stream = ByteStream(codec, extradata)
        converted = stream.convert(data)
        assert len(stream.sequence_sets(converted)) <= len(converted)
        assert stream.is_key(converted) in (True, False)
        assert len(stream.headers) <= 4 * len(extradata)


@given(st.lists(st.binary(min_size=1, max_size=20), max_size=6), st.sampled_from([1, 2, 4]))
def test_every_unit_is_kept(units: list[bytes], length_size: int) -> None:
    stream = ByteStream("h264", bytes([1, 100, 0, 10, 0xFC | length_size - 1, 0xE0, 0]))
    packaged = b"".join(len(unit).to_bytes(length_size, "big") + unit for unit in units)
    assert stream.convert(packaged) == b"".join(START + unit for unit in units)
