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
from onestream.preprocess.training.augmenting.timing import Speed
from onestream.preprocess.training.base_loader import (
    Bad,
    BaseLoader,
    Seen,
    check_options,
    indices_of,
    labels_of,
)
from onestream.preprocess.training.device import ToDevice
from onestream.preprocess.training.order import LastBatch, Order, Slot, this_shard
from onestream.preprocess.training.samples import NO_LABEL, Files
from onestream.preprocess.training.workers import Begun, Found, ThreadedWorkers
from onestream.preprocess.variation import AS_FILMED, Timing, Vary, canvas_of
from onestream.preprocess.video.clips.choose_frames import Clip, PadMode
from onestream.preprocess.video.clips.frames import VideoBackend
from onestream.preprocess.video.clips.maker import ClipMaker
from onestream.preprocess.video.common.color import ColorRule

DrawClip = Callable[[int, int], tuple[Vary, Timing]]
"""Draws what varies the frames of an epoch and a sample's index, and when they are taken."""


class ClipWorkers(ThreadedWorkers[ClipMaker]):
    """Makes batches of clips, some of them ahead; every clip is one task.

    ``make`` gives each thread a maker of its own. ``shape`` is a clip's, (frames, …). ``draw`` is None where clips
    do not vary.
    """

    def __init__(
        self,
        make: Callable[[], ClipMaker],
        paths: Sequence[Path],
        *,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        pin_memory: bool,
        draw: DrawClip | None,
        threads: int,
        prefetch: int,
    ) -> None:
        super().__init__(make, threads=threads, prefetch=prefetch, name="onestream-clips")
        self._paths, self._draw = paths, draw
        self._empty = partial(torch.empty, dtype=dtype, pin_memory=pin_memory)
        self._shape = shape

    def _start(self, slots: list[Slot], epoch: int) -> Begun:
        clips = self._empty((len(slots), *self._shape))
        shared = clips.numpy()
        tasks = [partial(self._fill, shared[place], place, slot.index, epoch) for place, slot in enumerate(slots)]
        return slots, clips, [self._threads.submit(task) for task in tasks]

    def _fill(self, out: npt.NDArray[Any], place: int, index: int, epoch: int, maker: ClipMaker) -> Found:
        vary, timing = (None, AS_FILMED) if self._draw is None else self._draw(epoch, index)
        try:
            maker.make(self._paths[index], out=out, vary=vary, timing=timing)
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
    return Files([Path(path) for path, _ in pairs], [label for _, label in pairs])


def _from_folder(folder: Path) -> Files:
    if not folder.is_dir():
        raise BadDataset(f"{folder} is not a folder")
    classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    loose = _videos(folder.iterdir())
    if classes and loose:
        raise BadDataset(f"{folder} has folders of classes and videos beside them, such as {loose[0].name}")
    found = [(path, label) for label, name in enumerate(classes) for path in _videos((folder / name).rglob("*"))]
    found += [(path, NO_LABEL) for path in loose]
    if not found:
        raise BadDataset(f"no video in {folder}; expected files that end in {', '.join(VIDEO_SUFFIXES)}")
    return Files([path for path, _ in found], [label for _, label in found], classes)


def _videos(paths: Iterable[Path]) -> list[Path]:
    return sorted(path for path in paths if path.suffix.lower() in VIDEO_SUFFIXES and path.is_file())


class VideoBatch(NamedTuple):
    """One batch.

    ``clips`` is (batch, frames, …), each frame as the definition's output says; ``labels`` and ``indices`` are int64
    (batch,). ``indices`` are positions in the dataset. A clip that only fills the batch up has the index -1 and the
    label -100.
    """

    clips: torch.Tensor
    labels: torch.Tensor
    indices: torch.Tensor


class VideoLoader(BaseLoader[VideoBatch]):
    """An iterator over batches of clips, one clip of each video; each ``for`` loop is one epoch.

    ``source``: a folder with one folder of videos per class, a file list, or an iterable of paths or (path, label).
    ``num_frames``, ``start_frame``, ``end_frame``, ``stride``, ``fps``, ``frames``, ``pad_mode`` and ``pad_level``
    choose the frames; see ``onestream.preprocess.video.clips.choose_frames.Clip``. ``color``: how YUV becomes RGB.

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
        color: ColorRule | None = None,
        train: bool = False,
        augmentation: Augmentation | None = None,
        shuffle: bool | None = None,
        seed: int = 0,
        backend: VideoBackend = "pyav",
        device: Device = "cpu",
        threads: int | None = None,
        decoder_threads: int = 1,
        prefetch: int = 1,
        to: torch.device | str | None = None,
        normalize: Literal["backend", "torch"] = "backend",
        pin_memory: bool = False,
        last_batch: LastBatch = "partial",
        shard_id: int | None = None,
        num_shards: int | None = None,
        bad_files: Literal["fail", "skip"] = "fail",
        limits: Limits | None = None,
    ) -> None:
        check_options(
            normalize=normalize, bad_files=bad_files, seed=seed, prefetch=prefetch, threads=threads,
            decoder_threads=decoder_threads,
        )  # fmt: skip
        if augmentation is not None and not train:
            raise ValueError("augmentation needs train=True")
        if frames is not None and augmentation and any(isinstance(one, Speed) for one in augmentation.operations):
            raise ValueError("speed needs num_frames; frames lists the frames themselves")
        if num_frames is None and frames is None:
            raise ValueError("clips of a batch must have one length: give num_frames or frames")
        try:
            canvas_of(definition)
        except ValueError as error:
            raise CannotCompile(f"frames of a batch must have one size: {error}") from None
        self.definition = definition
        self.augmentation = (augmentation or Augmentation()).check("clips")
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
        shard_id, num_shards = this_shard(shard_id, num_shards)
        order = Order(
            len(self.files),
            batch_size,
            shuffle=train if shuffle is None else shuffle,
            seed=seed,
            shard_id=shard_id,
            num_shards=num_shards,
            last_batch=last_batch,
        ).check()
        to_device: ToDevice[VideoBatch] = ToDevice(definition, device=to, normalize=normalize == "torch")
        super().__init__(self.files, order, to_device=to_device, bad_files=bad_files, things="videos")
        made = definition.pixels() if normalize == "torch" else definition
        make = partial(
            ClipMaker, made, self.clip, backend=backend, device=device, color=color, threads=decoder_threads,
            limits=limits,
        )  # fmt: skip
        length, spec = num_frames or len(frames or ()), made.output_spec
        self._workers = ClipWorkers(
            make,
            self.files.paths,
            shape=(length, *(side for side in spec.shape if side is not None)),
            dtype=getattr(torch, spec.dtype),
            pin_memory=pin_memory and torch.cuda.is_available(),
            draw=partial(_draw, self.augmentation, definition, length, seed) if train else None,
            threads=threads or len(os.sched_getaffinity(0)),
            prefetch=prefetch,
        )

    def _batch(self, samples: torch.Tensor, slots: Sequence[Slot], seen: Sequence[Seen]) -> VideoBatch:  # noqa: ARG002 (boxes are for pictures)
        return VideoBatch(samples, labels_of(self.files, slots), indices_of(slots))

    def _named(self, slot: Slot, error: Bad) -> BadSample:  # noqa: ARG002 (the error names file and frame)
        assert isinstance(error, BadSample)
        return error


def _draw(
    augmentation: Augmentation, definition: Definition, frames: int, seed: int, epoch: int, index: int
) -> tuple[Vary, Timing]:
    vary = partial(augmentation.of_frames.draw, seed=seed, epoch=epoch, index=index, definition=definition)
    return vary, augmentation.timing(frames, seed=seed, epoch=epoch, index=index)
