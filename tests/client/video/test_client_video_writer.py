"""Videos that ``VideoWriter`` and ``onestream stream -o`` write: frames at their times, sound, shape and colours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from clip_files import add_sound, every_frame, number_in, picture, sound_of, turn, write_video
from fake_server import FakeServer
from stream_fakes import annotated, read, run

from onestream.client import Client
from onestream.client.video import CannotWrite, EncodedFrame, File, FrameResult, Sound, VideoWriter
from onestream.preprocess.video.common.color import planes_of
from onestream.serving.stream_options import VideoOutput
from onestream.serving.video.encoder import Encoder

COUNT = 40
MOST_APART_S = 1.1e-3
"""Matroska counts in milliseconds, and source and copy each round once."""


def results(
    numbers: Sequence[int],
    seconds: Sequence[float | None] | None = None,
    *,
    size_hw: tuple[int, int] = (96, 128),
    keyframe_s: float = 100,
) -> list[FrameResult]:
    """Results whose pictures show their numbers."""

    encoder = Encoder(VideoOutput(crf=10, keyframe_s=keyframe_s), fps=25)
    found = []
    for place, number in enumerate(numbers):
        at_s = number / 25 if seconds is None else seconds[place]
        frame = av.VideoFrame.from_ndarray(picture(number, size_hw), format="rgb24").reformat(format="yuv420p")
        coded = encoder.encode(frame, at_s=at_s)
        video = EncodedFrame(coded.data, coded.is_key, size_hw[1], size_hw[0])
        found.append(FrameResult(number, None, at_s, 1.0, 1.0, {}, video=video))
    return found


def written(path: Path, frames: Sequence[FrameResult], **options: Any) -> VideoWriter:
    with VideoWriter(path, **options) as video:
        for frame in frames:
            video.write(frame)
    return video


def numbers_in(path: Path) -> list[int]:
    return [number_in(frame.to_ndarray(format="rgb24")) for frame in every_frame(path)]


@pytest.mark.parametrize("name", ["out.mp4", "out.mkv", "out.mov"])
def test_frames_come_back_at_their_times(tmp_path: Path, name: str) -> None:
    """A stride of 3, beginning at 4: the file begins at 0."""
    numbers = range(4, 40, 3)
    written(tmp_path / name, results(numbers))
    assert numbers_in(tmp_path / name) == list(numbers)
    # Matroska counts in milliseconds.
    assert [frame.time for frame in every_frame(tmp_path / name)] == pytest.approx(
        [(n - 4) / 25 for n in numbers], abs=1e-3
    )


def test_missing_and_repeated_times_go_on(tmp_path: Path) -> None:
    times = [None, 0.04, 0.04, 0.08, 100.0, 0.0, 0.04]
    written(tmp_path / "out.mp4", results(range(7), times))
    assert numbers_in(tmp_path / "out.mp4") == list(range(7))
    shown = [frame.time for frame in every_frame(tmp_path / "out.mp4")]
    assert shown == sorted(set(shown))
    # A gap of 100 seconds is no reason for another one where the clock is set back.
    assert shown[-1] < 100.2


def test_frames_without_times_are_as_far_apart_as_their_numbers(tmp_path: Path) -> None:
    written(tmp_path / "out.mp4", results(range(0, 20, 5), [None] * 4), fps=25)
    assert [frame.time for frame in every_frame(tmp_path / "out.mp4")] == pytest.approx([0, 0.2, 0.4, 0.6])


def test_nothing_is_written_before_the_first_key_frame(tmp_path: Path) -> None:
    late = results(range(10), keyframe_s=0.2)
    keys = [result.frame_index for result in late if result.video and result.video.is_key]
    assert keys == [0, 5]
    assert written(tmp_path / "out.mp4", late[2:]).paths == [tmp_path / "out.mp4"]
    assert numbers_in(tmp_path / "out.mp4") == list(range(5, 10))


def test_another_size_begins_another_file(tmp_path: Path) -> None:
    video = written(tmp_path / "out.mp4", [*results(range(3)), *results(range(3, 8), size_hw=(64, 160))])
    assert video.paths == [tmp_path / "out.mp4", tmp_path / "out-2.mp4"]
    first, second = (every_frame(path) for path in video.paths)
    assert ([(f.width, f.height) for f in first], len(second)) == ([(128, 96)] * 3, 5)
    assert (second[0].width, second[0].height) == (160, 64)


def sound_in(path: Path) -> Sound:
    """All the sound of a file, as a stream takes it aside."""
    sound = Sound()
    read(File(path), sound)
    return sound


def test_sound_goes_on_in_the_next_file(tmp_path: Path) -> None:
    source = write_video(tmp_path / "silent.mp4", "libx264", count=20)
    source = add_sound(tmp_path / "source.mov", source, ["pcm_s16le", "pcm_alaw"])
    frames = [*results(range(8)), *results(range(8, 20), size_hw=(64, 160))]
    video = written(tmp_path / "out.mkv", frames, sound=sound_in(source))
    assert video.left_out == [
        f"{path}: without the sound in pcm_alaw: matroska does not take it" for path in video.paths
    ]
    first, second = (sound_of(path) for path in video.paths)
    assert [data for data, _ in first + second] == [data for data, _ in sound_of(source)]
    # 1,024 samples are 21 ms: the last packet of the first file begins in its last frame.
    assert first[-1][1] < 8 / 25 <= first[-1][1] + 0.022
    np.testing.assert_allclose(
        [at + 8 / 25 for _, at in second], [at for _, at in sound_of(source)[len(first) :]], atol=2e-3
    )


def test_sound_that_is_not_needed_any_more_does_not_hold_up_the_file(tmp_path: Path) -> None:
    source = add_sound(tmp_path / "source.mp4", write_video(tmp_path / "silent.mp4", "libx264"), ["aac"])
    written(tmp_path / "out.mp4", results(range(3), [None] * 3), sound=sound_in(source))
    # Frames without times cannot be brought together with sound.
    assert len(every_frame(tmp_path / "out.mp4")) == 3
    with av.open(str(tmp_path / "out.mp4")) as container:
        assert not [packet for packet in container.demux() if packet.stream.type == "audio"]


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    (result,) = results([0])
    for name in ("nowhere/out.mp4", "out.unknown", "out.webm"):
        with pytest.raises(CannotWrite, match=name):
            VideoWriter(tmp_path / name).write(result)
    with pytest.raises(ValueError, match="frame 3 has no picture"):
        VideoWriter(tmp_path / "out.mp4").write(FrameResult(3, None, None, 1.0, 1.0, {}))
    VideoWriter(tmp_path / "never.mp4").close()
    assert not (tmp_path / "never.mp4").exists()


def assert_same_sound(copy: Path, source: Path, track: int = 0) -> None:
    found, expected = sound_of(copy, track), sound_of(source, track)
    assert [data for data, _ in found] == [data for data, _ in expected]
    # Where a container knows no negative times, all of the file begins later together.
    np.testing.assert_allclose([at for _, at in found], [at for _, at in expected], atol=MOST_APART_S)


@pytest.mark.parametrize(
    ("source", "codec", "out", "begin_s"),
    [
        ("a.mp4", "aac", "out.mkv", 0.0),
        ("a.mkv", "libopus", "out.mp4", 0.0),
        ("a.mkv", "libopus", "out.mkv", 0.7),
        ("a.mkv", "pcm_s16le", "out.mkv", 0.0),
        ("a.mov", "pcm_s16le", "out.mov", 0.0),
        ("a.mp4", "libmp3lame", "out.mp4", 0.0),
    ],
)
def test_sound_is_copied_as_it_is_and_in_time(
    server: FakeServer, clip: Path, tmp_path: Path, source: str, codec: str, out: str, begin_s: float
) -> None:
    path = add_sound(tmp_path / source, clip, [codec], begin_s=begin_s)
    result = run(server, path, "-o", tmp_path / out)
    assert (result.exit_code, result.stderr) == (0, "")
    assert_same_sound(tmp_path / out, path)
    assert len(sound_of(path)) > 10
    assert not begin_s or sound_of(path)[0][1] == pytest.approx(begin_s, abs=0.02)
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


def test_sound_before_the_first_frame_and_long_after_the_last_is_left_out(tmp_path: Path) -> None:
    """Joined at the second key frame of a stream of four seconds, and left after a second."""
    clip = write_video(tmp_path / "clip.mkv", "libx264", options={"bf": "0", "g": "25"}, count=100)
    path = add_sound(tmp_path / "sound.mkv", clip, ["pcm_s16le"])
    sound = Sound()
    format, packets = read(File(path), sound)
    annotated(tmp_path / "part.mkv", packets[25:50], format, sound=sound)
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
        # Already upright: players must not rotate it again.
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
    annotated(out, packets, format, sound=sound)
    assert len(every_frame(out)) == 3 * COUNT
    found, expected = sound_of(out), sound_of(one)
    assert len(found) == 3 * len(expected)
    for begin in (0.0, COUNT / 25, 2 * COUNT / 25):
        within = [(data, at) for data, at in found if begin + 0.3 < at < begin + 1.2]
        # Matroska leaves out the seven bytes of each packet's header.
        wanted = [(data[7:], at + begin) for data, at in expected if 0.3 < at < 1.2]
        assert [data for data, _ in within] == [data for data, _ in wanted]
        np.testing.assert_allclose([at for _, at in within], [at for _, at in wanted], atol=2 * MOST_APART_S)
