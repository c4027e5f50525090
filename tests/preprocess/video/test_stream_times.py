"""Times that are missing, wrong, repeated or set back."""

from __future__ import annotations

from dataclasses import asdict, replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
from clip_files import COUNT, every_frame, number_in, write_video
from definitions import AS_IT_IS
from stream_files import decoded, stream_of

from onestream.preprocess.video.clips.choose_frames import Clip, choose_frames
from onestream.preprocess.video.clips.decode import VideoFile
from onestream.preprocess.video.streams.sampling import Sampling
from onestream.preprocess.video.streams.stream import StreamDecoder
from onestream.wire.video import Packet

FINE = Fraction(1, 100)


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


def later(by_s: Fraction) -> list[int]:
    """The times of a clip's frames, so much later, in ``FINE``."""
    return [round((Fraction(number, 25) + by_s) / FINE) for number in range(COUNT)]


def at_times(packets: list[Packet], changed: dict[int, int]) -> list[Packet]:
    """These packets, of which some have another time."""
    return [replace(packet, pts=changed.get(at, packet.pts)) for at, packet in enumerate(packets)]


def test_times_never_go_back_and_no_frame_is_left_out(videos: dict[str, Path]) -> None:
    """The clock is set back by five seconds, and by less than a frame; a time is repeated, and one is late."""
    format, packets = stream_of(videos["vp9"])
    own = [packet.pts for packet in packets]
    for seconds in (5, Fraction(1, 100), Fraction(4, 5)):
        back = round(seconds / format.time_base)
        late = [replace(packet, pts=packet.pts - back, dts=packet.dts - back) for packet in packets[20:]]
        cases = [*packets[:20], *late]
        frames = decoded(StreamDecoder(AS_IT_IS, format), cases)
        assert [frame.source_pts for frame in frames] == [packet.pts for packet in cases]
        assert [frame.index for frame in frames] == list(range(COUNT))
        # By less than a frame it goes on by itself.
        assert [frame.pts for frame in frames] == (own if back > 10 else [packet.pts for packet in cases])
        sampled = decoded(StreamDecoder(AS_IT_IS, format, sampling=Sampling(fps=5)), cases)
        assert numbers(sampled)[:4] == [0, 5, 10, 15]
        assert len(sampled) == COUNT // 5
    for changed in ({7: own[6]}, {9: own[6] + 1}):
        decoder = StreamDecoder(AS_IT_IS, format)
        frames = decoded(decoder, at_times(packets, changed))
        assert numbers(frames) == list(range(COUNT))
        assert [frame.pts for frame in frames] == own
        assert (decoder.decoded, decoder.concealed) == (COUNT, 0)


@pytest.mark.parametrize("apart_s", [0, Fraction(1, 50)])
@pytest.mark.parametrize("kind", ["h264-ts", "mpeg4-avi"])
def test_joined_clips_have_every_frame_in_file_and_stream(
    videos: dict[str, Path], tmp_path: Path, kind: str, apart_s: Fraction
) -> None:
    """Each begins with the first one's clock, or a little after: the times of several lie among each other."""
    path = tmp_path / f"joined{videos[kind].suffix}"
    if kind == "h264-ts":
        other = write_video(tmp_path / "v.ts", "libx264", options={"g": "12"}, times=later(apart_s), time_base=FINE)
        path.write_bytes(videos[kind].read_bytes() + other.read_bytes() + videos[kind].read_bytes())
    else:
        path = videos[kind]
    count = len(every_frame(path))
    format, packets = stream_of(path)
    with VideoFile(path) as video:
        timeline = video.index.timeline
        assert [number_in(frame.to_ndarray(format="rgb24")) for _, frame in video.frames(range(count))] == [
            number % COUNT for number in range(count)
        ]
    decoder = StreamDecoder(AS_IT_IS, format)
    frames = decoded(decoder, packets)
    assert numbers(frames) == [number % COUNT for number in range(count)]
    assert [frame.pts_seconds for frame in frames] == pytest.approx((timeline.pts * float(timeline.time_base)).tolist())
    assert all(one.pts_seconds < other.pts_seconds for one, other in pairwise(frames))
    assert (decoder.concealed, decoder.unshown) == (0, 0)
    for sampling in (Sampling(fps=10), Sampling(stride=7, start_frame=3)):
        chosen = choose_frames(Clip(**asdict(sampling)), timeline)
        sampled = decoded(StreamDecoder(AS_IT_IS, format, sampling=sampling), packets)
        assert [frame.index for frame in sampled] == chosen
        assert numbers(sampled) == [number % COUNT for number in chosen]


def test_frames_that_were_skipped_are_counted_where_the_clock_goes_back(tmp_path: Path) -> None:
    """No frame is a reference but the key frames, so that the last ones are not decoded either."""
    layout = {"x264-params": "log-level=none:bframes=0:ref=1:keyint=20:scenecut=0:nal-hrd=none"}
    one = write_video(tmp_path / "one.ts", "libx264", options=layout)
    format, packets = stream_of(one)
    frames = decoded(StreamDecoder(AS_IT_IS, format, sampling=Sampling(stride=6)), [*packets, *packets])
    assert [frame.index for frame in frames] == list(range(0, 2 * COUNT, 6))
    assert numbers(frames) == [number % COUNT for number in range(0, 2 * COUNT, 6)]


def test_times_beyond_64_bits_are_none(videos: dict[str, Path]) -> None:
    format, packets = stream_of(videos["vp9"])
    packets[5] = replace(packets[5], pts=1 << 80, dts=-(1 << 63), duration=1 << 90)
    frames = decoded(StreamDecoder(AS_IT_IS, replace(format, time_base=Fraction(1, 1000))), packets)
    assert len(frames) == COUNT
    assert frames[5].pts is None
