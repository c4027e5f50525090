"""By which matrix and range files become RGB: as other libraries do it, and told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest
from clip_files import every_frame, write_video
from definitions import AS_IT_IS
from stream_files import decoded, stream_of

from onestream.preprocess import BadSample
from onestream.preprocess.video import Clip, ClipMaker, ColorRule, Colors, VideoFile
from onestream.preprocess.video.common.tolerances import tolerance
from onestream.preprocess.video.streams.stream import StreamDecoder

Frames = npt.NDArray[np.uint8]
COUNT = 2
TAGS = {None: 2, "bt601": 6, "bt709": 1, "bt2020": 9}
RANGES = {None: 0, "limited": 1, "full": 2}


def by_pyav(path: Path) -> Frames:
    return np.stack([frame.to_ndarray(format="rgb24") for frame in every_frame(path)])


def by_opencv(path: Path) -> Frames:
    cv2 = pytest.importorskip("cv2")
    capture = cv2.VideoCapture(str(path))
    return np.stack([capture.read()[1][:, :, ::-1] for _ in range(COUNT)])


def by_decord(path: Path) -> Frames:
    decord = pytest.importorskip("decord")
    return decord.VideoReader(str(path)).get_batch(range(COUNT)).asnumpy()


def a_video(
    path: Path, matrix: str | None = None, range_: str | None = None, size_hw: tuple[int, int] = (96, 128)
) -> Path:
    def tagged(stream: Any) -> None:
        stream.codec_context.colorspace, stream.codec_context.color_range = TAGS[matrix], RANGES[range_]

    return write_video(path, "libx264", count=COUNT, size_hw=size_hw, options={"preset": "ultrafast"}, change=tagged)


def ours(path: Path, **rule: Any) -> Frames:
    return ClipMaker(AS_IT_IS, Clip(), color=ColorRule(**rule)).make(path)


def of_stream(path: Path, **said: Any) -> Frames:
    format, packets = stream_of(path, **said)
    return np.stack([frame.pixels for frame in decoded(StreamDecoder(AS_IT_IS, format), packets)])


def assert_as(one: Frames, other: Frames) -> None:
    difference, allowed = np.abs(one.astype(int) - other), tolerance("swscale-subsampled")
    assert difference.max() <= allowed.max_level
    assert difference.mean() <= allowed.mean_level


@pytest.mark.parametrize("size_hw", [(96, 128), (720, 1280)], ids=str)
def test_a_file_without_tags_has_the_colours_of_other_libraries(tmp_path: Path, size_hw: tuple[int, int]) -> None:
    path = a_video(tmp_path / "v.mp4", size_hw=size_hw)
    found, wrong = ours(path), ours(path, matrix="bt709")
    for read in (by_pyav, by_opencv, by_decord):
        theirs = read(path)
        assert_as(found, theirs)
        with pytest.raises(AssertionError):
            assert_as(wrong, theirs)


@pytest.mark.parametrize("range_", ["limited", "full"])
@pytest.mark.parametrize("matrix", ["bt601", "bt709", "bt2020"])
def test_tags_are_obeyed_as_in_libraries_that_obey_them(tmp_path: Path, matrix: str, range_: str) -> None:
    """OpenCV 4.11 obeys the range only."""
    path = a_video(tmp_path / "v.mp4", matrix, range_)
    found, wrong = ours(path), ours(path, matrix="bt709" if matrix == "bt601" else "bt601")
    for read in (by_pyav, by_decord):
        theirs = read(path)
        assert_as(found, theirs)
        with pytest.raises(AssertionError):
            assert_as(wrong, theirs)
    np.testing.assert_array_equal(of_stream(path), found)


@pytest.mark.parametrize("range_", ["limited", "full"])
def test_opencv_takes_the_range_from_the_file(tmp_path: Path, range_: str) -> None:
    path = a_video(tmp_path / "v.mp4", None, range_)
    assert_as(ours(path), by_opencv(path))


@pytest.mark.parametrize(
    ("matrix", "range_", "expected"),
    [
        (None, None, ("bt601", "limited", "assumed", "assumed")),
        (None, "full", ("bt601", "full", "assumed", "file")),
        ("bt709", None, ("bt709", "limited", "file", "assumed")),
        ("bt2020", "limited", ("bt2020", "limited", "file", "file")),
    ],
)
def test_files_and_streams_say_what_is_used_and_why(
    tmp_path: Path, matrix: str | None, range_: str | None, expected: tuple[Any, ...]
) -> None:
    path = a_video(tmp_path / "v.mp4", matrix, range_, size_hw=(720, 1280))
    if range_ is None and matrix is not None:
        # H.264 says matrix and range together, or neither: only the container says the matrix alone.
        path = write_video(tmp_path / "v.mkv", "mpeg4", count=COUNT, change=_bt709)
    with VideoFile(path) as video:
        assert video.colors() == Colors(*expected)
        assert video.colors(ColorRule(matrix="bt601", range="full")) == Colors("bt601", "full", "chosen", "chosen")
    with av.open(str(path)) as container:
        context = container.streams.video[0].codec_context
        said = {"matrix_tag": int(context.colorspace), "full_range": {0: None, 1: False, 2: True}[context.color_range]}
    format, packets = stream_of(path, **said)
    decoder = StreamDecoder(AS_IT_IS, format)
    assert decoder.colors == Colors(*expected)
    assert {frame.colors for frame in decoded(decoder, packets)} == {Colors(*expected)}
    np.testing.assert_array_equal(of_stream(path, **said), ours(path))


def _bt709(stream: Any) -> None:
    stream.codec_context.colorspace = TAGS["bt709"]


def test_what_the_stream_says_goes_before_what_was_declared(tmp_path: Path) -> None:
    format, packets = stream_of(a_video(tmp_path / "v.mp4", "bt709", "limited"))
    decoder = StreamDecoder(AS_IT_IS, format)
    assert decoder.colors == Colors("bt601", "limited", "assumed", "assumed")
    frames = decoded(decoder, packets)
    assert decoder.colors == frames[0].colors == Colors("bt709", "limited", "file", "file")


def test_a_matrix_that_cannot_be_converted_is_named(tmp_path: Path) -> None:
    strange = {"x264-params": "log-level=none:colormatrix=YCgCo"}
    path = write_video(tmp_path / "v.mp4", "libx264", count=COUNT, options=strange)
    with VideoFile(path) as video, pytest.raises(BadSample, match="frame 0: is tagged with matrix coefficients 8"):
        video.colors()
    format, packets = stream_of(path, matrix_tag=8)
    decoder = StreamDecoder(AS_IT_IS, format)
    assert decoder.colors is None
    with pytest.raises(BadSample, match="frame 0: is tagged with matrix coefficients 8"):
        decoded(decoder, packets)
