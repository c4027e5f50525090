"""Clips as a network gets them: the compiled path against the literal one, padding, turning, varying, and refusals."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clip_files import COUNT, HEIGHT, WIDTH, number_in, picture, turn, write_video
from definitions import AS_IT_IS, in_levels
from image_files import png_of
from stream_files import CLASSIFY

from onestream.preprocess import BadSample, CannotCompile, Decode, Definition, Letterbox, Limits, Resize, compile
from onestream.preprocess.backends.base import BackendName
from onestream.preprocess.changes import Brightness, Noise
from onestream.preprocess.geometry import Window
from onestream.preprocess.moves import CenterCrop, Pad
from onestream.preprocess.operations import Color, Normalize, Output, Region
from onestream.preprocess.tolerances import compare
from onestream.preprocess.training import Augmentation
from onestream.preprocess.variation import Timing, Variation
from onestream.preprocess.video import Clip, ClipMaker, VideoFile
from onestream.preprocess.video.clips.frames import VideoBackend
from onestream.preprocess.video.common.orientation import Orientation, orientation_of

DEFINITIONS = {
    "classify": CLASSIFY,
    "letterbox": in_levels(Letterbox(size=(80, 80))),
    "not antialiased": in_levels(
        Resize(mode="fit", size=(80, 80), antialias=False, rounding="ratio"), Pad(size=(80, 80))
    ),
    "gray": Definition(operations=(Decode(color="gray"), Resize(mode="exact", size=(40, 60)), Output(dtype="float16"))),
    "bgr": Definition(
        operations=(Decode(color="bgr"), Letterbox(size=(80, 80)), Normalize(mean=[90, 99, 123], std=[57] * 3, scale=1))
    ),
    "cut": in_levels(CenterCrop(size=(33, 47))),
    "lanczos": in_levels(Resize(mode="shorter", size=50, filter="lanczos"), CenterCrop(size=(30, 30))),
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
        definitions = [in_levels(*geometry, color=color) for color in ("bgr", "rgb")]
        bgr, rgb = (ClipMaker(one, clip, backend=backend).make(videos["mjpeg"]) for one in definitions)
        np.testing.assert_array_equal(bgr, rgb[..., ::-1])
        assert (bgr != rgb).any()


def test_frames_come_as_asked_and_a_constant_one_goes_through_the_definition(videos: dict[str, Path]) -> None:
    frames = ClipMaker(AS_IT_IS, Clip(frames=(39, 0, 12, 39))).make(videos["h264"])
    assert [number_in(frame) for frame in frames] == [39, 0, 12, 39]
    clip = Clip(num_frames=3, start_frame=38, pad_mode="constant", pad_level=255)
    found, expected = (
        ClipMaker(DEFINITIONS["letterbox"], clip, backend=backend).make(videos["h264"])[2]
        for backend in ("pyav", "reference")
    )
    assert (found[0, 0, 0], found[40, 40, 0]) == (114, 255)
    np.testing.assert_array_equal(found, expected)


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
    clip, cut = Clip(frames=(5,)), DEFINITIONS["cut"]
    upright, found = (ClipMaker(AS_IT_IS, clip).make(one)[0] for one in (videos["h264"], path))
    np.testing.assert_array_equal(found, turned(upright))  # type: ignore[operator]
    # Cut out of the stored picture, the window must be turned back first.
    expected = ClipMaker(cut, clip, backend="reference").make(path)
    np.testing.assert_array_equal(ClipMaker(cut, clip).make(path), expected)
    # Frames that only the garbage collector frees pile up: 3 MB each at 1080p.
    with VideoFile(path) as video:
        _, frame = next(video.frames([0]))
        before = sys.getrefcount(frame)
        assert orientation_of(frame) != Orientation()
        assert sys.getrefcount(frame) == before


def test_what_cannot_be_done_is_refused_by_name(videos: dict[str, Path]) -> None:
    two = Definition(operations=(Decode(), CenterCrop(size=(40, 40)), Resize(mode="shorter", size=20)))
    of_regions = Definition(operations=(Region(of="find"), Resize(mode="shorter", size=20)))
    options: Any
    for definition, options, said in (
        (two, {}, "the video backend pyav does one resize, before any crop"),
        (of_regions, {}, "a video takes whole pictures; this definition begins with region"),
        (AS_IT_IS, {"backend": "decord"}, "unknown video backend 'decord'"),
        (AS_IT_IS, {"device": "gpu"}, "pyav runs on the device 'cpu' only"),
    ):
        with pytest.raises(CannotCompile, match=said):
            ClipMaker(definition, Clip(num_frames=1), **options)
    assert ClipMaker(two, Clip(num_frames=1), backend="reference").make(videos["h264"]).shape == (1, 3, 20, 20)


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
    path = turn(tmp_path / "skewed.mp4", videos["h264"], (1, 1, -1, 1))
    with pytest.raises(BadSample, match=r"skewed\.mp4: frame 0: is displayed turned by 45 degrees; only quarter turns"):
        ClipMaker(AS_IT_IS, Clip(frames=(0,))).make(path)


def test_other_formats_and_odd_sizes_are_read(tmp_path: Path) -> None:
    for pixel_format in ("yuv422p", "yuv444p", "yuv420p10le"):
        path = write_video(tmp_path / "v.mp4", "libx264", pixel_format=pixel_format)
        clip = ClipMaker(AS_IT_IS, Clip(num_frames=None, stride=13)).make(path)
        assert [number_in(frame) for frame in clip] == list(range(0, COUNT, 13))
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


def test_missing_packages_are_named_with_the_command() -> None:
    code = """
import sys
_, missing, backend = sys.argv
sys.modules[missing] = None
from onestream.preprocess.errors import BackendMissing
try:
    from onestream.preprocess import Decode, Definition
    from onestream.preprocess.video import Clip, ClipMaker
    definition = Definition(operations=(Decode(),))
    ClipMaker(definition, Clip(num_frames=1), backend="reference")
    ClipMaker(definition, Clip(num_frames=1), backend=backend)
except BackendMissing as error:
    print(error)
"""
    train, cpu = (f"pip install -e '.[{extra}]' in onestream's checkout" for extra in ("train", "cpu"))
    for missing, backend, expected in (
        ("av", "pyav", "onestream.preprocess.video needs PyAV: pip install -e '.[video]' in onestream's checkout"),
        ("numba", "pyav", f"the compiled resize needs numba: {train}"),
        ("nvidia.dali", "dali", f"the dali backend needs nvidia-dali: {train}; {cpu} to serve"),
    ):
        command = [sys.executable, "-c", code, missing, backend]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{expected}\n"


CHAIN = Augmentation(
    [
        {"op": "box", "area": [0.3, 1.0]},
        {"op": "flip", "axis": "vertical"},
        {"op": "rotation", "degrees": [-40, 40], "probability": 0.5},
        {"op": "perspective"},
        {"op": "warp", "probability": 0.3},
        {"op": "color_jitter", "brightness": 0.4, "hue": 0.1},
        {"op": "noise"},
        {"op": "erase"},
    ]
)


def definition_in(color: Color) -> Definition:
    mean = (0.4,) if color == "gray" else (0.4, 0.5, 0.6)
    normalize = Normalize(mean=mean, std=tuple(0.2 for _ in mean))
    return Definition(operations=[Decode(color=color), Letterbox(size=(40, 56)), normalize])


@pytest.mark.parametrize("color", ["rgb", "bgr", "gray"])
@pytest.mark.parametrize(("backend", "of_images"), [("reference", "reference"), ("pyav", "dali")])
def test_each_frame_varies_as_a_still_image_of_it_does(
    videos: dict[str, Path], backend: VideoBackend, of_images: BackendName, color: Color
) -> None:
    """In every bit: the same code makes both."""
    definition, clip = definition_in(color), Clip(frames=(7, 30))
    files = [png_of(frame) for frame in ClipMaker(AS_IT_IS, clip).make(videos["h264"])]
    maker, still = ClipMaker(definition, clip, backend=backend), compile(definition, backend=of_images, varied=True)
    kinds = set()
    for index in range(8):
        drawn = CHAIN.draw((HEIGHT, WIDTH), seed=0, epoch=0, index=index, definition=definition)
        kinds.add((drawn.box is None, drawn.warp is None))
        asked: list[tuple[int, int]] = []

        def vary(size_hw: tuple[int, int], drawn: Variation = drawn, asked: list[tuple[int, int]] = asked) -> Variation:
            asked.append(size_hw)
            return drawn

        seen = maker.make(videos["h264"], vary=vary)
        # Once a clip: whoever draws anew for each frame would not notice.
        assert asked == [(HEIGHT, WIDTH)]
        for one, expected in zip(seen, still.run(files, [lambda _, drawn=drawn: drawn] * len(files)), strict=True):
            np.testing.assert_array_equal(one, expected)
    assert kinds == {(False, True), (True, False), (True, True)}
    # Afterwards the same maker makes what serving computes.
    fresh = ClipMaker(definition, clip, backend=backend)
    np.testing.assert_array_equal(maker.make(videos["h264"]), fresh.make(videos["h264"]))


def test_a_turned_video_varies_as_it_is_displayed(videos: dict[str, Path], tmp_path: Path) -> None:
    turned = turn(tmp_path / "turned.mp4", videos["h264"], (0, 1, -1, 0))
    small = in_levels(Resize(mode="exact", size=(20, 30)))
    clip, box = Clip(num_frames=2), Window(70, 5, 20, 30)
    variation = Variation.of_box(box, changes=(Brightness(factor=0.5),))
    whole, _ = ClipMaker(AS_IT_IS, clip).make(turned)
    seen, _ = ClipMaker(small, clip).make(turned, vary=lambda _: variation)
    assert whole.shape == (WIDTH, HEIGHT, 3)
    np.testing.assert_array_equal(seen, whole[70:90, 5:35] // 2)


def test_all_frames_have_one_noise_and_padding_varies_too(videos: dict[str, Path]) -> None:
    whole = in_levels(Resize(mode="exact", size=(HEIGHT, WIDTH)))
    variation = Variation.of_box(Window(0, 0, HEIGHT, WIDTH), changes=(Noise(sigma=9, seed=4),))
    clip = Clip(num_frames=4, start_frame=38, pad_mode="constant", pad_level=128)
    first, _, padded, again = ClipMaker(whole, clip).make(videos["h264"], vary=lambda _: variation).astype(int)
    plain = ClipMaker(whole, clip).make(videos["h264"])[0].astype(int)
    np.testing.assert_array_equal(padded, again)
    inside = (first > 0) & (first < 255)
    np.testing.assert_array_equal((first - plain)[inside], (padded - 128)[inside])


def test_a_clip_is_taken_at_its_timing(videos: dict[str, Path]) -> None:
    maker = ClipMaker(AS_IT_IS, Clip(num_frames=6, start_frame=3, stride=2))
    fast = maker.make(videos["h264"], timing=Timing(speed=1.5, lost=(2, 3)))
    assert [number_in(frame) for frame in fast] == [3, 6, 6, 6, 15, 18]
    slow = maker.make(videos["h264"], timing=Timing(speed=0.25))
    assert [number_in(frame) for frame in slow] == [3, 3, 4, 4, 5, 5]
