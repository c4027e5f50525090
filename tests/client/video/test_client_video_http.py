"""Streams from real HTTP servers: MJPEG and HLS, live, frozen, finished, and gone for a while."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from clip_files import every_frame, write_video
from fake_server import FakeServer
from http_video import FPS, HttpCamera, Segments
from patience import wait_until
from stream_fakes import across_a_restart

from onestream.client import Client, UnreadableInput
from onestream.client.video import NEVER, Http, Reconnect

AGAIN = Reconnect(attempts=100, first_s=0.1, longest_s=0.3)


@pytest.fixture
def camera(tmp_path: Path) -> Iterator[HttpCamera]:
    with HttpCamera(tmp_path) as running:
        yield running


@pytest.fixture
def segments(tmp_path: Path) -> Iterator[Segments]:
    with Segments(tmp_path) as running:
        wait_until((tmp_path / "live.m3u8").exists)
        yield running


def test_mjpeg_is_live_and_has_the_times_of_arrival(server: FakeServer, client: Client, camera: HttpCamera) -> None:
    with client.stream(camera.url("mjpeg")) as results:
        frames = [frame for frame, _ in zip(results, range(40), strict=False)]
    opened = server.streams[0].opened
    assert (opened.codec, opened.width, opened.height, opened.mode) == ("mjpeg", 128, 96, "drop_oldest")
    times = [frame.pts_seconds for frame in frames if frame.pts_seconds is not None]
    assert times == sorted(times)
    # FFmpeg would count 1/25 s for each, however slowly they come: one difference, two where it is rounded.
    assert len({round(after - before, 4) for before, after in pairwise(times)}) > 2


def test_hls_is_live_has_the_times_of_its_segments_and_an_end(
    server: FakeServer, client: Client, camera: HttpCamera, segments: Segments
) -> None:
    results = client.stream(camera.url("live.m3u8"), mode="block", reconnect=AGAIN)
    times = []
    with results:
        for frame in results:
            times.append(frame.pts_seconds)
            if len(times) == 40:
                segments.finish()
    assert results.ended_reason == "done"
    assert results.gaps == ()
    packets = [packet.pts for packet in server.streams[0].packets]
    assert packets == list(range(packets[0], packets[-1] + 1, 90_000 // FPS)), "nothing is missing or repeated"
    assert times == sorted(times)


@pytest.mark.usefixtures("segments")
@pytest.mark.parametrize("path", ["mjpeg", "live.m3u8"])
def test_a_server_that_goes_away_and_comes_back(client: Client, camera: HttpCamera, tmp_path: Path, path: str) -> None:
    results = client.stream(Http(camera.url(path), read_timeout_s=30), reconnect=AGAIN)
    numbers = across_a_restart(results, camera, lambda: HttpCamera(tmp_path, port=camera.port))
    assert [gap.frame_index for gap in results.gaps] == [numbers[-1]]


@pytest.mark.usefixtures("segments")
@pytest.mark.parametrize("path", ["mjpeg", "live.m3u8"])
def test_a_server_that_freezes(client: Client, camera: HttpCamera, path: str) -> None:
    with client.stream(Http(camera.url(path), read_timeout_s=2), reconnect=NEVER) as results:
        next(results)
        camera.freeze()
        with pytest.raises(UnreadableInput, match="nothing came in time"):
            list(results)


def test_a_frozen_server_is_not_opened(camera: HttpCamera) -> None:
    camera.freeze()
    with pytest.raises(UnreadableInput, match="the video cannot be opened: nothing came in time"):
        Http(camera.url("mjpeg"), open_timeout_s=0.5).connect()


def test_a_recording_comes_whole_and_ends(client: Client, camera: HttpCamera, tmp_path: Path) -> None:
    clip = write_video(tmp_path / "clip.mp4", "libx264", options={"bf": "2"}, count=20)
    with client.stream(camera.url("clip.mp4"), mode="block") as results:
        assert len(list(results)) == len(every_frame(clip))
    assert results.ended_reason == "done"


def test_what_is_no_video(client: Client, camera: HttpCamera, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<html>no video</html>")
    with pytest.raises(UnreadableInput, match=r"page\.html: the video cannot be opened"):
        client.stream(camera.url("page.html")).open()
    with pytest.raises(UnreadableInput, match=r"the video cannot be opened: .*404"):
        client.stream(camera.url("nothing")).open()
