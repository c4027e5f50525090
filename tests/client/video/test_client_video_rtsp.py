"""Streams from a real RTSP server: a recording, a camera, and a camera that goes away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from clip_files import every_frame, write_video
from fake_server import FakeServer
from rtsp_server import RtspServer
from stream_fakes import across_a_restart

from onestream.client import Client, UnreadableInput
from onestream.client.video import Reconnect, Rtsp

pytestmark = pytest.mark.needs_rtsp


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A camera's pictures as Annex B, one slice each, and a recording."""
    folder = tmp_path_factory.mktemp("rtsp")
    one_slice = {"g": "25", "bf": "0", "x264-params": "log-level=none:sliced-threads=0"}
    return (
        write_video(folder / "live.h264", "libx264", options=one_slice, count=50),
        write_video(folder / "clip.mp4", "libx264", options={"g": "25", "bf": "2"}, count=30),
    )


@pytest.fixture
def rtsp(files: tuple[Path, Path]) -> Iterator[RtspServer]:
    with RtspServer(*files) as running:
        yield running


def test_a_recording_comes_whole_and_ends(
    server: FakeServer, client: Client, rtsp: RtspServer, files: tuple[Path, Path]
) -> None:
    results = client.stream(rtsp.url("clip"), mode="block")
    with results:
        frames = list(results)
    assert len(frames) == len(every_frame(files[1]))
    assert results.ended_reason == "done"
    seen = server.streams[0]
    assert (seen.opened.codec, seen.opened.width, seen.opened.height) == ("h264", 128, 96)
    assert seen.packets[0].is_key
    times = [packet.dts for packet in seen.packets if packet.dts is not None]
    assert times == sorted(set(times))


def test_a_camera_is_live_and_has_no_end(server: FakeServer, client: Client, rtsp: RtspServer) -> None:
    with client.stream(rtsp.url("live")) as results:
        for frame in results:
            # The pictures repeat after 50.
            if frame.frame_index == 60:
                break
    assert server.streams[0].opened.mode == "drop_oldest"
    assert frame.pts_seconds == pytest.approx(60 / 25, abs=0.1)
    assert results.ended_reason == "closed"


def test_a_camera_that_goes_away_and_comes_back(client: Client, rtsp: RtspServer, files: tuple[Path, Path]) -> None:
    camera = Rtsp(rtsp.url("live"), read_timeout_s=3)
    results = client.stream(camera, reconnect=Reconnect(attempts=60, first_s=0.2, longest_s=0.5))
    numbers = across_a_restart(results, rtsp, lambda: RtspServer(files[0], port=rtsp.port))
    assert len(numbers) > 20
    (gap,) = results.gaps
    assert gap.frame_index == numbers[-1]
    assert "rtsp://127.0.0.1" in gap.reason


def test_no_such_stream(client: Client, rtsp: RtspServer) -> None:
    with pytest.raises(UnreadableInput, match="nothing: the video cannot be opened"):
        client.stream(rtsp.url("nothing")).open()
