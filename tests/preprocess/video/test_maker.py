"""Clips as a network gets them: the compiled path against the literal one, padding, turning, and refusals."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from clip_files import COUNT, HEIGHT, WIDTH, number_in, picture, turn, write_video
from definitions import AS_IT_IS, in_levels
from stream_files import CLASSIFY

from onestream.preprocess import BadSample, CannotCompile, Definition, Limits
from onestream.preprocess.moves import CenterCrop, Letterbox, Pad, Resize
from onestream.preprocess.operations import Decode, Normalize, Output, Region
from onestream.preprocess.tolerances import compare
from onestream.preprocess.video.clips.choose_frames import Clip
from onestream.preprocess.video.clips.decode import VideoFile
from onestream.preprocess.video.clips.frames import VideoBackend
from onestream.preprocess.video.clips.maker import ClipMaker
from onestream.preprocess.video.common.orientation import Orientation, orientation_of

DEFINITIONS = {
    "classify": CLASSIFY,
    "letterbox": in_levels(Letterbox(size=(80, 80))),
    "not antialiased": Definition(
        operations=(Decode(), Resize(mode="fit", size=(80, 80), antialias=False, rounding="ratio"), Pad(size=(80, 80)))
    ),
    "gray": Definition(operations=(Decode(color="gray"), Resize(mode="exact", size=(40, 60)), Output(dtype="float16"))),
    "bgr": Definition(
        operations=(
            Decode(color="bgr"),
            Letterbox(size=(80, 80)),
            Normalize(mean=(103.53, 116.28, 123.675), std=(57.375, 57.12, 58.395), scale=1),
        )
    ),
    "cut": in_levels(CenterCrop(size=(33, 47))),
    "lanczos": Definition(
        operations=(Decode(), Resize(mode="shorter", size=50, filter="lanczos"), CenterCrop(size=(30, 30)))
    ),
}


@pytest.mark.parametrize("name", DEFINITIONS)
@pytest.mark.parametrize("kind", ["h264", "mjpeg"])
def test_the_compiled_path_is_within_the_images_tolerances(videos: dict[str, Path], kind: str, name: str) -> None:
    definition, clip = DEFINITIONS[name], Clip(frames=(7, 30, 7, 0))
    expected = ClipMaker(definition, clip, backend="reference").make(videos[kind])
    found = ClipMaker(definition, clip).make(videos[kind])
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    for one, other in zip(expected, found, strict=True):
        compared = compare(one, other, definition=definition, stage="normalize", backend="dali")
        assert compared.within, compared


@pytest.mark.parametrize("backend", ["reference", "pyav", "dali"])
def test_bgr_is_rgb_with_its_channels_reversed(videos: dict[str, Path], backend: VideoBackend) -> None:
    if backend == "dali":
        pytest.importorskip("nvidia.dali")
    clip = Clip(num_frames=4, start_frame=37, pad_mode="constant", pad_level=77)
    for geometry in ([], [Resize(mode="exact", size=(40, 60))], [Resize(mode="longer", size=50, filter="bicubic")]):
        bgr, rgb = (
            ClipMaker(in_levels(*geometry, color=color), clip, backend=backend).make(videos["mjpeg"])
            for color in ("bgr", "rgb")
        )
        np.testing.assert_array_equal(bgr, rgb[..., ::-1])
        assert (bgr != rgb).any()


def test_frames_come_as_asked(videos: dict[str, Path]) -> None:
    clip = ClipMaker(AS_IT_IS, Clip(frames=(39, 0, 12, 39))).make(videos["h264"])
    assert [number_in(frame) for frame in clip] == [39, 0, 12, 39]


def test_a_constant_frame_goes_through_the_definition(videos: dict[str, Path]) -> None:
    clip = Clip(num_frames=3, start_frame=38, pad_mode="constant", pad_level=255)
    found = ClipMaker(DEFINITIONS["letterbox"], clip).make(videos["h264"])
    assert found[2][0, 0, 0] == 114
    assert found[2][40, 40, 0] == 255
    assert np.array_equal(
        found[2], ClipMaker(DEFINITIONS["letterbox"], clip, backend="reference").make(videos["h264"])[2]
    )


@pytest.mark.parametrize(
    ("matrix", "turned"),
    [
        ((0, 1, -1, 0), lambda pixels: np.rot90(pixels, -1)),
        ((-1, 0, 0, -1), lambda pixels: np.rot90(pixels, 2)),
        ((0, -1, 1, 0), lambda pixels: np.rot90(pixels, 1)),
        ((-1, 0, 0, 1), np.fliplr),
        ((1, 0, 0, -1), np.flipud),
        ((0, 1, 1, 0), lambda pixels: pixels.transpose(1, 0, 2)),
    ],
)
def test_a_video_is_turned_as_it_says(videos: dict[str, Path], tmp_path: Path, matrix: tuple, turned: object) -> None:
    path = turn(tmp_path / "turned.mp4", videos["h264"], matrix)
    clip = Clip(frames=(5,))
    upright = ClipMaker(AS_IT_IS, clip).make(videos["h264"])[0]
    found = ClipMaker(AS_IT_IS, clip).make(path)[0]
    assert np.array_equal(found, turned(upright))  # type: ignore[operator]
    # Cut out of the stored picture, the window must be turned back first.
    cut = DEFINITIONS["cut"]
    expected = ClipMaker(cut, clip, backend="reference").make(path)
    assert np.array_equal(ClipMaker(cut, clip).make(path), expected)


def test_looking_at_the_orientation_does_not_keep_the_frame(videos: dict[str, Path], tmp_path: Path) -> None:
    """Frames that only the garbage collector frees pile up: 3 MB each at 1080p."""
    with VideoFile(turn(tmp_path / "turned.mp4", videos["h264"], (0, 1, -1, 0))) as video:
        _, frame = next(video.frames([0]))
        before = sys.getrefcount(frame)
        assert orientation_of(frame) == Orientation(transpose=True, flip_columns=True)
        assert sys.getrefcount(frame) == before


def test_a_skewed_video_is_refused(videos: dict[str, Path], tmp_path: Path) -> None:
    path = turn(tmp_path / "skewed.mp4", videos["h264"], (1, 1, -1, 1))
    with pytest.raises(BadSample, match=r"skewed\.mp4: frame 0: is displayed turned by 45 degrees; only quarter turns"):
        ClipMaker(AS_IT_IS, Clip(frames=(0,))).make(path)


def test_what_cannot_be_done_is_refused_by_name(videos: dict[str, Path]) -> None:
    two = Definition(operations=(Decode(), CenterCrop(size=(40, 40)), Resize(mode="shorter", size=20)))
    with pytest.raises(CannotCompile, match="the video backend pyav does one resize, before any crop"):
        ClipMaker(two, Clip(num_frames=1))
    assert ClipMaker(two, Clip(num_frames=1), backend="reference").make(videos["h264"]).shape == (1, 3, 20, 20)
    of_regions = Definition(operations=(Region(of="find"), Resize(mode="shorter", size=20)))
    with pytest.raises(CannotCompile, match="a video takes whole pictures; this definition begins with region"):
        ClipMaker(of_regions, Clip(num_frames=1))
    with pytest.raises(CannotCompile, match="unknown video backend 'decord'"):
        ClipMaker(AS_IT_IS, Clip(num_frames=1), backend="decord")  # type: ignore[arg-type]
    with pytest.raises(CannotCompile, match="pyav runs on the device 'cpu' only"):
        ClipMaker(AS_IT_IS, Clip(num_frames=1), device="gpu")


def test_errors_name_the_file(videos: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(BadSample, match=r"h264\.mp4: start_frame 40 is past the end of a video of 40 frames"):
        ClipMaker(AS_IT_IS, Clip(start_frame=40)).make(videos["h264"])
    small = Definition(operations=(Decode(), Pad(size=(100, 100))))
    with pytest.raises(BadSample, match=r"h264\.mp4: the definition pads to 100x100 pixels"):
        ClipMaker(small, Clip(num_frames=1)).make(videos["h264"])
    large = Definition(operations=(Decode(), Resize(mode="longer", size=512)))
    with pytest.raises(BadSample, match=r"h264\.mp4: resized by the definition it would have 512x384"):
        ClipMaker(large, Clip(num_frames=1), limits=Limits(max_pixels=HEIGHT * WIDTH)).make(videos["h264"])
    path = write_video(tmp_path / "rgb.mkv", "libx264rgb", count=3, pixel_format="rgb24")
    with pytest.raises(BadSample, match=r"rgb\.mkv: frame 0: has the pixel format gbrp; supported are yuv420p"):
        ClipMaker(AS_IT_IS, Clip(num_frames=1)).make(path)


@pytest.mark.parametrize("pixel_format", ["yuv422p", "yuv444p", "yuv420p10le"])
def test_other_formats_are_read(tmp_path: Path, pixel_format: str) -> None:
    path = write_video(tmp_path / "v.mp4", "libx264", pixel_format=pixel_format)
    clip = ClipMaker(AS_IT_IS, Clip(num_frames=None, stride=13)).make(path)
    assert [number_in(frame) for frame in clip] == list(range(0, COUNT, 13))


def test_odd_sizes_are_read(tmp_path: Path) -> None:
    path = write_video(tmp_path / "v.webm", "libvpx-vp9", count=5, size_hw=(95, 127))
    found = ClipMaker(AS_IT_IS, Clip(num_frames=5)).make(path)
    assert found.shape == (5, 95, 127, 3)
    # The last row and column have their chroma to themselves. VP9 loses up to 4 levels there; without colour it would
    # be 25 and more.
    lost = np.abs(found[2].astype(int) - picture(2, (95, 127)))
    assert lost[30:, -1].mean() <= 10
    assert lost[-1, :].mean() <= 10
    assert np.array_equal(found, ClipMaker(AS_IT_IS, Clip(num_frames=5), backend="reference").make(path))


def test_a_clip_is_written_where_it_is_wanted(videos: dict[str, Path]) -> None:
    out = np.zeros((2, 3, 64, 56), np.float32)
    assert ClipMaker(CLASSIFY, Clip(num_frames=2)).make(videos["h264"], out=out) is out
    assert np.array_equal(out, ClipMaker(CLASSIFY, Clip(num_frames=2)).make(videos["h264"].read_bytes()))
    with pytest.raises(BadSample, match=r"h264\.mp4: gives 1 frames of 2; choose a pad_mode"):
        ClipMaker(CLASSIFY, Clip(num_frames=2, start_frame=39)).make(videos["h264"], out=out)
