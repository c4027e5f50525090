"""Sound, shape of pixels and colours' tags in the files that ``onestream stream -o`` writes."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from clip_files import add_sound, every_frame, sound_of, turn, write_video
from fake_server import FakeServer
from stream_fakes import annotated, read, run

from onestream.client import Client
from onestream.client.video import File, Sound
from onestream.preprocess.video.common.color import planes_of

COUNT = 40
MOST_APART_S = 1.1e-3
"""Matroska counts in milliseconds, and source and copy each round once."""


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1.6 s with B-frames."""
    return write_video(tmp_path_factory.mktemp("clips") / "clip.mp4", "libx264", options={"bf": "2"}, count=COUNT)


def assert_same_sound(copy: Path, source: Path, track: int = 0) -> None:
    found, expected = sound_of(copy, track), sound_of(source, track)
    assert [data for data, _ in found] == [data for data, _ in expected]
    # Where a container knows no negative times, all of the file begins later together.
    np.testing.assert_allclose([at for _, at in found], [at for _, at in expected], atol=MOST_APART_S)


@pytest.mark.parametrize(
    ("source", "codec", "out"),
    [
        ("a.mp4", "aac", "out.mkv"),
        ("a.mkv", "libopus", "out.mp4"),
        ("a.mkv", "pcm_s16le", "out.mkv"),
        ("a.mov", "pcm_s16le", "out.mov"),
        ("a.mp4", "libmp3lame", "out.mp4"),
    ],
)
def test_sound_is_copied_as_it_is_and_in_time(
    server: FakeServer, clip: Path, tmp_path: Path, source: str, codec: str, out: str
) -> None:
    path = add_sound(tmp_path / source, clip, [codec])
    result = run(server, path, "-o", tmp_path / out)
    assert (result.exit_code, result.stderr) == (0, "")
    assert_same_sound(tmp_path / out, path)
    assert len(sound_of(path)) > 10
    assert len(every_frame(tmp_path / out)) == COUNT
    # The server is sent pictures only.
    (seen,) = server.streams
    assert seen.sent == COUNT


def test_every_track_is_copied_and_one_that_the_file_cannot_hold_is_named(
    server: FakeServer, clip: Path, tmp_path: Path
) -> None:
    path = add_sound(tmp_path / "two.mov", clip, ["aac", "pcm_alaw"])
    out, other = tmp_path / "out.mov", tmp_path / "out.mp4"
    assert run(server, path, "-o", out).stderr == ""
    for track in (0, 1):
        assert_same_sound(out, path, track)
    result = run(server, path, "-o", other)
    assert result.exit_code == 0
    assert result.stderr == f"{other}: without the sound in pcm_alaw: mp4 does not take it\n"
    assert_same_sound(other, path)
    with av.open(str(other)) as container:
        assert [one.codec_context.name for one in container.streams.audio] == ["aac"]


def test_sound_that_begins_later_than_the_pictures(server: FakeServer, clip: Path, tmp_path: Path) -> None:
    path = add_sound(tmp_path / "late.mkv", clip, ["libopus"], begin_s=0.7)
    assert run(server, path, "-o", tmp_path / "out.mkv").exit_code == 0
    assert sound_of(path)[0][1] == pytest.approx(0.7, abs=0.02)
    assert_same_sound(tmp_path / "out.mkv", path)


def test_sound_before_the_first_frame_and_long_after_the_last_is_left_out(tmp_path: Path) -> None:
    """Joined at the second key frame of a stream of four seconds, and left after a second."""
    clip = write_video(tmp_path / "clip.mkv", "libx264", options={"bf": "0", "g": "25"}, count=100)
    path = add_sound(tmp_path / "sound.mkv", clip, ["pcm_s16le"])
    sound = Sound()
    format, packets = read(File(path), sound)
    annotated(tmp_path / "part.mkv", packets[25:50], format, lambda _frame: "", sound=sound)
    copied, whole = sound_of(tmp_path / "part.mkv"), sound_of(path)
    first = next(place for place, (data, _) in enumerate(whole) if data == copied[0][0])
    assert [data for data, _ in copied] == [data for data, _ in whole[first : first + len(copied)]]
    # The first frame is shown after a second; a tenth before it is kept, and a second after the last one's end.
    assert whole[first][1] == pytest.approx(0.9, abs=0.022)
    assert copied[-1][1] == pytest.approx(2.0, abs=0.022)
    np.testing.assert_allclose([at for _, at in copied], [at - 1 for _, at in whole[first:][: len(copied)]], atol=2e-3)


def test_python_gets_it_too_and_only_where_it_asks(server: FakeServer, clip: Path, tmp_path: Path) -> None:
    path, sound = add_sound(tmp_path / "a.mp4", clip, ["aac"]), Sound()
    with Client(server.url) as client, client.stream(path, sound=sound) as results:
        assert len(list(results)) == COUNT
    assert len(read(File(path))[1]) == COUNT
    assert [bytes(packet) for packet, _ in sound.take(100.0)] == [data for data, _ in sound_of(path)]


def shape_and_tags(path: Path) -> tuple[Any, ...]:
    with av.open(str(path)) as container:
        video = container.streams.video[0]
        frame: Any = next(container.decode(video))
        context = video.codec_context
        tags = (context.color_primaries, context.color_trc, int(frame.colorspace), int(frame.color_range))
        return video.sample_aspect_ratio, (frame.width, frame.height), tags


def tagged(matrix: int, primaries: int, transfer: int, range_: int = 1) -> Callable[[Any], object]:
    def change(stream: Any) -> None:
        context = stream.codec_context
        context.colorspace, context.color_primaries, context.color_trc = matrix, primaries, transfer
        context.color_range = range_

    return change


@pytest.mark.parametrize("out", ["out.mp4", "out.mkv"])
def test_pixels_keep_their_shape_and_a_turned_picture_its_turned_one(
    server: FakeServer, tmp_path: Path, out: str
) -> None:
    def wide(stream: Any) -> None:
        stream.codec_context.sample_aspect_ratio = Fraction(4, 3)

    path = write_video(tmp_path / "wide.mp4", "libx264", count=10, change=wide)
    turned = turn(tmp_path / "turned.mp4", path, (0, 1, -1, 0))
    for source, shape in ((path, (pytest.approx(4 / 3), (128, 96))), (turned, (pytest.approx(3 / 4), (96, 128)))):
        assert run(server, source, "-o", tmp_path / out).exit_code == 0
        assert shape_and_tags(tmp_path / out)[:2] == shape
        # Upright already, so nobody shall turn it again.
        assert every_frame(tmp_path / out)[0].rotation == 0


@pytest.mark.parametrize(
    ("pixel_format", "matrix", "primaries", "transfer", "range_"),
    [
        ("yuv420p", 1, 1, 1, 1),
        ("yuv420p", 6, 6, 6, 2),
        ("yuv420p10le", 9, 9, 16, 1),
        ("yuv420p", 2, 2, 2, 1),
    ],
    ids=["bt709", "bt601-full", "hdr10", "untagged"],
)
def test_the_copy_s_tags_are_the_source_s_and_true_of_its_samples(
    server: FakeServer, tmp_path: Path, pixel_format: str, matrix: int, primaries: int, transfer: int, range_: int
) -> None:
    path = red(tmp_path / "tagged.mp4", pixel_format, tagged(matrix, primaries, transfer, range_))
    out = tmp_path / "out.mp4"
    assert run(server, path, "-o", out).exit_code == 0
    # A limited range is what nothing said means, and libx264 does not say it alone.
    assert shape_and_tags(out)[2] == (primaries, transfer, matrix, range_ if primaries != 2 else 0)
    for frame in every_frame(out):
        assert frame.format.name in ("yuv420p", "yuvj420p")
        # By another matrix a plane were 3 to 7 levels away; rounding there, back and in the coder is at most 2.
        planes = planes_of(frame)
        for plane, level in zip((planes.y, planes.u, planes.v), RED, strict=True):
            assert abs(plane[-16:, -16:].astype(int) - level).max() <= 2


RED = (100, 90, 190)
"""Y, U and V in 8 bits."""


def red(path: Path, pixel_format: str, change: Callable[[Any], object]) -> Path:
    """Three frames of one colour, of 720 lines, from which some take another matrix where nothing is tagged."""
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=25, options={"crf": "1", "x264-params": "log-level=none"})
        stream.width, stream.height, stream.pix_fmt = 128, 720, pixel_format
        change(stream)
        for _ in range(3):
            frame = av.VideoFrame(128, 720, pixel_format)
            planes = planes_of(frame)
            for plane, level in zip((planes.y, planes.u, planes.v), RED, strict=True):
                plane[:] = level << planes.depth - 8
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def test_sound_stays_in_time_where_clips_are_joined(clip: Path, tmp_path: Path) -> None:
    """Each clip begins with the clock of the first."""
    one, path, out = add_sound(tmp_path / "one.ts", clip, ["aac"]), tmp_path / "three.ts", tmp_path / "out.mkv"
    path.write_bytes(3 * one.read_bytes())
    format, packets = read(File(path), sound := Sound())
    annotated(out, packets, format, lambda _frame: "", sound=sound)
    assert len(every_frame(out)) == 3 * COUNT
    found, expected = sound_of(out), sound_of(one)
    assert len(found) == 3 * len(expected)
    for begin in (0.0, COUNT / 25, 2 * COUNT / 25):
        within = [(data, at) for data, at in found if begin + 0.3 < at < begin + 1.2]
        # Matroska leaves out the seven bytes of each packet's header.
        wanted = [(data[7:], at + begin) for data, at in expected if 0.3 < at < 1.2]
        assert [data for data, _ in within] == [data for data, _ in wanted]
        np.testing.assert_allclose([at for _, at in within], [at for _, at in wanted], atol=2 * MOST_APART_S)
