"""The video loader: batches of clips for PyTorch, each frame made by the definition that serving runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy.typing as npt
import torch

from onestream.preprocess.backends.base import Device
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BadDataset, BadSample, CannotCompile
from onestream.preprocess.limits import Limits
from onestream.preprocess.training.augmentation import Augmentation
from onestream.preprocess.training.augmenting.timing import RandomStart, Speed
from onestream.preprocess.training.base_loader import (
    Bad,
    BaseLoader,
    Seen,
    check_options,
    indices_of,
    labels_of,
)
from onestream.preprocess.training.device import ToDevice
from onestream.preprocess.training.order import LastBatch, Sampler, Slot, order_of
from onestream.preprocess.training.sources.labels import NO_LABEL, Label
from onestream.preprocess.training.sources.paths import files_below
from onestream.preprocess.training.sources.samples import Files
from onestream.preprocess.training.workers import Begun, Found, ThreadedWorkers
from onestream.preprocess.variation import Timing, Vary, canvas_of
from onestream.preprocess.video.clips.choose_frames import Clip, PadMode
from onestream.preprocess.video.clips.frames import VideoBackend
from onestream.preprocess.video.clips.maker import ClipMaker
from onestream.preprocess.video.common.color import ColorRule

DrawClip = Callable[[int, int], tuple[Vary | None, Timing]]
"""Draws what varies the frames of an epoch and a sample's index, and when they are taken."""


class Clips:
    """The samples: so many clips of each video, one after the other, which begin evenly spread over it."""

    def __init__(self, files: Files, per_video: int) -> None:
        self.classes, self.kind, self._files, self._per_video = files.classes, files.kind, files, per_video

    def __len__(self) -> int:
        """Number of clips."""
        return len(self._files) * self._per_video

    def path(self, index: int) -> Path:
        """The video of a clip."""
        return self._files.paths[index // self._per_video]

    def start(self, index: int) -> float:
        """Where a clip begins (``Timing.start``)."""
        return index % self._per_video / max(1, self._per_video - 1)

    def label(self, index: int) -> Label:
        """The label of a clip's video."""
        return self._files.label(index // self._per_video)

    def name(self, index: int) -> str:
        """The path of a clip's video."""
        return self._files.name(index // self._per_video)


class ClipWorkers(ThreadedWorkers[ClipMaker]):
    """Makes batches of clips, some of them ahead; every clip is one task.

    ``make`` gives each thread a maker of its own. ``shape`` is a clip's, (frames, …).
    """

    def __init__(
        self,
        make: Callable[[], ClipMaker],
        clips: Clips,
        *,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        pin_memory: bool,
        draw: DrawClip,
        threads: int,
        prefetch: int,
    ) -> None:
        super().__init__(make, threads=threads, prefetch=prefetch, name="onestream-clips")
        self._clips, self._draw = clips, draw
        self._empty = partial(torch.empty, dtype=dtype, pin_memory=pin_memory)
        self._shape = shape

    def _start(self, slots: list[Slot], epoch: int) -> Begun:
        clips = self._empty((len(slots), *self._shape))
        shared = clips.numpy()
        tasks = [
            partial(self._fill, shared[place], place, slot.index, slot.drawn_in(epoch))
            for place, slot in enumerate(slots)
        ]
        return slots, clips, [self._threads.submit(task) for task in tasks]

    def _fill(self, out: npt.NDArray[Any], place: int, index: int, epoch: int, maker: ClipMaker) -> Found:
        vary, timing = self._draw(epoch, index)
        try:
            maker.make(self._clips.path(index), out=out, vary=vary, timing=timing)
        except BadSample as error:
            # Never what happened to be in the memory, even if nobody looks.
            out[...] = 0
            return None, {place: error}, {}
        return None, {}, {}


VIDEO_SUFFIXES = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".ts", ".flv", ".h264", ".hevc")

VideoPath = str | os.PathLike[str]
VideoFilesSource = VideoPath | Files | Iterable[VideoPath | tuple[VideoPath, int]]
"""A folder, a file list, files of one's own, or an iterable of paths or (path, label)."""


def video_files_of(source: VideoFilesSource) -> Files:
    """The videos that a source stands for.

    A folder holds one folder of videos per class, labelled in the order of their names, or videos without labels. A
    list holds lines of a path, a space or tab and a label. Raises ``BadDataset`` naming what was seen and expected.
    """
    if isinstance(source, Files):
        return source
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if path.is_file() and path.suffix.lower() in VIDEO_SUFFIXES:
            raise BadDataset(f"{path} is one video; expected a folder, a file list, or an iterable of paths")
        return Files.from_list(path) if path.is_file() else _from_folder(path)
    pairs = [item if isinstance(item, tuple) else (item, NO_LABEL) for item in source]
    if not pairs:
        raise BadDataset("got no video")
    return Files([path for path, _ in pairs], [label for _, label in pairs])


def _from_folder(folder: Path) -> Files:
    if not folder.is_dir():
        raise BadDataset(f"{folder} is not a folder")
    classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    loose = _videos(folder.iterdir())
    if classes and loose:
        raise BadDataset(f"{folder} has folders of classes and videos beside them, such as {loose[0].name}")
    found: list[tuple[VideoPath, int]] = [
        (path, label) for label, name in enumerate(classes) for path in files_below(folder / name, VIDEO_SUFFIXES)
    ]
    found += [(path, NO_LABEL) for path in loose]
    if not found:
        raise BadDataset(f"no video in {folder}; expected files that end in {', '.join(VIDEO_SUFFIXES)}")
    return Files([path for path, _ in found], [label for _, label in found], classes)


def _videos(paths: Iterable[Path]) -> list[Path]:
    return sorted(path for path in paths if path.suffix.lower() in VIDEO_SUFFIXES and path.is_file())


class VideoBatch(NamedTuple):
    """One batch.

    ``clips`` is (batch, frames, …), each frame as the definition's output says; ``labels`` and ``indices`` are int64
    (batch,). ``indices`` are positions in the dataset; that of the video is ``index // clips_per_video``. A clip that
    only fills the batch up has the index -1 and the label -100.
    """

    clips: torch.Tensor
    labels: torch.Tensor
    indices: torch.Tensor


class VideoLoader(BaseLoader[VideoBatch]):
    """An iterator over batches of clips; each ``for`` loop is one epoch.

    ``source``: a folder with one folder of videos per class, a file list, or an iterable of paths or (path, label).
    ``num_frames``, ``start_frame``, ``end_frame``, ``stride``, ``fps``, ``frames``, ``pad_mode`` and ``pad_level``
    choose the frames; see ``onestream.preprocess.video.clips.choose_frames.Clip``. ``clips_per_video``: so many begin
    evenly spread, the first at ``start_frame`` and the last where it needs no padding. ``color``: how YUV becomes RGB.

    ``train``: with random augmentation, shuffled; otherwise exactly what serving runs. All frames of a clip vary alike,
    and ``augmentation`` may also vary when they are taken. ``backend``: *pyav*, *reference*, or *dali* on the
    ``device`` *cpu* or *gpu*. ``threads``: clips that are made at a time, None is one per core; ``decoder_threads``:
    threads for each. ``bad_files``: *fail* raises ``BadSample``, which names the file and frame. The other options are
    those of ``PictureLoader``.

    Raises ``BadDataset``, ``CannotCompile``, or ``ValueError`` for an option out of range.
    """

    def __init__(
        self,
        definition: Definition,
        source: VideoFilesSource,
        *,
        batch_size: int,
        num_frames: int | None = None,
        start_frame: int = 0,
        end_frame: int | None = None,
        stride: int = 1,
        fps: float | Fraction | None = None,
        frames: Sequence[int] | None = None,
        pad_mode: PadMode = "none",
        pad_level: int = 0,
        clips_per_video: int = 1,
        color: ColorRule | None = None,
        train: bool = False,
        augmentation: Augmentation | None = None,
        shuffle: bool | None = None,
        sampler: Sampler | None = None,
        seed: int = 0,
        backend: VideoBackend = "pyav",
        device: Device = "cpu",
        threads: int | None = None,
        decoder_threads: int = 1,
        prefetch: int = 1,
        to: torch.device | str | None = None,
        normalize: Literal["backend", "torch"] = "backend",
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format = torch.contiguous_format,
        pin_memory: bool = False,
        last_batch: LastBatch = "partial",
        shard_id: int | None = None,
        num_shards: int | None = None,
        bad_files: Literal["fail", "skip"] = "fail",
        limits: Limits | None = None,
    ) -> None:
        check_options(
            normalize=normalize, bad_files=bad_files, seed=seed, prefetch=prefetch, threads=threads,
            decoder_threads=decoder_threads, clips_per_video=clips_per_video,
        )  # fmt: skip
        if augmentation is not None and not train:
            raise ValueError("augmentation needs train=True")
        moved = ["clips_per_video"] if clips_per_video > 1 else []
        if augmentation is not None:
            moved += [one.op for one in augmentation.operations if isinstance(one, Speed | RandomStart)]
        if frames is not None and moved:
            raise ValueError(f"{moved[0]} needs num_frames; frames lists the frames themselves")
        if num_frames is None and frames is None:
            raise ValueError("clips of a batch must have one length: give num_frames or frames")
        try:
            canvas_of(definition)
        except ValueError as error:
            raise CannotCompile(f"frames of a batch must have one size: {error}") from None
        self.definition = definition
        self.augmentation = (augmentation or Augmentation()).check("clips")
        self.clips_per_video = clips_per_video
        self.clip = Clip(
            num_frames=num_frames,
            start_frame=start_frame,
            end_frame=end_frame,
            stride=stride,
            fps=fps,
            frames=None if frames is None else tuple(frames),
            pad_mode=pad_mode,
            pad_level=pad_level,
        )
        self.files = video_files_of(source)
        self._clips = clips = Clips(self.files, clips_per_video)
        order = order_of(
            len(clips),
            batch_size,
            sampler=sampler,
            shuffle=shuffle,
            train=train,
            seed=seed,
            shard_id=shard_id,
            num_shards=num_shards,
            last_batch=last_batch,
        )
        to_device: ToDevice[VideoBatch] = ToDevice(
            definition, device=to, normalize=normalize, dtype=dtype, memory_format=memory_format
        )
        super().__init__(clips, order, to_device=to_device, bad_files=bad_files, things="clips")
        made = to_device.made
        make = partial(
            ClipMaker, made, self.clip, backend=backend, device=device, color=color, threads=decoder_threads,
            limits=limits,
        )  # fmt: skip
        length, spec = num_frames or len(frames or ()), made.output_spec
        self._workers = ClipWorkers(
            make,
            clips,
            shape=(length, *(side for side in spec.shape if side is not None)),
            dtype=getattr(torch, spec.dtype),
            pin_memory=pin_memory and torch.cuda.is_available(),
            draw=partial(_draw, self.augmentation if train else None, definition, clips, length, seed),
            threads=threads or len(os.sched_getaffinity(0)),
            prefetch=prefetch,
        )

    def _batch(self, samples: torch.Tensor, slots: Sequence[Slot], seen: Sequence[Seen]) -> VideoBatch:  # noqa: ARG002 (boxes are for pictures)
        return VideoBatch(samples, labels_of(self._clips, slots), indices_of(slots))

    def _named(self, slot: Slot, error: Bad) -> BadSample:  # noqa: ARG002 (the error names file and frame)
        assert isinstance(error, BadSample)
        return error


def _draw(
    augmentation: Augmentation | None,
    definition: Definition,
    clips: Clips,
    frames: int,
    seed: int,
    epoch: int,
    index: int,
) -> tuple[Vary | None, Timing]:
    start = clips.start(index)
    if augmentation is None:
        return None, Timing(start=start)
    vary = partial(augmentation.of_frames.draw, seed=seed, epoch=epoch, index=index, definition=definition)
    return vary, augmentation.timing(frames, seed=seed, epoch=epoch, index=index, start=start)
