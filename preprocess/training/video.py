"""The video loader: batches of clips for PyTorch, each frame made by the definition that serving runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import partial
from types import TracebackType
from typing import Literal, NamedTuple

import torch

from preprocess.backends.base import Device
from preprocess.definition import Definition
from preprocess.errors import BadSample, CannotCompile
from preprocess.limits import Limits
from preprocess.training.loader import PADDING_INDEX, PADDING_LABEL, Skipped
from preprocess.training.order import LastBatch, Order, Slot
from preprocess.training.shards import this_shard
from preprocess.training.video_files import VideoFilesSource, video_files_of
from preprocess.training.video_workers import ClipWorkers, MadeClips
from preprocess.variation import canvas_of
from preprocess.video.clips import Clip, PadMode
from preprocess.video.color import ColorRule
from preprocess.video.frames import VideoBackend
from preprocess.video.maker import ClipMaker


class VideoBatch(NamedTuple):
    """One batch.

    ``clips`` is (batch, frames, …), each frame as the definition's output says; ``labels`` and ``indices`` are int64
    (batch,). ``indices`` are positions in the dataset. A clip that only fills the batch up has the index -1 and the
    label -100.
    """

    clips: torch.Tensor
    labels: torch.Tensor
    indices: torch.Tensor


class VideoLoader:
    """An iterator over batches of clips, one clip of each video; each ``for`` loop is one epoch.

    ``source``: a folder with one folder of videos per class, a file list, or an iterable of paths or (path, label).
    ``num_frames``, ``start_frame``, ``end_frame``, ``stride``, ``fps``, ``frames``, ``pad_mode`` and ``pad_level``
    choose the frames; see ``preprocess.video.clips.Clip``. ``color``: how YUV becomes RGB.

    ``backend``: *pyav*, *reference*, or *dali* on the ``device`` *cpu* or *gpu*. ``threads``: clips that are made at a
    time, None is one per core; ``decoder_threads``: threads for each. ``prefetch``: batches that are made ahead.

    ``last_batch``: *partial*, *pad* or *drop*. ``shard_id`` and ``num_shards``: None takes the rank and world size of
    ``torch.distributed`` or of torchrun's environment. ``bad_files``: *fail* raises ``BadSample``, which names the file
    and frame; *skip* leaves bad videos out, lists them in ``skipped``, and keeps the size of *pad* and *drop* batches
    with padding.

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
        shuffle: bool = False,
        seed: int = 0,
        backend: VideoBackend = "pyav",
        device: Device = "cpu",
        threads: int | None = None,
        decoder_threads: int = 1,
        prefetch: int = 1,
        last_batch: LastBatch = "partial",
        shard_id: int | None = None,
        num_shards: int | None = None,
        bad_files: Literal["fail", "skip"] = "fail",
        limits: Limits | None = None,
    ) -> None:
        if bad_files not in ("fail", "skip"):
            raise ValueError(f"bad_files must be 'fail' or 'skip', got {bad_files!r}")
        if min(prefetch, decoder_threads, 1 if threads is None else threads) < 1:
            raise ValueError(
                "prefetch, threads and decoder_threads must be at least 1, "
                f"got {prefetch}, {threads}, {decoder_threads}"
            )
        if num_frames is None and frames is None:
            raise ValueError("clips of a batch must have one length: give num_frames or frames")
        try:
            canvas_of(definition)
        except ValueError as error:
            raise CannotCompile(f"frames of a batch must have one size: {error}") from None
        self.definition = definition
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
        self.order = Order(
            len(self.files),
            batch_size,
            shuffle=shuffle,
            seed=seed,
            shard_id=shard_id,
            num_shards=num_shards,
            last_batch=last_batch,
        ).check()
        self.skipped: list[Skipped] = []
        self._skip, self._skipped_indices = bad_files == "skip", set[int]()
        self._epoch = 0
        make = partial(
            ClipMaker,
            definition,
            self.clip,
            backend=backend,
            device=device,
            color=color,
            threads=decoder_threads,
            limits=limits,
        )
        spec = definition.output_spec
        self._workers = ClipWorkers(
            make,
            self.files.paths,
            clip_shape=(num_frames or len(frames or ()), *(side for side in spec.shape if side is not None)),
            dtype=getattr(torch, spec.dtype),
            threads=threads or len(os.sched_getaffinity(0)),
            prefetch=prefetch,
        )
        self._running: Iterator[MadeClips] | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the labels 0, 1, …; empty where the source gives none."""
        return self.files.classes

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next ``for`` loop runs, from 0."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next loop runs, for a run that is resumed."""
        if epoch < 0:
            raise ValueError(f"epoch must be 0 or more, got {epoch}")
        self._epoch = epoch

    def __len__(self) -> int:
        """Batches per epoch."""
        return self.order.batches_per_epoch

    def __iter__(self) -> Iterator[VideoBatch]:
        """Run the next epoch. One that still runs is ended: the threads serve one at a time."""
        self.reset()
        epoch, self._epoch = self._epoch, self._epoch + 1
        self._running = self._workers.run(self.order.batches(epoch))
        return map(self._finished, self._running)

    def reset(self) -> None:
        """End the running epoch, if there is one, and drop what was made ahead."""
        if self._running is not None:
            close = getattr(self._running, "close", None)
            if close is not None:
                close()
            self._running = None

    def close(self) -> None:
        """End the threads and release all they hold. The loader cannot be used afterwards."""
        self.reset()
        self._workers.close()

    def __enter__(self) -> VideoLoader:
        """The loader itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def __del__(self) -> None:
        """Close a loader that was forgotten."""
        with suppress(Exception):
            self.close()

    def _finished(self, made: MadeClips) -> VideoBatch:
        """Check what the threads made, and add labels and indices."""
        slots, clips = list(made.slots), made.clips
        for place, error in made.bad.items():
            self._note(slots[place], error)
        if made.bad:
            good = [place for place in range(len(slots)) if place not in made.bad]
            if not good:
                raise BadSample(f"all {len(slots)} videos of a batch are bad, the first is {made.bad[0]}")
            if self.order.last_batch == "partial":
                clips, slots = clips[good], [slots[place] for place in good]
            else:
                for place in made.bad:
                    clips[place], slots[place] = clips[good[0]], Slot(slots[good[0]].index, is_padding=True)
        indices = [PADDING_INDEX if slot.is_padding else slot.index for slot in slots]
        labels = [PADDING_LABEL if slot.is_padding else self.files.label(slot.index) for slot in slots]
        return VideoBatch(clips, torch.tensor(labels, dtype=torch.int64), torch.tensor(indices, dtype=torch.int64))

    def _note(self, slot: Slot, error: BadSample) -> None:
        """Raise the error, or list the video as skipped, once."""
        if not self._skip:
            raise error
        if slot.index not in self._skipped_indices:
            self._skipped_indices.add(slot.index)
            self.skipped.append(Skipped(slot.index, self.files.name(slot.index), str(error)))
