"""Times that are missing, wrong, repeated or set back."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from clip_files import COUNT, number_in
from definitions import AS_IT_IS
from stream_files import decoded, stream_of

from onestream.preprocess.video.streams.sampling import Sampling
from onestream.preprocess.video.streams.stream import StreamDecoder


def numbers(frames: list) -> list[int]:
    """What is painted into the frames."""
    return [number_in(frame.pixels) for frame in frames]


@pytest.mark.parametrize("kind", ["h264", "hevc", "mpeg4", "vp9"])
def test_frames_without_pts_have_the_dts_in_order(videos: dict[str, Path], kind: str) -> None:
    format, packets = stream_of(videos[kind])
    silent = [replace(packet, pts=None) for packet in packets]
    frames = decoded(StreamDecoder(AS_IT_IS, format), silent)
    assert numbers(frames) == list(range(COUNT))
    assert [frame.pts for frame in frames] == sorted(packet.dts for packet in packets)
    sampled = decoded(StreamDecoder(AS_IT_IS, format, sampling=Sampling(fps=5)), silent)
    assert numbers(sampled) == list(range(0, COUNT, 5))


def test_a_stream_joined_late_has_no_times_of_what_was_not_shown(videos: dict[str, Path]) -> None:
    format, packets = stream_of(videos["mpeg4"])
    key = [at for at, packet in enumerate(packets) if packet.is_key][1]
    frames = decoded(StreamDecoder(AS_IT_IS, format), [replace(packet, pts=None) for packet in packets[5:]])
    assert [frame.pts for frame in frames] == [packet.dts for packet in packets[key:]][: len(frames)]


def test_frames_without_any_time_come_in_order_at_the_declared_rate(videos: dict[str, Path]) -> None:
    format, packets = stream_of(videos["h264"])
    silent = [replace(packet, pts=None, dts=None, duration=0) for packet in packets]
    frames = decoded(StreamDecoder(AS_IT_IS, format), silent)
    assert numbers(frames) == list(range(COUNT))
    assert {(frame.pts, frame.pts_seconds) for frame in frames} == {(None, None)}
    for declared, wanted in ((25.0, 5), (50.0, 10), (0.0, 5)):
        changed = replace(format, fps=declared)
        sampled = decoded(StreamDecoder(AS_IT_IS, changed, sampling=Sampling(fps=5)), silent)
        assert numbers(sampled) == list(range(0, COUNT, wanted))


def test_times_that_are_the_order_of_storage_are_put_in_order(videos: dict[str, Path]) -> None:
    """As FFmpeg reads AVI."""
    format, packets = stream_of(videos["h264-avi"])
    assert [packet.pts for packet in packets] == sorted(packet.pts for packet in packets)
    frames = decoded(StreamDecoder(AS_IT_IS, format), packets)
    assert numbers(frames) == list(range(COUNT))
    assert [frame.pts for frame in frames] == [packet.pts for packet in packets]


def test_repeated_times_are_told_as_they_are(videos: dict[str, Path]) -> None:
    format, packets = stream_of(videos["vp9"])
    packets[7] = replace(packets[7], pts=packets[6].pts)
    frames = decoded(StreamDecoder(AS_IT_IS, format), packets)
    assert numbers(frames) == list(range(COUNT))
    assert [frame.pts for frame in frames] == [packet.pts for packet in packets]


def test_a_clock_that_is_set_back_goes_on(videos: dict[str, Path]) -> None:
    format, packets = stream_of(videos["vp9"])
    back = round(5 / format.time_base)
    late = [replace(packet, pts=packet.pts - back, dts=packet.dts - back) for packet in packets[20:]]
    sent = [*packets[:20], *late]
    frames = decoded(StreamDecoder(AS_IT_IS, format), sent)
    assert [frame.pts for frame in frames] == [packet.pts for packet in sent]
    assert [frame.index for frame in frames] == list(range(COUNT))
    sampled = decoded(StreamDecoder(AS_IT_IS, format, sampling=Sampling(fps=5)), sent)
    assert numbers(sampled) == list(range(0, COUNT, 5))


def test_a_time_that_is_a_little_late_is_not_shown(videos: dict[str, Path]) -> None:
    format, packets = stream_of(videos["vp9"])
    packets[9] = replace(packets[9], pts=packets[6].pts + 1)
    decoder = StreamDecoder(AS_IT_IS, format)
    frames = decoded(decoder, packets)
    assert numbers(frames) == [number for number in range(COUNT) if number != 9]
    assert (decoder.decoded, decoder.concealed) == (COUNT - 1, 1)


def test_times_beyond_64_bits_are_none(videos: dict[str, Path]) -> None:
    format, packets = stream_of(videos["vp9"])
    packets[5] = replace(packets[5], pts=1 << 80, dts=-(1 << 63), duration=1 << 90)
    frames = decoded(StreamDecoder(AS_IT_IS, replace(format, time_base=Fraction(1, 1000))), packets)
    assert len(frames) == COUNT
    assert frames[5].pts is None
