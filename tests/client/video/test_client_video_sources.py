"""Sources: what is recognized, and which packets they give, compared with PyAV's own reading of the same files."""

from __future__ import annotations

import io
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import av
import pytest
from clip_files import begin_at, every_frame, turn, write_video
from stream_fakes import read

from onestream.client import TruncatedInput, UnreadableInput, UnsupportedInput, images
from onestream.client.video import AnnexB, File, Http, PacketSource, Rtsp, Webcam, source_of
from onestream.client.video.demux import ContainerFeed
from onestream.client.video.sources import Feed
from onestream.client.video.webcam import feed_of
from onestream.preprocess.errors import BadSample
from onestream.preprocess.video.clips.decode import VideoFile
from onestream.preprocess.video.common.orientation import orientation_of
from onestream.wire.video import Open, Packet


@contextmanager
def pipe_of(data: bytes) -> Iterator[BinaryIO]:
    """What can only be read, once."""
    reading, writing = os.pipe()

    def feed() -> None:
        # Whoever reads may leave before the end.
        with suppress(BrokenPipeError), open(writing, "wb") as pipe:
            pipe.write(data)

    writer = threading.Thread(target=feed)
    writer.start()
    with open(reading, "rb") as pipe:
        yield pipe
    writer.join()


def decoded(format: Open, packets: list[Packet]) -> list[bytes]:
    """The luma of all frames, from format and packets alone."""
    # FFmpeg's own decoder of AV1 needs hardware.
    context = av.CodecContext.create("libdav1d" if format.codec == "av1" else format.codec, "r")
    context.extradata = format.extradata or None
    frames = []
    for packet in packets:
        coded = av.Packet(packet.data)
        coded.pts, coded.dts, coded.time_base = packet.pts, packet.dts, format.time_base
        frames += context.decode(coded)  # type: ignore[attr-defined]
    frames += context.decode(None)  # type: ignore[attr-defined]
    return [bytes(frame.planes[0]) for frame in frames]


@pytest.mark.parametrize(
    ("codec", "name", "options"),
    [
        ("libx264", "a.mp4", {"bf": "2"}),
        ("libx264", "a.ts", {"bf": "2"}),
        ("libx264", "a.h264", {"bf": "2"}),
        ("libx265", "a.mkv", {}),
        ("libx265", "a.hevc", {}),
        ("libvpx-vp9", "a.webm", {}),
        ("libsvtav1", "a.mp4", {}),
        ("mjpeg", "a.avi", {}),
    ],
)
def test_a_file_gives_all_that_decoding_needs(tmp_path: Path, codec: str, name: str, options: dict[str, str]) -> None:
    path = write_video(
        tmp_path / name, codec, options=options, pixel_format="yuvj420p" if codec == "mjpeg" else "yuv420p", count=20
    )
    format, packets = read(File(path))
    assert (format.width, format.height) == (128, 96)
    assert format.fps == 25.0
    assert packets[0].is_key
    assert decoded(format, packets) == [bytes(frame.planes[0]) for frame in every_frame(path)]


@pytest.mark.parametrize(("tags", "said"), [((2, 0), (2, None)), ((1, 1), (1, False)), ((6, 2), (6, True))])
def test_a_file_s_colours_are_told_as_it_tells_them(
    tmp_path: Path, tags: tuple[int, int], said: tuple[int, bool | None]
) -> None:
    def tagged(stream: Any) -> None:
        stream.codec_context.colorspace, stream.codec_context.color_range = tags

    format, _ = read(File(write_video(tmp_path / "a.mp4", "libx264", count=2, change=tagged)))
    assert (format.matrix_tag, format.full_range) == said


def test_paths_bytes_file_objects_and_pipes_are_the_same(
    clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe with a name is read once, and waited for for a while."""
    expected = read(File(clip))
    named = tmp_path / "pipe.mp4"
    os.mkfifo(named)
    writer = threading.Thread(target=named.write_bytes, args=[clip.read_bytes()])
    writer.start()
    with clip.open("rb") as file, pipe_of(clip.read_bytes()) as pipe:
        for given in (clip, str(clip), clip.read_bytes(), file, pipe, named):
            assert read(source_of(given)) == expected
    writer.join()
    monkeypatch.setattr(images, "PIPE_SILENCE_S", 0.05)
    with pytest.raises(UnreadableInput, match=r"gives nothing for 0.05 s"):
        source_of(named).connect()


def test_what_lies_before_the_start_of_an_edit_list_is_marked(tmp_path: Path, clip: Path) -> None:
    _, packets = read(File(begin_at(tmp_path / "cut.mp4", clip, 4)))
    assert sorted(p.pts < 0 for p in packets if p.pts is not None) == sorted(p.is_discarded for p in packets)
    assert sum(packet.is_discarded for packet in packets) == 4


def test_times_are_the_containers(clip: Path) -> None:
    format, packets = read(File(clip))
    with av.open(str(clip)) as container:
        stored = [(p.pts, p.dts, p.duration, p.is_keyframe, bytes(p)) for p in container.demux(video=0) if p.size]
        assert format.time_base == container.streams.video[0].time_base
    assert [(p.pts, p.dts, p.duration, p.is_key, p.data) for p in packets] == stored


@pytest.mark.parametrize(
    "matrix", [(1, 0, 0, 1), (0, 1, -1, 0), (-1, 0, 0, -1), (0, -1, 1, 0), (-1, 0, 0, 1), (0, 1, 1, 0)], ids=str
)
def test_how_it_is_turned_is_what_training_takes_from_the_frame(
    clip: Path, tmp_path: Path, matrix: tuple[int, int, int, int]
) -> None:
    turned = turn(tmp_path / "turned.mp4", clip, matrix)
    (format, packets), expected = read(File(turned)), orientation_of(every_frame(turned)[0])
    for one in ("transpose", "flip_rows", "flip_columns"):
        assert getattr(format, one) == getattr(expected, one)
    assert packets == read(File(clip))[1]


@pytest.mark.parametrize(
    ("codec", "encoder", "options"),
    [("h264", "libx264", {"bf": "2", "g": "10"}), ("hevc", "libx265", {"bf": "0", "g": "10"})],
)
def test_annex_b_in_pieces_of_any_size(tmp_path: Path, codec: str, encoder: str, options: dict[str, str]) -> None:
    path = write_video(tmp_path / f"a.{codec}", encoder, options=options, count=20)
    data = path.read_bytes()
    pieces = itertools.chain([b""], (data[at : at + 777] for at in range(0, len(data), 777)))
    format, packets = read(AnnexB(pieces, codec=codec, fps=12.5))
    assert format.time_base == Fraction(2, 25)
    assert (format.codec, format.width, format.height, format.fps) == (codec, 128, 96, 12.5)
    assert [number for number, packet in enumerate(packets) if packet.is_key] == [0, 10]
    assert all(packet.pts is None and packet.dts is None and packet.duration == 1 for packet in packets)
    assert b"".join(packet.data for packet in packets) == data
    assert decoded(format, packets) == [bytes(frame.planes[0]) for frame in every_frame(path)]


@pytest.mark.parametrize("joined", [False, True])
def test_real_time(clip: Path, tmp_path: Path, joined: bool) -> None:
    if joined:
        clip = write_video(tmp_path / "clip.ts", "libx264", count=3, options={"bf": "0"})
        clip.write_bytes(4 * clip.read_bytes())
    feed = File(clip, realtime=True).connect()
    began_s, at_s = time.monotonic(), []
    for packet in itertools.islice(feed.packets(), 11):
        assert packet.data
        at_s.append(time.monotonic() - began_s)
    feed.close()
    # Frames of 40 ms; a busy machine is late, but none is early (1 ms for the clock's reading).
    assert all(at >= 0.04 * number - 0.001 for number, at in enumerate(at_s))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("/nowhere/clip.mp4", "clip.mp4: the video cannot be opened: No such file"),
        (b"this is text", "12 bytes: the video cannot be opened: Invalid data"),
        ("rtsp://user:secret@127.0.0.1:1/x", "rtsp://127.0.0.1:1/x: the video cannot be opened: Connection refused"),
        ("/dev/video77", "/dev/video77: the video cannot be opened"),
    ],
)
def test_what_cannot_be_opened(given: str | bytes, why: str) -> None:
    with pytest.raises(UnreadableInput) as raised:
        source_of(given).connect()
    assert why in str(raised.value)
    assert "secret" not in str(raised.value)


def test_what_has_no_pictures(tmp_path: Path) -> None:
    path = tmp_path / "sound.wav"
    with av.open(str(path), "w") as container:
        sound = container.add_stream("pcm_s16le", rate=8000, layout="mono")
        audio = av.AudioFrame(format="s16", layout="mono", samples=320)
        audio.sample_rate = 8000
        container.mux(sound.encode(audio))
    with pytest.raises(UnreadableInput, match="there is no video in it"):
        File(path).connect()
    with pytest.raises(UnreadableInput, match="no picture of h264"):
        AnnexB([b"", b""]).connect()


@pytest.mark.parametrize(
    ("name", "container_options"), [("a.mp4", {"movflags": "faststart"}), ("a.mkv", {}), ("a.ts", {})]
)
@pytest.mark.parametrize("form", [Path, Path.read_bytes, lambda path: path.open("rb")], ids=["path", "bytes", "file"])
def test_a_file_that_is_cut_gives_what_is_there_and_says_so(
    tmp_path: Path, name: str, container_options: dict[str, str], form: Callable[[Path], object]
) -> None:
    path = write_video(tmp_path / name, "libx264", container_options=container_options)
    whole = read(File(path))[1]
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 + 1])
    feed: Feed = source_of(form(path)).connect()  # type: ignore[arg-type]
    found: list[Packet] = []
    with pytest.raises(TruncatedInput, match=r": truncated: the file ends after \d+ of \d+ bytes"):
        found.extend(feed.packets())
    feed.close()
    assert 0 < len(found) < len(whole)
    assert found[:-1] == whole[: len(found) - 1]
    # Training refuses the same files with the same words.
    with pytest.raises(BadSample, match=r": truncated: the file ends after \d+ of \d+ bytes"):
        VideoFile(path)


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_a_cut_pipe_says_so_by_its_packets(tmp_path: Path, share: float) -> None:
    """Of a pipe nothing can be looked up; between two pictures only the index tells that more should come."""
    path = write_video(tmp_path / "a.mp4", "libx264", container_options={"movflags": "faststart"})
    data = path.read_bytes()
    with av.open(str(path)) as container:
        starts = [packet.pos for packet in container.demux(video=0) if packet.size]
    border = starts[round(share * len(starts))]
    cases = [(border + 1, "within its picture")]
    if hasattr(av.stream.Stream, "index_entries"):
        # PyAV 16 does not show the index.
        cases.append((border, "of 40 pictures"))
    for length, why in cases:
        truncated = pytest.raises(TruncatedInput, match=f"truncated: the file ends .*{why}")
        with pipe_of(data[:length]) as pipe, truncated:
            read(File(pipe))


def test_stopping_ends_a_wait_and_truncates_nothing(tmp_path: Path, clip: Path) -> None:
    cut = write_video(tmp_path / "a.mkv", "libx264")
    cut.write_bytes(cut.read_bytes()[:-100])
    for source in (File(clip, realtime=True), File(cut)):
        feed = source.connect()
        packets = feed.packets()
        next(packets)
        feed.stop()
        assert list(packets) == []
        feed.close()


@pytest.mark.parametrize("has_sound", [False, True], ids=["silent", "with sound"])
def test_a_frozen_camera_is_lost_at_the_first_timeout(
    clip: Path, monkeypatch: pytest.MonkeyPatch, has_sound: bool
) -> None:
    """FFmpeg's parser still gives a picture then, and would wait as long again; sound may go on."""
    container = av.open(str(clip))
    feed = ContainerFeed(container, "camera", endless=True, read_timeout_s=0.05)

    def demux(*_: object) -> Iterator[object]:
        packets = container.demux(video=0)
        yield next(packets)
        time.sleep(0.05)
        yield SimpleNamespace(size=1, stream_index=1) if has_sound else next(packets)
        raise AssertionError("waits again")

    monkeypatch.setattr(feed, "_container", SimpleNamespace(demux=demux, streams=container.streams))
    with container, pytest.raises(UnreadableInput, match="nothing came in time"):
        list(feed.packets())


def test_what_is_recognized() -> None:
    for kind, addresses in (
        (Rtsp, ("rtsp://camera/x", "RTSPS://camera/x")),
        (Http, ("http://camera/video", "HTTPS://camera/x.m3u8")),
        (Webcam, ("/dev/video2",)),
        (File, ("a/b.mp4",)),
    ):
        assert [source_of(address) for address in addresses] == [kind(address) for address in addresses]
    assert source_of(Path("a/b.mp4")) == File("a/b.mp4")
    assert source_of(webcam := Webcam()) is webcam
    assert source_of(io.BytesIO(b"x")).name == "a file"
    assert Rtsp("rtsp://user:pass@camera:554/x").name == "rtsp://camera:554/x"
    assert Http("http://camera/v?user=a&password=b").name == "http://camera/v?user=…&password=…"
    assert Http("https://user:pass@camera/x").name == "https://camera/x"
    with pytest.raises(UnsupportedInput, match=r"ftp:// are not read; expected a file, rtsp://, http:// or /dev/video"):
        source_of("ftp://somewhere/x.mp4")
    with pytest.raises(UnsupportedInput, match="got list as a video source"):
        source_of([b"x"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="codec='vp9', expected 'h264' or 'hevc'"):
        AnnexB([], codec="vp9")
    with pytest.raises(ValueError, match="transport='quic'"):
        Rtsp("rtsp://x", transport="quic")


def test_raw_pictures_are_encoded_here() -> None:
    """FFmpeg's test picture stands for a webcam that does not compress: both give frames, and not packets to send."""
    container = av.open("testsrc=size=64x48:rate=10:duration=2", format="lavfi")
    feed = feed_of(container, "test")
    packets = list(feed.packets())
    feed.close()
    assert feed.format.codec == "h264"
    assert packets[0].is_key
    assert [packet.pts for packet in packets] == list(range(20))
    assert len(decoded(feed.format, packets)) == 20


def test_packets_of_ones_own() -> None:
    format = Open(codec="vp9", width=1, height=2, time_base=Fraction(1, 3))
    packets = [Packet(b"x", 0, 0, 1, True), Packet(b"y", 1, 1, 1, False)]
    assert read(PacketSource(format, packets)) == (format, packets)
