"""Clips in training: one draw for all frames and one for their times, by seed, epoch and sample only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from clip_files import HEIGHT, WIDTH, number_in, write_video

from onestream.preprocess import Decode, Definition, Output, Resize
from onestream.preprocess.training import Augmentation
from onestream.preprocess.training.video_loader import VideoLoader
from onestream.preprocess.variation import Timing
from onestream.preprocess.video.clips.choose_frames import Clip
from onestream.preprocess.video.clips.maker import ClipMaker

WHOLE = Definition(
    operations=(Decode(), Resize(mode="exact", size=(HEIGHT, WIDTH)), Output(layout="NHWC", dtype="uint8"))
)
STILL = [
    {"op": "box", "area": [0.3, 1.0]},
    {"op": "flip"},
    {"op": "rotation"},
    {"op": "trivial_augment"},
    {"op": "noise"},
]
TIMES = [{"op": "speed", "factor": [0.5, 2.0]}, {"op": "drop_frames", "share": 0.3}]
CHAIN = Augmentation([STILL[0], TIMES[0], *STILL[1:], TIMES[1]])


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine videos of 30 frames."""
    folder = tmp_path_factory.mktemp("clips")
    for number in range(9):
        write_video(folder / f"{number}.mp4", "libx264", count=30, options={"g": "8"})
    return folder


def test_a_clip_is_what_its_drawn_values_make_of_it(clips: Path) -> None:
    with VideoLoader(
        WHOLE, clips, batch_size=9, num_frames=6, train=True, seed=3, augmentation=CHAIN, shuffle=False
    ) as loader:
        (batch,) = loader
    maker = ClipMaker(WHOLE, Clip(num_frames=6))
    varied = Augmentation(STILL)
    for index, clip in enumerate(batch.clips.numpy()):
        # Operations on times, wherever they stand, leave what the others draw as it is.
        variation = varied.draw((HEIGHT, WIDTH), seed=3, epoch=0, index=index, definition=WHOLE)
        timing = CHAIN.timing(6, seed=3, epoch=0, index=index)
        expected = maker.make(loader.files.paths[index], vary=lambda _, drawn=variation: drawn, timing=timing)
        np.testing.assert_array_equal(clip, expected)


def test_times_alone_choose_the_frames(clips: Path) -> None:
    whole = Augmentation([{"op": "box", "area": [1, 1], "ratio": [WIDTH / HEIGHT, WIDTH / HEIGHT]}, *TIMES])
    with VideoLoader(
        WHOLE, clips, batch_size=9, num_frames=6, stride=2, train=True, augmentation=whole, shuffle=False
    ) as loader:
        (batch,) = loader
    drawn = [whole.timing(6, seed=0, epoch=0, index=index) for index in range(9)]
    assert any(timing.lost for timing in drawn)
    assert min(timing.speed for timing in drawn) < 1 < max(timing.speed for timing in drawn)
    for clip, timing in zip(batch.clips.numpy(), drawn, strict=True):
        numbers = [int(2 * place * timing.speed) for place in range(6)]
        for place in timing.lost:
            numbers[place] = numbers[place - 1]
        assert [number_in(frame) for frame in clip] == numbers


def test_speeds_are_spread_evenly_about_one_and_frames_are_lost_as_often_as_asked() -> None:
    chain = Augmentation([{"op": "speed", "factor": [0.25, 4]}, {"op": "drop_frames", "share": 0.2}])
    drawn = [chain.timing(11, seed=1, epoch=0, index=index) for index in range(2000)]
    speeds = np.log2([timing.speed for timing in drawn])
    # Of 2,000 draws over 4 octaves the median errs by 4 / 2 / sqrt(2000) = 0.045.
    assert abs(np.median(speeds)) < 0.18
    assert (speeds.min(), speeds.max()) == pytest.approx((-2, 2), abs=0.02)
    lost = np.array([[place in timing.lost for place in range(11)] for timing in drawn])
    assert not lost[:, 0].any()
    # 20,000 draws: four standard deviations of 0.0028.
    assert abs(lost[:, 1:].mean() - 0.2) < 0.012
    # Each by itself: the same for every place.
    assert np.abs(lost[:, 1:].mean(axis=0) - 0.2).max() < 0.036
    sometimes = Augmentation([{"op": "speed", "probability": 0.3}])
    changed = [sometimes.timing(2, seed=1, epoch=0, index=index) != Timing() for index in range(400)]
    # 120 of 400, give or take four standard deviations of 9.2.
    assert abs(sum(changed) - 120) < 37
    assert Augmentation([{"op": "flip"}]).timing(9, seed=0, epoch=0, index=0) == Timing()


def test_listed_frames_have_no_other_speed(clips: Path) -> None:
    with pytest.raises(ValueError, match="speed needs num_frames; frames lists the frames themselves"):
        VideoLoader(WHOLE, clips, batch_size=1, frames=(1, 2), train=True, augmentation=CHAIN)
    lost = Augmentation([{"op": "drop_frames", "share": 1}])
    with VideoLoader(WHOLE, clips, batch_size=9, frames=(4, 9), train=True, augmentation=lost) as loader:
        (batch,) = loader
    assert torch.equal(batch.clips[:, 0], batch.clips[:, 1])
