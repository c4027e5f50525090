"""Streams that are damaged, cut, or joined late, or whose times are wrong: what can be shown is shown, and counted."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from clip_files import COUNT, every_frame, number_in, write_video
from patience import PATIENCE_S
from stream_files import pixels_of, played, stream_of, write_refreshed

from onestream.preprocess.video import Clip, VideoFile, choose_frames
from onestream.preprocess.video.streams.sampling import Sampling
from onestream.preprocess.video.streams.stream import StreamFormat, StreamFrame
from onestream.wire.video import Packet

CODECS = ("h264", "hevc", "av1", "vp8", "vp9", "mpeg4")
INTRA = (*CODECS, "mjpeg")


def undamaged(path: Path) -> tuple[StreamFormat, list[Packet], dict[int | None, StreamFrame]]:
    """A stream, and its frames by pts."""
    format, packets = stream_of(path)
    return format, packets, {frame.pts: frame for frame in played(format, packets)[1]}


def equal(frames: Iterable[StreamFrame], whole: dict[int | None, StreamFrame]) -> list[bool]:
    """Of each, whether it is that of the undamaged stream in every bit."""
    return [np.array_equal(frame.pixels, whole[frame.pts].pixels) for frame in frames]


@pytest.mark.parametrize("kind", CODECS)
def test_what_comes_before_the_first_keyframe_is_not_shown(videos: dict[str, Path], kind: str) -> None:
    format, packets, whole = undamaged(videos[kind])
    key = [packet for packet in packets if packet.is_key][1]
    decoder, frames = played(format, packets[5:])
    # Frames that are stored after the keyframe but shown before it refer to what is missing.
    early = [packet for packet in packets[5:] if packet.pts is not None and packet.pts < key.pts]
    assert [frame.pts for frame in frames] == [pts for pts in whole if pts >= key.pts]
    assert [frame.index for frame in frames] == list(range(len(frames)))
    assert all(equal(frames, whole))
    assert (decoder.decoded, decoder.concealed, decoder.unshown) == (len(frames), 0, len(early))
    # Where none comes nothing is shown.
    decoder, frames = played(format, packets[1:7])
    assert (frames, decoder.decoded, decoder.unshown) == ([], 0, 6)


def test_a_stream_without_keyframes_begins_after_one_refresh(tmp_path: Path) -> None:
    format, packets, whole = undamaged(write_refreshed(tmp_path / "v.mp4"))
    decoder, frames = played(format, packets[5:])
    assert len(frames) > 10
    assert decoder.unshown == COUNT - 5 - len(frames)
    assert [number_in(frame.pixels) for frame in frames] == list(range(COUNT - len(frames), COUNT))
    last = pixels_of(whole[frame.pts] for frame in frames[-5:])
    assert (np.abs(pixels_of(frames[-5:]).astype(int) - last).mean(axis=(1, 2, 3)) < 1).all()


@pytest.mark.parametrize("kind", INTRA)
def test_a_damaged_packet_is_concealed_and_counted(videos: dict[str, Path], kind: str) -> None:
    format, packets, whole = undamaged(videos[kind])
    # A keyframe, whose damage every decoder notices.
    key = 24 if kind == "mjpeg" else [at for at, packet in enumerate(packets) if packet.is_key][1]
    noise = np.random.default_rng(3).integers(0, 256, len(packets[key].data), np.uint8).tobytes()
    packets[key] = replace(packets[key], data=noise)
    decoder, frames = played(format, packets)
    assert decoder.concealed >= 1
    assert decoder.unshown == 0
    times = [frame.pts for frame in frames]
    assert times == sorted(times)
    assert decoder.decoded == len(frames) >= COUNT // 2
    # All before it and all from the next keyframe on are whole.
    last = next(at for at in range(key + 1, COUNT) if packets[at].is_key)
    sound = [frame for frame in frames if frame.pts < packets[key].pts - 3 or frame.pts >= packets[last].pts]
    assert sound[0].pts == min(packet.pts for packet in packets[:key])
    assert times[-1] == max(whole)
    # Frames just before the keyframe may refer to it.
    assert equal(sound, whole).count(False) <= 3


@pytest.mark.parametrize("kind", INTRA)
def test_lost_packets_do_not_stop_a_stream(videos: dict[str, Path], kind: str) -> None:
    format, packets, whole = undamaged(videos[kind])
    kept = [packet for at, packet in enumerate(packets) if at % 11 != 5]
    _, frames = played(format, kept)
    assert len(frames) >= COUNT // 2
    assert {frame.pts for frame in frames} <= set(whole)
    times = [frame.pts for frame in frames]
    assert times == sorted(times)
    # Whole again with the last keyframe.
    last = [packet.pts for packet in packets if packet.is_key][-1]
    lost = {packet.pts for packet in packets} - {packet.pts for packet in kept}
    if kind != "mjpeg" and not any(pts >= last for pts in lost):
        assert all(equal([frame for frame in frames if frame.pts >= last], whole))


@pytest.mark.parametrize("kind", INTRA)
def test_a_cut_end_gives_what_was_there(videos: dict[str, Path], kind: str) -> None:
    format, packets, whole = undamaged(videos[kind])
    cut = replace(packets[17], data=packets[17].data[: len(packets[17].data) // 3])
    _, frames = played(format, [*packets[:17], cut])
    assert 15 <= len(frames) <= 18
    assert sum(equal(frames, whole)) >= 15


@pytest.mark.parametrize("kind", INTRA)
def test_exchanged_packets_do_not_stop_a_stream(videos: dict[str, Path], kind: str) -> None:
    format, packets, whole = undamaged(videos[kind])
    packets[6], packets[7] = packets[7], packets[6]
    packets[8:8] = packets[4:6]
    _, frames = played(format, packets)
    assert len(frames) >= COUNT // 2
    assert {frame.source_pts for frame in frames} <= set(whole)
    assert [frame.index for frame in frames] == list(range(len(frames)))
    # Times go forward, and are the source's own again wherever they have room to wait for it.
    assert all(earlier.pts < later.pts for earlier, later in pairwise(frames))
    assert frames[-1].pts - frames[-1].source_pts in range(4)
    # The next keyframe ends it.
    key = [packet.pts for packet in packets if packet.is_key][-1]
    again = [frame for frame in frames if frame.source_pts >= key]
    assert all(np.array_equal(frame.pixels, whole[frame.source_pts].pixels) for frame in again)
    assert again


def test_a_wrong_header_is_no_end(videos: dict[str, Path]) -> None:
    """Annex B carries the header within; a container's that is nonsense does no harm."""
    format, packets = stream_of(videos["h264-raw"])
    for extradata in (b"\x01nonsense", b"\0" * 40, bytes(range(256))):
        assert len(played(replace(format, extradata=extradata), packets)[1]) in (0, COUNT)


@pytest.mark.slow
@pytest.mark.parametrize("kind", INTRA)
def test_whatever_comes_the_process_lives_and_does_not_grow(videos: dict[str, Path], kind: str) -> None:
    streams = 120
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("fuzz_streams.py")), str(streams)],
        input=pickle.dumps(stream_of(videos[kind])),
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr[-2000:].decode(errors='replace')}"
    report = json.loads(done.stdout)
    # A decoder for 128x96 pixels takes 2 MiB; one that stayed for each stream would be seen.
    assert report["grown_mib"] < 48
    assert report["frames"] > streams * 5
    assert report["concealed"] > streams / 6
    assert done.stderr == b""


def numbers(frames: list) -> list[int]:
    """What is painted into the frames."""
    return [number_in(frame.pixels) for frame in frames]


@pytest.mark.parametrize("kind", ["h264", "hevc", "mpeg4", "vp9"])
def test_frames_without_pts_have_the_dts_in_order(videos: dict[str, Path], kind: str) -> None:
    format, packets = stream_of(videos[kind])
    silent = [replace(packet, pts=None) for packet in packets]
    _, frames = played(format, silent)
    assert numbers(frames) == list(range(COUNT))
    assert [frame.pts for frame in frames] == sorted(packet.dts for packet in packets)
    assert numbers(played(format, silent, sampling=Sampling(fps=5))[1]) == list(range(0, COUNT, 5))
    if kind == "mpeg4":  # joined late: without the times of what was not shown
        key = [at for at, packet in enumerate(packets) if packet.is_key][1]
        _, frames = played(format, silent[5:])
        assert [frame.pts for frame in frames] == [packet.dts for packet in packets[key:]][: len(frames)]


def test_frames_without_any_time_come_in_order_at_the_declared_rate(videos: dict[str, Path]) -> None:
    format, packets = stream_of(videos["h264"])
    silent = [replace(packet, pts=None, dts=None, duration=0) for packet in packets]
    _, frames = played(format, silent)
    assert numbers(frames) == list(range(COUNT))
    assert {(frame.pts, frame.pts_seconds) for frame in frames} == {(None, None)}
    for declared, wanted in ((25.0, 5), (50.0, 10), (0.0, 5)):
        _, sampled = played(replace(format, fps=declared), silent, sampling=Sampling(fps=5))
        assert numbers(sampled) == list(range(0, COUNT, wanted))


def test_times_that_are_the_order_of_storage_are_put_in_order(videos: dict[str, Path]) -> None:
    """As FFmpeg reads AVI."""
    format, packets = stream_of(videos["h264-avi"])
    assert [packet.pts for packet in packets] == sorted(packet.pts for packet in packets)
    _, frames = played(format, packets)
    assert numbers(frames) == list(range(COUNT))
    assert [frame.pts for frame in frames] == [packet.pts for packet in packets]


def test_times_never_go_back_and_no_frame_is_left_out(videos: dict[str, Path]) -> None:
    """The clock is set back by five seconds, and by less than a frame; a time is repeated, and one is late."""
    format, packets = stream_of(videos["vp9"])
    own = [packet.pts for packet in packets]
    for seconds in (5, Fraction(1, 100), Fraction(4, 5)):
        back = round(seconds / format.time_base)
        late = [replace(packet, pts=packet.pts - back, dts=packet.dts - back) for packet in packets[20:]]
        cases = [*packets[:20], *late]
        _, frames = played(format, cases)
        assert [frame.source_pts for frame in frames] == [packet.pts for packet in cases]
        assert [frame.index for frame in frames] == list(range(COUNT))
        # By less than a frame it goes on by itself.
        assert [frame.pts for frame in frames] == (own if back > 10 else [packet.pts for packet in cases])
        _, sampled = played(format, cases, sampling=Sampling(fps=5))
        assert numbers(sampled)[:4] == [0, 5, 10, 15]
        assert len(sampled) == COUNT // 5
    for at, pts in ((7, own[6]), (9, own[6] + 1)):
        decoder, frames = played(format, [*packets[:at], replace(packets[at], pts=pts), *packets[at + 1 :]])
        assert numbers(frames) == list(range(COUNT))
        assert [frame.pts for frame in frames] == own
        assert (decoder.decoded, decoder.concealed) == (COUNT, 0)


@pytest.mark.parametrize("apart_s", [0, Fraction(1, 50)])
@pytest.mark.parametrize("kind", ["h264-ts", "mpeg4-avi"])
def test_joined_clips_have_every_frame(videos: dict[str, Path], tmp_path: Path, kind: str, apart_s: Fraction) -> None:
    """Each begins with the first one's clock, or a little after: the times of several lie among each other."""
    path = tmp_path / f"joined{videos[kind].suffix}"
    if kind == "h264-ts":
        later = [round((Fraction(number, 25) + apart_s) * 100) for number in range(COUNT)]
        timed = {"times": later, "time_base": Fraction(1, 100)}
        other = write_video(tmp_path / "v.ts", "libx264", options={"g": "12"}, **timed)
        path.write_bytes(videos[kind].read_bytes() + other.read_bytes() + videos[kind].read_bytes())
    else:
        path = videos[kind]
    count = len(every_frame(path))
    format, packets = stream_of(path)
    with VideoFile(path) as video:
        timeline = video.index.timeline
        in_file = [number_in(frame.to_ndarray(format="rgb24")) for _, frame in video.frames(range(count))]
    decoder, frames = played(format, packets)
    assert numbers(frames) == in_file == [number % COUNT for number in range(count)]
    assert [frame.pts_seconds for frame in frames] == pytest.approx((timeline.pts * float(timeline.time_base)).tolist())
    assert all(one.pts_seconds < other.pts_seconds for one, other in pairwise(frames))
    assert (decoder.concealed, decoder.unshown) == (0, 0)
    for sampling in (Sampling(fps=10), Sampling(stride=7, start_frame=3)):
        chosen = choose_frames(Clip(**asdict(sampling)), timeline)
        _, sampled = played(format, packets, sampling=sampling)
        assert [frame.index for frame in sampled] == chosen
        assert numbers(sampled) == [number % COUNT for number in chosen]


def test_frames_that_were_skipped_are_counted_where_the_clock_goes_back(tmp_path: Path) -> None:
    """No frame is a reference but the key frames, so that the last ones are not decoded either."""
    layout = {"x264-params": "log-level=none:bframes=0:ref=1:keyint=20:scenecut=0:nal-hrd=none"}
    one = write_video(tmp_path / "one.ts", "libx264", options=layout)
    format, packets = stream_of(one)
    _, frames = played(format, [*packets, *packets], sampling=Sampling(stride=6))
    assert [frame.index for frame in frames] == list(range(0, 2 * COUNT, 6))
    assert numbers(frames) == [number % COUNT for number in range(0, 2 * COUNT, 6)]


def test_times_beyond_64_bits_are_none(videos: dict[str, Path]) -> None:
    format, packets = stream_of(videos["vp9"])
    packets[5] = replace(packets[5], pts=1 << 80, dts=-(1 << 63), duration=1 << 90)
    _, frames = played(replace(format, time_base=Fraction(1, 1000)), packets)
    assert len(frames) == COUNT
    assert frames[5].pts is None
