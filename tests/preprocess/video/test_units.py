"""Packets that are small and would take much memory are refused; all that encoders write passes."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from pathlib import Path

import av
import pytest
from clip_files import write_video
from definitions import AS_IT_IS
from hypothesis import given
from hypothesis import strategies as st

from onestream.preprocess import BadSample
from onestream.preprocess.video.common.units import MOST_HEADER_BYTES, MOST_SEI_BYTES, MOST_UNITS, PacketBounds
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


@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_what_encoders_write_passes(codec: str, tmp_path: Path) -> None:
    """As many slices as the picture has rows of blocks, in both forms."""
    options = {"slices": "6"} if codec == "h264" else {"x265-params": "log-level=none:slices=2"}
    encoder = {"h264": "libx264", "hevc": "libx265"}[codec]
    for suffix in ("mp4", codec):
        path = write_video(tmp_path / f"clip.{suffix}", encoder, options=options)
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            bounds = PacketBounds(codec, stream.codec_context.extradata or b"")
            for packet in container.demux(stream):
                bounds.check(bytes(packet))


def test_a_stream_ends_at_such_a_packet() -> None:
    decoder = StreamDecoder(AS_IT_IS, StreamFormat(codec="h264", time_base=Fraction(1, 25)))
    with pytest.raises(BadSample, match="NAL units"):
        decoder.feed(Packet(b"\0\0\1\x65" * 1_000_000, 0, 0, 1, True))
