"""Streams from real servers of RTSP and HTTP: live, frozen, finished, and gone for a while."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from clip_files import every_frame, write_video
from fake_server import FakeServer
from http_video import FPS, HttpCamera, Segments
from patience import wait_until
from rtsp_server import RtspServer
from stream_fakes import across_a_restart

from onestream.client import Client, UnreadableInput
from onestream.client.video import NEVER, Http, Reconnect, Rtsp

AGAIN = Reconnect(attempts=100, first_s=0.2, longest_s=0.5)


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


@pytest.mark.needs_rtsp
def test_a_recording_over_rtsp_comes_whole_and_ends(
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


@pytest.mark.needs_rtsp
def test_rtsp_is_live_and_has_no_end(server: FakeServer, client: Client, rtsp: RtspServer) -> None:
    with client.stream(rtsp.url("live")) as results:
        for frame in results:
            # The pictures repeat after 50.
            if frame.frame_index == 60:
                break
    assert server.streams[0].opened.mode == "drop_oldest"
    assert frame.pts_seconds == pytest.approx(60 / 25, abs=0.1)
    assert results.ended_reason == "closed"


@pytest.mark.needs_rtsp
def test_an_rtsp_server_that_goes_away_and_comes_back(
    client: Client, rtsp: RtspServer, files: tuple[Path, Path]
) -> None:
    results = client.stream(Rtsp(rtsp.url("live"), read_timeout_s=3), reconnect=AGAIN)
    numbers = across_a_restart(results, rtsp, lambda: RtspServer(files[0], port=rtsp.port))
    assert len(numbers) > 20
    (gap,) = results.gaps
    assert gap.frame_index == numbers[-1]
    assert "rtsp://127.0.0.1" in gap.reason


@pytest.mark.needs_rtsp
def test_an_rtsp_server_without_that_stream(client: Client, rtsp: RtspServer) -> None:
    with pytest.raises(UnreadableInput, match="nothing: the video cannot be opened"):
        client.stream(rtsp.url("nothing")).open()


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
def test_an_http_server_that_goes_away_and_comes_back(
    client: Client, camera: HttpCamera, tmp_path: Path, path: str
) -> None:
    results = client.stream(Http(camera.url(path), read_timeout_s=30), reconnect=AGAIN)
    numbers = across_a_restart(results, camera, lambda: HttpCamera(tmp_path, port=camera.port))
    assert [gap.frame_index for gap in results.gaps] == [numbers[-1]]


@pytest.mark.usefixtures("segments")
@pytest.mark.parametrize("path", ["mjpeg", "live.m3u8"])
def test_an_http_server_that_freezes(client: Client, camera: HttpCamera, path: str) -> None:
    with client.stream(Http(camera.url(path), read_timeout_s=2), reconnect=NEVER) as results:
        next(results)
        camera.freeze()
        with pytest.raises(UnreadableInput, match="nothing came in time"):
            list(results)


def test_a_recording_over_http_comes_whole_and_ends(client: Client, camera: HttpCamera, tmp_path: Path) -> None:
    clip = write_video(tmp_path / "clip.mp4", "libx264", options={"bf": "2"}, count=20)
    with client.stream(camera.url("clip.mp4"), mode="block") as results:
        assert len(list(results)) == len(every_frame(clip))
    assert results.ended_reason == "done"


def test_what_cannot_be_opened_over_http(camera: HttpCamera, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<html>no video</html>")
    for path, why in (("page.html", r"page\.html: the video cannot be opened"), ("nothing", "cannot be opened: .*404")):
        with pytest.raises(UnreadableInput, match=why):
            Http(camera.url(path)).connect()
    camera.freeze()
    with pytest.raises(UnreadableInput, match="the video cannot be opened: nothing came in time"):
        Http(camera.url("mjpeg"), open_timeout_s=0.5).connect()
