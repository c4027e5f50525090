"""``python -m benchmarks.training.video_clips``: clips per second from 1080p, against decord and PyAV.

A clip is 60 frames, every 5th, so that it spans 300 frames, each resized to 224 x 224. All competitors read the same
files, get the same frame numbers, use all cores and hand over uint8 (60, 224, 224, 3). decord is `decord2`, the
maintained successor on PyPI of decord, whose last release is of 2021. The others run in worker processes of a PyTorch
``DataLoader``, as they are used; ours runs in threads.

The videos are made on the spot: a window of 1920 x 1080 pans over real photos, with new grain in every frame as a
sensor has it, 30 frames/s, libx264's default settings at 8 Mbit/s.

Before anything is timed every competitor's clip is compared with ours. decord resizes with another filter than ours and
swscale converts to RGB with less precision, so that a PSNR of 30 dB is asked for, and the frames must be the same: a
frame's neighbour that is 5 frames off must be further away than the frame itself.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import psutil
import torch.utils.data
from PIL import Image

from benchmarks.photos import photo_set
from benchmarks.result_files import ROOT, add_out, begin, path_in, write
from benchmarks.results import VIDEO
from benchmarks.rounds import rotated
from onestream.measure.spread import Spread, ratio
from onestream.preprocess import Decode, Definition, Resize
from onestream.preprocess.operations import Output
from onestream.preprocess.training.video_loader import VideoBatch, VideoLoader
from onestream.preprocess.video.clips.decode import VideoFile
from onestream.preprocess.video.common.color import ColorRule, planes_of, to_rgb
from onestream.serving.server.fit import usable_cores

CACHE = ROOT / ".cache" / "benchmarks"
FRAMES, STRIDE, SIDE = 60, 5, 224
NUMBERS = range(0, FRAMES * STRIDE, STRIDE)
VIDEOS, REPEATS = 2, 2
BITS_PER_S, GRAIN_SIGMA, SEED = 8_000_000, 2.0, 7
LOWEST_PSNR_DB = 30.0
DEFINITION = Definition(
    operations=(Decode(), Resize(mode="exact", size=(SIDE, SIDE)), Output(layout="NHWC", dtype="uint8"))
)
Clips = npt.NDArray[np.uint8]
Loader = Iterable[Any]


def videos() -> list[Path]:
    """The videos, made where they are missing."""
    folder = CACHE / "videos"
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"pan-{number}.mp4" for number in range(VIDEOS)]
    for number, path in enumerate(paths):
        if not path.exists():
            _make(path, first_photo=5 * number)
    return paths


def _make(path: Path, *, first_photo: int) -> None:
    contents = photo_set("1920x1080", folder=CACHE / "photos").contents[first_photo : first_photo + 3]
    random = np.random.default_rng(SEED + first_photo)
    strip = np.hstack([np.asarray(Image.open(BytesIO(content)).convert("RGB")) for content in contents])
    unfinished = path.with_suffix(".part.mp4")
    with av.open(str(unfinished), "w") as container:
        stream: Any = container.add_stream("libx264", rate=30, options={"x264-params": "log-level=none"})
        stream.width, stream.height, stream.pix_fmt = 1920, 1080, "yuv420p"
        stream.bit_rate = BITS_PER_S
        grain = random.normal(0, GRAIN_SIGMA, (2 * 1080, 2 * 1920)).astype(np.float32)
        for number in range(FRAMES * STRIDE):
            left, top, side = number * 12, *random.integers(0, (1080, 1920))
            noise = grain[top : top + 1080, side : side + 1920, None]
            pixels = np.clip(strip[:, left : left + 1920] + noise, 0, 255).astype(np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    unfinished.rename(path)


class DecordClips:
    """decord resizing while it decodes, one thread per worker."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(paths)

    def __len__(self) -> int:
        """Number of clips."""
        return len(self._paths)

    def __getitem__(self, index: int) -> Clips:
        """(60, 224, 224, 3)."""
        import decord  # type: ignore[import-untyped]

        reader = decord.VideoReader(str(self._paths[index]), width=SIDE, height=SIDE, num_threads=1)
        frames: Clips = reader.get_batch(list(NUMBERS)).asnumpy()
        return frames


class SwscaleClips(DecordClips):
    """PyAV decoding from the start, and swscale for resize and colour."""

    def __getitem__(self, index: int) -> Clips:
        """(60, 224, 224, 3)."""
        found = []
        with av.open(str(self._paths[index])) as container:
            container.streams.video[0].codec_context.thread_count = 1
            for number, frame in enumerate(container.decode(video=0)):
                if number in NUMBERS:
                    found.append(frame.reformat(SIDE, SIDE, "rgb24", interpolation="AREA").to_ndarray())
        return np.stack(found)


def ours(paths: Sequence[Path], workers: int) -> Loader:
    """The loader, batches of one clip."""
    return VideoLoader(
        DEFINITION, paths, batch_size=1, num_frames=FRAMES, stride=STRIDE, threads=workers, prefetch=workers
    )


def in_processes(dataset: DecordClips, workers: int) -> Loader:
    """The clips of a dataset, made by worker processes that stay from epoch to epoch."""
    loader: Loader = torch.utils.data.DataLoader(
        dataset, batch_size=None, num_workers=workers, persistent_workers=True, prefetch_factor=2
    )
    return loader


COMPETITORS: dict[str, Callable[[Sequence[Path], int], Loader]] = {
    "ours": ours,
    "decord": lambda paths, workers: in_processes(DecordClips(paths), workers),
    "PyAV and swscale": lambda paths, workers: in_processes(SwscaleClips(paths), workers),
}


def epoch(loader: Loader) -> Iterator[Clips]:
    """The clips of one epoch."""
    for item in loader:
        yield np.asarray(item.clips[0] if isinstance(item, VideoBatch) else item)


def psnr_db(one: Clips, other: Clips) -> float:
    """Peak signal-to-noise ratio of 8-bit pictures."""
    error = np.mean((one.astype(np.float32) - other) ** 2)
    return float(10 * np.log10(255**2 / error)) if error else float("inf")


def agreement(paths: Sequence[Path]) -> dict[str, float]:
    """The lowest PSNR of any frame to ours, by competitor. Raises ``ValueError`` naming who differs."""
    expected = list(epoch(ours(paths, 1)))
    found = {}
    for name, make in COMPETITORS.items():
        lowest = float("inf")
        for clip, pictures in zip(expected, epoch(make(paths, 1)), strict=True):
            if pictures.shape != clip.shape:
                raise ValueError(f"{name} gives {pictures.shape}, ours {clip.shape}")
            same = [psnr_db(one, other) for one, other in zip(clip, pictures, strict=True)]
            neighbour = [psnr_db(one, other) for one, other in zip(clip[1:], pictures[:-1], strict=True)]
            if min(same) < LOWEST_PSNR_DB or any(one <= other for one, other in zip(same[1:], neighbour, strict=True)):
                raise ValueError(f"{name} has other pictures: {min(same):.1f} dB")
            lowest = min(lowest, *same)
        found[name] = lowest
    return found


@dataclass(frozen=True, slots=True)
class Measured:
    """One epoch: its rate, the CPU time of all its processes for a clip, and what other programs used, 0 to 1."""

    clips_per_s: float
    cpu_s_per_clip: float
    others: float


def rounds(paths: Sequence[Path], workers: int, count: int) -> dict[str, list[Measured]]:
    """Every competitor, round by round.

    One epoch of each, which starts the workers, comes before. Each round begins with another competitor.
    """
    loaders = {name: make(paths, workers) for name, make in COMPETITORS.items()}
    for loader in loaders.values():
        sum(1 for _ in epoch(loader))
    found: dict[str, list[Measured]] = {name: [] for name in loaders}
    for number in range(count):
        for name in rotated([*loaders], number):
            own, busy, began = _own_s(), _busy_s(), time.perf_counter()
            clips = sum(1 for _ in epoch(loaders[name]))
            elapsed, cpu_s, all_s = time.perf_counter() - began, _own_s() - own, _busy_s() - busy
            others = max(0.0, (all_s - cpu_s) / elapsed / (psutil.cpu_count() or 1))
            one = Measured(clips / elapsed, cpu_s / clips, others)
            found[name].append(one)
            print(
                f"  {name:<20}{one.clips_per_s:6.2f} clips/s, {one.cpu_s_per_clip:.2f} CPU s/clip, others {others:.0%}",
                flush=True,
            )
    return found


def bounds(path: Path) -> dict[str, float]:
    """CPU seconds for a clip, by what is done: where the time goes."""
    seconds = {}
    began = time.process_time()
    with av.open(str(path)) as container:
        container.streams.video[0].codec_context.thread_count = 1
        for number, _ in enumerate(container.decode(video=0)):
            if number == NUMBERS[-1]:
                break
    seconds["FFmpeg decodes all frames"] = time.process_time() - began
    began = time.process_time()
    with VideoFile(path) as video:
        frames = [frame for _, frame in video.frames(NUMBERS)]
    seconds["ours: index, decode what is needed"] = time.process_time() - began
    began = time.process_time()
    for frame in frames:
        to_rgb(planes_of(frame), ColorRule())
    seconds["ours: to RGB"] = time.process_time() - began
    began = time.process_time()
    for frame in frames:
        frame.reformat(SIDE, SIDE, "rgb24", interpolation="AREA")
    seconds["swscale: to RGB and resize"] = time.process_time() - began
    return seconds


def main() -> None:
    """Measure, print, and write video-clips.json."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training.video_clips", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    add_out(parser)
    options = parser.parse_args()
    about, paths, workers = begin(("av", "decord2", "torch", "numba", "numpy")), videos(), usable_cores()
    psnr = agreement(paths)
    parts = bounds(paths[0])
    measured = rounds(paths * REPEATS, workers, options.rounds)
    ratios: dict[str, Spread | None] = {}
    for name, values in measured.items():
        print(f"{name:<20}{Spread.of([one.clips_per_s for one in values]).text(2)} clips/s, PSNR {psnr[name]:.1f} dB")
        if name != "ours":
            for field in ("clips_per_s", "cpu_s_per_clip"):
                ratios[f"{field}: ours ÷ {name}"] = _ratio(measured["ours"], values, field)
    for name, spread in ratios.items():
        print(f"{name:<44}{spread.text(2) if spread else ''}")
    for name, seconds in parts.items():
        print(f"{name:<44}{seconds:.2f} CPU s a clip")
    results = {
        **about.model_dump(),
        "clip": {"frames": FRAMES, "stride": STRIDE, "size": SIDE, "bits_per_s": BITS_PER_S, "videos": VIDEOS},
        "workers": workers,
        "psnr_db": {name: value for name, value in psnr.items() if np.isfinite(value)},
        "rounds": {name: [asdict(one) for one in values] for name, values in measured.items()},
        "ratio": {name: asdict(spread) for name, spread in ratios.items() if spread},
        "cpu_s_per_clip": parts,
    }
    path = path_in(options.out, about.machine.slug, VIDEO)
    write(path, results)
    print(f"written to {path}")


def _ratio(ours_: Sequence[Measured], others: Sequence[Measured], field: str) -> Spread | None:
    one, other = ({n: getattr(value, field) for n, value in enumerate(values)} for values in (ours_, others))
    return ratio(one, other)


def _own_s() -> float:
    process = psutil.Process()
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


if __name__ == "__main__":
    main()
