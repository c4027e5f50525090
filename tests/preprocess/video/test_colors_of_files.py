"""By which matrix and range files become RGB: as other libraries do it, and told; HDR, mapped where a rule says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest
from clip_files import every_frame, write_video
from definitions import AS_IT_IS, in_levels
from hdr_files import as_hdr
from sample_images import photo
from stream_files import CLASSIFY, assert_near, decoded, pixels_of, played, stream_of

from onestream.preprocess import BadSample, Letterbox
from onestream.preprocess.video import Clip, ClipMaker, ColorRule, Colors, VideoFile
from onestream.preprocess.video.common.tone import Hdr, tone_mapped, tone_mapped_reference
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
    path: Path, matrix: str | None = None, range_: str | None = None, *, codec: str = "libx264", **options: Any
) -> Path:
    def tagged(stream: Any) -> None:
        stream.codec_context.colorspace, stream.codec_context.color_range = TAGS[matrix], RANGES[range_]

    return write_video(path, codec, count=COUNT, change=tagged, **options)


def ours(path: Path, **rule: Any) -> Frames:
    return ClipMaker(AS_IT_IS, Clip(), color=ColorRule(**rule)).make(path)


def assert_as(one: Frames, other: Frames) -> None:
    assert_near(one, other, "swscale-subsampled")


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
    ranged = a_video(tmp_path / "ranged.mp4", None, range_)
    assert_as(ours(ranged), by_opencv(ranged))
    path = a_video(tmp_path / "v.mp4", matrix, range_)
    found, wrong = ours(path), ours(path, matrix="bt709" if matrix == "bt601" else "bt601")
    for read in (by_pyav, by_decord):
        theirs = read(path)
        assert_as(found, theirs)
        with pytest.raises(AssertionError):
            assert_as(wrong, theirs)
    np.testing.assert_array_equal(pixels_of(played(*stream_of(path))[1]), found)


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
        path = a_video(tmp_path / "v.mkv", matrix, codec="mpeg4")
    with VideoFile(path) as video:
        assert video.colors() == Colors(*expected)
        assert video.colors(ColorRule(matrix="bt601", range="full")) == Colors("bt601", "full", "chosen", "chosen")
    with av.open(str(path)) as container:
        context = container.streams.video[0].codec_context
        said = {"matrix_tag": int(context.colorspace), "full_range": {0: None, 1: False, 2: True}[context.color_range]}
    format, packets = stream_of(path, **said)
    assert StreamDecoder(AS_IT_IS, format).colors == Colors(*expected)
    _, frames = played(format, packets)
    assert {frame.colors for frame in frames} == {Colors(*expected)}
    np.testing.assert_array_equal(pixels_of(frames), ours(path))


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


@pytest.mark.parametrize("transfer", ["pq", "hlg"])
def test_hdr_is_mapped_to_the_sdr_that_it_was_made_of(transfer: Hdr) -> None:
    picture = np.asarray(photo("coffee").resize((90, 60)))
    hdr = as_hdr(picture, transfer)
    found = tone_mapped_reference(hdr, transfer)
    kept = (picture.max(axis=2) < 225) & (picture.min(axis=2) > 30)
    assert np.abs(found.astype(int) - picture)[kept].max() <= 6
    assert np.abs(found.astype(int) - picture).mean() < 2.5
    assert np.abs(hdr.astype(int) - picture).mean() > 15
    np.testing.assert_array_equal(tone_mapped(hdr, transfer), found)
    # What is brighter than white keeps its order, and nothing is cut but what is out of BT.709.
    ramp = np.arange(256, dtype=np.uint8)[None, :, None].repeat(3, axis=2)
    mapped = tone_mapped(ramp, transfer)[0, :, 0].astype(int)
    assert (mapped[0], mapped[-1]) == (0, 255)
    assert (np.diff(mapped) >= 0).all()
    every = np.random.default_rng(1).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    np.testing.assert_array_equal(tone_mapped(every, transfer), tone_mapped_reference(every, transfer))


@pytest.mark.parametrize("definition", [CLASSIFY, AS_IT_IS, in_levels(Letterbox(size=(80, 80)), color="gray")])
def test_streams_and_clips_map_alike(hdr_video: Path, definition: Any) -> None:
    rule = ColorRule(transfer="sdr")
    format, packets = stream_of(hdr_video)
    decoder = StreamDecoder(definition, format, color=rule, pictures=True)
    frames = decoded(decoder, packets)
    expected = ClipMaker(definition.pixels(), Clip(), color=rule).make(hdr_video)
    np.testing.assert_array_equal(pixels_of(frames), expected)
    literal = ClipMaker(definition.pixels(), Clip(), color=rule, backend="reference").make(hdr_video)
    assert np.abs(expected.astype(int) - literal).max() <= 1
    unmapped = ClipMaker(definition.pixels(), Clip()).make(hdr_video)
    assert expected.mean() > unmapped.mean() + 5
    if definition is AS_IT_IS:
        np.testing.assert_array_equal(frames[3].picture(), frames[3].pixels)
    assert str(decoder.colors).endswith("limited (file), pq (mapped)")


def test_hdr_that_is_taken_as_sdr_is_said(hdr_video: Path, said: list[str]) -> None:
    with VideoFile(hdr_video) as video:
        colors = [video.colors() for _ in range(2)]
        assert video.colors(ColorRule(transfer="sdr")).to_dict()["transfer_as"] == "mapped"
    assert said == [
        "a video is HDR (pq), and its values are taken as if they were SDR's (color.transfer: ignore) (said once)"
    ]
    assert str(colors[0]) == "bt2020 (file), limited (file), pq (as SDR)"
    given = {"matrix": "bt2020", "matrix_from": "file", "range": "limited", "range_from": "file", "transfer": "pq"}
    assert colors[1].to_dict() == {**given, "transfer_as": "sdr"}
