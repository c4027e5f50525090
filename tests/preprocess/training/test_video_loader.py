"""The video loader: which clips, made as one alone is made; bad videos by name; one draw for all frames of a clip."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from clip_files import HEIGHT, WIDTH, number_in, write_video
from image_sets import DEFINITION, only_batch, stretched

from onestream.preprocess import BadDataset, CannotCompile, Decode, Definition
from onestream.preprocess.training import Augmentation
from onestream.preprocess.training.video_loader import VideoLoader
from onestream.preprocess.variation import Timing
from onestream.preprocess.video.clips.choose_frames import Clip
from onestream.preprocess.video.clips.maker import ClipMaker

WHOLE = stretched(HEIGHT, WIDTH)
STILL = [
    {"op": "box", "area": [0.3, 1.0]},
    {"op": "flip"},
    {"op": "rotation"},
    {"op": "trivial_augment"},
    {"op": "noise"},
]
TIMES = [{"op": "speed", "factor": [0.5, 2.0]}, {"op": "drop_frames", "share": 0.3}]
CHAIN = Augmentation([STILL[0], TIMES[0], *STILL[1:], TIMES[1]])
LENGTHS = (12, 20, 9, 16, 25, 30, 14)


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven videos of different lengths in two classes."""
    folder = tmp_path_factory.mktemp("clips")
    for number, length in enumerate(LENGTHS):
        path = folder / ("run" if number % 2 else "jump") / f"{number}.mp4"
        path.parent.mkdir(exist_ok=True)
        write_video(path, "libx264", count=length, options={"g": "8"})
    return folder


@pytest.fixture(scope="module")
def long_clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine videos of 30 frames."""
    folder = tmp_path_factory.mktemp("long_clips")
    for number in range(9):
        write_video(folder / f"{number}.mp4", "libx264", count=30, options={"g": "8"})
    return folder


def test_each_clip_is_what_it_is_alone_and_no_video_stays_open(clips: Path) -> None:
    clip = Clip(num_frames=4, start_frame=1, stride=2)
    with VideoLoader(DEFINITION, clips, batch_size=3, num_frames=4, start_frame=1, stride=2, threads=2) as loader:
        assert loader.classes == ("jump", "run")
        assert len(loader) == 3
        alone = ClipMaker(DEFINITION, clip)
        batches = list(loader)
        assert [len(batch.clips) for batch in batches] == [3, 3, 1]
        assert [index for batch in batches for index in batch.indices.tolist()] == list(range(7))
        assert [label for batch in batches for label in batch.labels.tolist()] == [0, 0, 0, 0, 1, 1, 1]
        for batch in batches:
            assert batch.clips.shape[1:] == (4, 3, 64, 56)
            assert batch.clips.dtype == torch.float32
            for made, index in zip(batch.clips, batch.indices.tolist(), strict=True):
                assert np.array_equal(made.numpy(), alone.make(loader.files.paths[index]))
        next(iter(loader))
    opened = [Path(file.path) for file in psutil.Process().open_files()]
    assert not any(path.is_relative_to(clips.resolve()) for path in opened)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"num_frames": 5, "stride": 3, "pad_mode": "edge"}, [0, 3, 6, 6, 6]),
        ({"frames": (8, 0, 8)}, [8, 0, 8]),
        ({"num_frames": 3, "start_frame": 2, "end_frame": 4, "pad_mode": "reflect"}, [2, 3, 2]),
        ({"num_frames": 2, "fps": 5}, [0, 5]),
    ],
)
def test_frames_are_the_ones_chosen(clips: Path, options: dict[str, Any], expected: list[int]) -> None:
    with VideoLoader(WHOLE, [clips / "jump" / "2.mp4"], batch_size=1, **options) as loader:
        (batch,) = loader
        assert [number_in(frame.numpy()) for frame in batch.clips[0]] == expected
        assert batch.labels.tolist() == [-1]


def test_several_clips_of_a_video_are_spread_over_it(clips: Path) -> None:
    with VideoLoader(WHOLE, clips, batch_size=6, num_frames=3, stride=4, clips_per_video=3) as loader:
        assert (len(loader), len(loader.dataset)) == (4, 21)  # type: ignore[arg-type]
        batches = list(loader)
        starts = [number_in(clip[0].numpy()) for batch in batches for clip in batch.clips]
        indices = torch.cat([batch.indices for batch in batches])
        assert indices.tolist() == list(range(21))
        lengths = [LENGTHS[int(loader.files.paths[index].stem)] for index in (indices // loader.clips_per_video)[::3]]
        labels = torch.cat([batch.labels for batch in batches]).tolist()
        assert labels == [loader.files.labels[index // 3] for index in range(21)]
    assert starts == [start for length in lengths for start in (0, (length - 8) // 2, length - 9)]


def test_a_clip_of_training_begins_anywhere(long_clips: Path) -> None:
    chain = Augmentation([{"op": "random_start"}])
    options: dict[str, Any] = {"batch_size": 9, "num_frames": 5, "stride": 5, "start_frame": 2, "end_frame": 27}
    with VideoLoader(WHOLE, long_clips, train=True, augmentation=chain, **options) as loader:
        taken = [
            ([number_in(frame.numpy()) for frame in clip], index, epoch)
            for epoch in range(8)
            for batch in loader
            for clip, index in zip(batch.clips, batch.indices.tolist(), strict=True)
        ]
    for numbers, index, epoch in taken:
        assert numbers == [*range(numbers[0], numbers[0] + 25, 5)]
        assert numbers[0] == 2 + int(5 * chain.timing(5, seed=0, epoch=epoch, index=index).start)
    # Of 72 draws one of five starts is missing once in two million runs.
    assert {numbers[0] for numbers, _, _ in taken} == {2, 3, 4, 5, 6}


def test_bad_videos_are_told_apart(clips: Path, tmp_path: Path) -> None:
    """Of a list of four videos one is cut off and one is too short."""
    source = (clips / "run" / "5.mp4").read_bytes()
    (tmp_path / "cut.mp4").write_bytes(source[: len(source) // 2])
    paths = [clips / "jump" / "0.mp4", tmp_path / "cut.mp4", clips / "jump" / "2.mp4", clips / "run" / "1.mp4"]
    lines = zip(paths, [3, 1, 2, 0], strict=True)
    (tmp_path / "list.txt").write_text("# videos\n" + "".join(f"{path} {label}\n" for path, label in lines))
    with VideoLoader(WHOLE, tmp_path / "list.txt", batch_size=4, num_frames=12, bad_files="skip") as loader:
        (batch,) = loader
        assert batch.labels.tolist() == [3, 0]
        cut, short = loader.skipped
    assert "cut.mp4: the video cannot be opened" in cut.reason
    assert "gives 9 frames of 12; choose a pad_mode" in short.reason


def test_dali_is_a_backend(tmp_path: Path) -> None:
    pytest.importorskip("nvidia.dali")
    for number in range(5):
        write_video(tmp_path / f"{number}.webm", "libvpx-vp9", count=6 + number, options={"cpu-used": "8"})
    batch = only_batch(VideoLoader(WHOLE, tmp_path, batch_size=5, frames=(5, 2), backend="dali", threads=2))
    assert [[number_in(frame.numpy()) for frame in clip] for clip in batch.clips] == [[5, 2]] * 5


@pytest.mark.needs_gpu
def test_dali_on_a_gpu_feeds_the_loader(clips: Path) -> None:
    batch = only_batch(VideoLoader(DEFINITION, clips, batch_size=7, num_frames=2, backend="dali", device="gpu"))
    assert batch.clips.shape == (7, 2, 3, 64, 56)


def test_python_blocks_of_the_page_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    root = Path(__file__).parents[3]
    page = (root / "docs" / "training.md").read_text(encoding="utf-8").partition("\n## Clips of video\n")[2]
    blocks = re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    monkeypatch.chdir(root)
    exec("\n".join(blocks), {})
    assert capsys.readouterr().out.splitlines() == [
        "(1, 16, 3, 224, 224) [0] ('coffee',)",
        "(8, 3, 112, 112) float32",
        "50 [3, 40]",
        "bt601 (assumed), limited (assumed)",
    ]


def test_options_that_cannot_be_are_refused(clips: Path) -> None:
    listed = {"frames": (1, 2)}
    start = Augmentation([{"op": "random_start"}])
    cases: list[tuple[Definition, dict[str, Any], type[Exception], str]] = [
        (WHOLE, {}, ValueError, "give num_frames or frames"),
        (WHOLE, {"num_frames": 0}, ValueError, "num_frames must be at least 1, got 0"),
        (WHOLE, {"num_frames": 2, "clips_per_video": 0}, ValueError, "clips_per_video must be at least 1, got 0"),
        (WHOLE, {"num_frames": 2, "backend": "pyav", "device": "gpu"}, CannotCompile, "runs on the device 'cpu' only"),
        (Definition(operations=(Decode(),)), {"num_frames": 1}, CannotCompile, "frames of a batch must have one size"),
        (WHOLE, {**listed, "train": True, "augmentation": CHAIN}, ValueError, "speed needs num_frames; frames lists"),
        (WHOLE, {**listed, "train": True, "augmentation": start}, ValueError, "random_start needs num_frames"),
        (WHOLE, {**listed, "clips_per_video": 2}, ValueError, "clips_per_video needs num_frames"),
    ]
    for definition, options, error, message in cases:
        with pytest.raises(error, match=message):
            VideoLoader(definition, clips, batch_size=2, **options)


def test_listed_frames_may_be_lost(long_clips: Path) -> None:
    lost = Augmentation([{"op": "drop_frames", "share": 1}])
    batch = only_batch(VideoLoader(WHOLE, long_clips, batch_size=9, frames=(4, 9), train=True, augmentation=lost))
    assert torch.equal(batch.clips[:, 0], batch.clips[:, 1])


def test_sources_that_hold_no_video_are_named(clips: Path, tmp_path: Path) -> None:
    for source, message in [
        (tmp_path / "nowhere", "nowhere is not a folder"),
        (tmp_path, r"no video in .*; expected files that end in \.mp4"),
        (clips / "run" / "1.mp4", "is one video"),
        ([], "got no video"),
    ]:
        with pytest.raises(BadDataset, match=message):
            VideoLoader(WHOLE, source, batch_size=1, num_frames=1)
    (tmp_path / "a").mkdir()
    (tmp_path / "b.mp4").write_bytes(b"")
    with pytest.raises(BadDataset, match=r"has folders of classes and videos beside them, such as b\.mp4"):
        VideoLoader(WHOLE, tmp_path, batch_size=1, num_frames=1)


def test_a_clip_is_what_its_drawn_values_make_of_it(long_clips: Path) -> None:
    with VideoLoader(
        WHOLE, long_clips, batch_size=9, num_frames=6, train=True, seed=3, augmentation=CHAIN, shuffle=False
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
