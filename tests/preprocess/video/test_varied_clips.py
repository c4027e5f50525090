"""Clips that vary: each frame as a still image of it varies, all of a clip alike, and when they are taken."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from clip_files import HEIGHT, WIDTH, number_in, turn
from definitions import AS_IT_IS, in_levels
from image_files import png_of

from onestream.preprocess import Decode, Definition, Resize, compile
from onestream.preprocess.backends.base import BackendName
from onestream.preprocess.changes import Brightness, Noise
from onestream.preprocess.geometry import Window
from onestream.preprocess.moves import Letterbox
from onestream.preprocess.operations import Color, Normalize
from onestream.preprocess.training import Augmentation
from onestream.preprocess.variation import Timing, Variation
from onestream.preprocess.video.clips.choose_frames import Clip
from onestream.preprocess.video.clips.frames import VideoBackend
from onestream.preprocess.video.clips.maker import ClipMaker

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
    return Definition(
        operations=[Decode(color=color), Letterbox(size=(40, 56)), Normalize(mean=mean, std=tuple(0.2 for _ in mean))]
    )


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
    np.testing.assert_array_equal(
        maker.make(videos["h264"]), ClipMaker(definition, clip, backend=backend).make(videos["h264"])
    )


def test_a_turned_video_varies_as_it_is_displayed(videos: dict[str, Path], tmp_path: Path) -> None:
    turned = turn(tmp_path / "turned.mp4", videos["h264"], (0, 1, -1, 0))
    small = in_levels(Resize(mode="exact", size=(20, 30)))
    clip, box = Clip(num_frames=2), Window(70, 5, 20, 30)
    variation = Variation.of_box(box, changes=(Brightness(factor=0.5),))
    (whole, _), (seen, _) = (
        ClipMaker(AS_IT_IS, clip).make(turned),
        ClipMaker(small, clip).make(turned, vary=lambda _: variation),
    )
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
