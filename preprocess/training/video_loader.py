"""The video loader: batches of clips for PyTorch, each frame made by the definition that serving runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import partial
from typing import Literal, NamedTuple

import torch

from onestream.preprocess.backends.base import Device
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BadSample, CannotCompile
from onestream.preprocess.limits import Limits
from onestream.preprocess.training.base_loader import Bad, BaseLoader, Seen, WorkerBatch, indices_of, labels_of
from onestream.preprocess.training.order import LastBatch, Order, Slot
from onestream.preprocess.training.shards import this_shard
from onestream.preprocess.training.video_files import VideoFilesSource, video_files_of
from onestream.preprocess.training.video_workers import ClipWorkers
from onestream.preprocess.variation import canvas_of
from onestream.preprocess.video.clips.choose_frames import Clip, PadMode
from onestream.preprocess.video.clips.frames import VideoBackend
from onestream.preprocess.video.clips.maker import ClipMaker
from onestream.preprocess.video.common.color import ColorRule


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

    ``backend``: *pyav*, *reference*, or *dali* on the ``device`` *cpu* or *gpu*. ``threads``: clips that are made at a
    time, None is one per core; ``decoder_threads``: threads for each. ``prefetch``: batches that are made ahead.

    ``last_batch``: *partial*, *pad* or *drop*. ``shard_id`` and ``num_shards``: None takes the rank and world size of
    ``torch.distributed`` or of torchrun's environment. ``bad_files``: *fail* raises ``BadSample``, which names the file
    and frame; *skip* leaves bad videos out and lists them in ``skipped``, as ``ImageLoader`` does.

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
        order = Order(
            len(self.files),
            batch_size,
            shuffle=shuffle,
            seed=seed,
            shard_id=shard_id,
            num_shards=num_shards,
            last_batch=last_batch,
        ).check()
        super().__init__(self.files, order, bad_files=bad_files, things="videos")
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

    def _make(self, batches: list[list[Slot]], epoch: int) -> Iterator[WorkerBatch]:  # noqa: ARG002 (clips do not vary)
        return self._workers.run(batches)

    def _batch(self, samples: torch.Tensor, slots: Sequence[Slot], seen: Sequence[Seen]) -> VideoBatch:  # noqa: ARG002 (boxes are for pictures)
        return VideoBatch(samples, labels_of(self.files, slots), indices_of(slots))

    def _named(self, slot: Slot, error: Bad) -> BadSample:  # noqa: ARG002 (the error names file and frame)
        assert isinstance(error, BadSample)
        return error

    def _close_workers(self) -> None:
        self._workers.close()
