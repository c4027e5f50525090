"""Streams that are damaged, cut, or joined in the middle: what can be shown is shown, and the rest is counted."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from clip_files import COUNT, number_in, write_video
from definitions import AS_IT_IS
from patience import PATIENCE_S
from stream_files import decoded, stream_of

from onestream.preprocess.video.streams.stream import StreamDecoder, StreamFrame

CODECS = ("h264", "hevc", "av1", "vp8", "vp9", "mpeg4")
INTRA = (*CODECS, "mjpeg")


def undamaged(path: Path) -> dict[int | None, StreamFrame]:
    """By pts."""
    format, packets = stream_of(path)
    return {frame.pts: frame for frame in decoded(StreamDecoder(AS_IT_IS, format), packets)}


@pytest.mark.parametrize("kind", CODECS)
def test_what_comes_before_the_first_keyframe_is_not_shown(videos: dict[str, Path], kind: str) -> None:
    whole = undamaged(videos[kind])
    format, packets = stream_of(videos[kind])
    keys = [at for at, packet in enumerate(packets) if packet.is_key]
    decoder = StreamDecoder(AS_IT_IS, format)
    frames = decoded(decoder, packets[5:])
    key = packets[keys[1]]
    # Frames that are stored after the keyframe but shown before it refer to what is missing.
    early = [packet for packet in packets[5:] if packet.pts is not None and packet.pts < key.pts]
    assert [frame.pts for frame in frames] == [pts for pts in whole if pts >= key.pts]
    assert [frame.index for frame in frames] == list(range(len(frames)))
    assert all(np.array_equal(frame.pixels, whole[frame.pts].pixels) for frame in frames)
    assert (decoder.decoded, decoder.concealed, decoder.unshown) == (len(frames), 0, len(early))


def test_a_stream_without_keyframes_begins_after_one_refresh(tmp_path: Path) -> None:
    """Some cameras refresh the picture column by column and send no keyframe."""
    options = {"x264-params": "log-level=none:intra-refresh=1:keyint=12:bframes=0"}
    path = write_video(tmp_path / "v.mp4", "libx264", options=options)
    whole = undamaged(path)
    format, packets = stream_of(path)
    decoder = StreamDecoder(AS_IT_IS, format)
    frames = decoded(decoder, packets[5:])
    assert len(frames) > 10
    assert decoder.unshown == COUNT - 5 - len(frames)
    assert [number_in(frame.pixels) for frame in frames] == list(range(COUNT - len(frames), COUNT))
    assert all(np.abs(frame.pixels.astype(int) - whole[frame.pts].pixels).mean() < 1 for frame in frames[-5:])


def test_a_stream_that_never_begins_shows_nothing(videos: dict[str, Path]) -> None:
    for kind in CODECS:
        format, packets = stream_of(videos[kind])
        decoder = StreamDecoder(AS_IT_IS, format)
        assert decoded(decoder, packets[1:7]) == []
        assert (decoder.decoded, decoder.unshown) == (0, 6)


@pytest.mark.parametrize("kind", INTRA)
def test_a_damaged_packet_is_concealed_and_counted(videos: dict[str, Path], kind: str) -> None:
    whole = undamaged(videos[kind])
    format, packets = stream_of(videos[kind])
    # A keyframe, whose damage every decoder notices.
    key = 24 if kind == "mjpeg" else [at for at, packet in enumerate(packets) if packet.is_key][1]
    noise = np.random.default_rng(3).integers(0, 256, len(packets[key].data), np.uint8).tobytes()
    packets[key] = replace(packets[key], data=noise)
    decoder = StreamDecoder(AS_IT_IS, format)
    frames = decoded(decoder, packets)
    assert decoder.concealed >= 1
    assert decoder.unshown == 0
    times = [frame.pts for frame in frames]
    assert times == sorted(times)
    assert decoder.decoded == len(frames) >= COUNT // 2
    # All before it and all from the next keyframe on are whole.
    last = next(at for at in range(key + 1, COUNT) if packets[at].is_key)
    sound = [frame for frame in frames if frame.pts < packets[key].pts - 3 or frame.pts >= packets[last].pts]
    first = min(packet.pts for packet in packets[:key])
    assert sound[0].pts == first
    assert times[-1] == max(whole)
    good = [np.array_equal(frame.pixels, whole[frame.pts].pixels) for frame in sound]
    # Frames just before the keyframe may refer to it.
    assert sum(good) >= len(good) - 3


@pytest.mark.parametrize("kind", INTRA)
def test_lost_packets_do_not_stop_a_stream(videos: dict[str, Path], kind: str) -> None:
    whole = undamaged(videos[kind])
    format, packets = stream_of(videos[kind])
    kept = [packet for at, packet in enumerate(packets) if at % 11 != 5]
    frames = decoded(StreamDecoder(AS_IT_IS, format), kept)
    assert len(frames) >= COUNT // 2
    assert {frame.pts for frame in frames} <= set(whole)
    times = [frame.pts for frame in frames]
    assert times == sorted(times)
    # Whole again with the last keyframe.
    last = [packet.pts for packet in packets if packet.is_key][-1]
    lost = {packet.pts for packet in packets} - {packet.pts for packet in kept}
    if kind != "mjpeg" and not any(pts >= last for pts in lost):
        again = [frame for frame in frames if frame.pts >= last]
        assert all(np.array_equal(frame.pixels, whole[frame.pts].pixels) for frame in again)


@pytest.mark.parametrize("kind", INTRA)
def test_a_cut_end_gives_what_was_there(videos: dict[str, Path], kind: str) -> None:
    whole = undamaged(videos[kind])
    format, packets = stream_of(videos[kind])
    cut = [*packets[:17], replace(packets[17], data=packets[17].data[: len(packets[17].data) // 3])]
    frames = decoded(StreamDecoder(AS_IT_IS, format), cut)
    assert 15 <= len(frames) <= 18
    good = [np.array_equal(frame.pixels, whole[frame.pts].pixels) for frame in frames]
    assert sum(good) >= 15


@pytest.mark.parametrize("kind", INTRA)
def test_exchanged_packets_do_not_stop_a_stream(videos: dict[str, Path], kind: str) -> None:
    whole = undamaged(videos[kind])
    format, packets = stream_of(videos[kind])
    packets[6], packets[7] = packets[7], packets[6]
    packets[8:8] = packets[4:6]
    frames = decoded(StreamDecoder(AS_IT_IS, format), packets)
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
    assert len(again) >= 1


def test_a_wrong_header_is_no_end(videos: dict[str, Path]) -> None:
    """Annex B carries the header within; a container's that is nonsense does no harm."""
    format, packets = stream_of(videos["h264-raw"])
    for extradata in (b"\x01nonsense", b"\0" * 40, bytes(range(256))):
        frames = decoded(StreamDecoder(AS_IT_IS, replace(format, extradata=extradata)), packets)
        assert len(frames) in (0, COUNT)


@pytest.mark.slow
@pytest.mark.parametrize("kind", INTRA)
def test_whatever_comes_the_process_lives_and_does_not_grow(videos: dict[str, Path], kind: str) -> None:
    streams = 120
    program = Path(__file__).with_name("fuzz_streams.py")
    done = subprocess.run(
        [sys.executable, str(program), str(streams)],
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
