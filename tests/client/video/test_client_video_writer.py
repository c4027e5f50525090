"""Composed pictures into files: every frame, at its time, playable."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import av
import numpy as np
import pytest
from clip_files import add_sound, every_frame, number_in, picture, sound_of, write_video
from stream_fakes import read

from onestream.client.video import CannotWrite, EncodedFrame, File, FrameResult, Sound, VideoWriter
from onestream.serving.stream_options import VideoOutput
from onestream.serving.video.encoder import Encoder


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


@pytest.mark.parametrize("name", ["out.mp4", "out.mkv", "out.mov"])
def test_frames_come_back_at_their_times(tmp_path: Path, name: str) -> None:
    """A stride of 3, beginning at 4: the file begins at 0."""
    numbers = range(4, 40, 3)
    with VideoWriter(tmp_path / name) as video:
        for result in results(numbers):
            video.write(result)
    frames = every_frame(tmp_path / name)
    assert [number_in(frame.to_ndarray(format="rgb24")) for frame in frames] == list(numbers)
    # Matroska counts in milliseconds.
    assert [frame.time for frame in frames] == pytest.approx([(n - 4) / 25 for n in numbers], abs=1e-3)


def test_missing_and_repeated_times_go_on(tmp_path: Path) -> None:
    times = [None, 0.04, 0.04, 0.08, 100.0, 0.0, 0.04]
    with VideoWriter(tmp_path / "out.mp4") as video:
        for result in results(range(7), times):
            video.write(result)
    frames = every_frame(tmp_path / "out.mp4")
    assert [number_in(frame.to_ndarray(format="rgb24")) for frame in frames] == list(range(7))
    shown = [frame.time for frame in frames]
    assert shown == sorted(set(shown))
    # A gap of 100 seconds is no reason for another one where the clock is set back.
    assert shown[-1] < 100.2


def test_frames_without_times_are_as_far_apart_as_their_numbers(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "out.mp4", fps=25) as video:
        for result in results(range(0, 20, 5), [None] * 4):
            video.write(result)
    assert [frame.time for frame in every_frame(tmp_path / "out.mp4")] == pytest.approx([0, 0.2, 0.4, 0.6])


def test_nothing_is_written_before_the_first_key_frame(tmp_path: Path) -> None:
    late = results(range(10), keyframe_s=0.2)
    keys = [result.frame_index for result in late if result.video and result.video.is_key]
    assert keys == [0, 5]
    with VideoWriter(tmp_path / "out.mp4") as video:
        for result in late[2:]:
            video.write(result)
        assert video.paths == [tmp_path / "out.mp4"]
    frames = every_frame(tmp_path / "out.mp4")
    assert [number_in(frame.to_ndarray(format="rgb24")) for frame in frames] == list(range(5, 10))


def test_another_size_begins_another_file(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "out.mp4") as video:
        for result in [*results(range(3)), *results(range(3, 8), size_hw=(64, 160))]:
            video.write(result)
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
    with VideoWriter(tmp_path / "out.mkv", sound=sound_in(source)) as video:
        for result in [*results(range(8)), *results(range(8, 20), size_hw=(64, 160))]:
            video.write(result)
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
    with VideoWriter(tmp_path / "out.mp4", sound=sound_in(source)) as video:
        for result in results(range(3), [None] * 3):
            video.write(result)
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
