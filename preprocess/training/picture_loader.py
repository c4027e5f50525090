"""The loader of images, and what those with boxes or masks share with it: batches made by the definition of serving."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, Literal

import torch

from onestream.preprocess.backends.base import ON_CPU, BackendName, Device
from onestream.preprocess.backends.table import backend_named
from onestream.preprocess.definition import Definition
from onestream.preprocess.limits import Limits
from onestream.preprocess.training.augmentation import Augmentation
from onestream.preprocess.training.base_loader import BaseLoader, Batch, check_options
from onestream.preprocess.training.device import ToDevice
from onestream.preprocess.training.order import LastBatch, Sampler, order_of
from onestream.preprocess.training.pictures import BadFiles, BatchT, ImageKind, PictureKind, SourceT
from onestream.preprocess.training.sources.cache import Cache
from onestream.preprocess.training.sources.opening import Source
from onestream.preprocess.training.workers import ProcessWorkers, ThreadWorkers, Workers


class PictureLoader(PictureKind[BatchT, SourceT], BaseLoader[BatchT], Generic[BatchT, SourceT]):
    """An iterator over batches; each ``for`` loop is one epoch.

    ``source``: the pictures, and what belongs to each.
    ``train``: with random augmentation in place of the definition's geometry, shuffled; otherwise exactly what serving
    runs, in the dataset's order. ``shuffle`` overrides the latter. ``augmentation``: how images vary; needs ``train``.
    ``shuffle_buffer``: shuffled so that a source that is read in blocks (``read_parquet``, ``read_tar`` with
    ``block_bytes``) reads each once an epoch: blocks come in random order, and so many samples at a time are shuffled.
    ``sampler``, in place of ``shuffle``: a ``torch.utils.data.Sampler`` or a list of indices. It gives those of each
    epoch, maybe repeated, before shards take their parts, and draws by ``seed`` and epoch. A repeat is varied anew.

    ``backend`` and ``device``: *dali* on *cpu* or *gpu*, *cvcuda* on *gpu* (batches stay there), or *reference*: Pillow
    in the worker processes of a ``torch.utils.data.DataLoader``. ``threads``: workers; None is one per core.
    ``prefetch``: batches that are made ahead.

    ``to``: the PyTorch device to which batches are copied, on a CUDA stream of the loader's own. ``normalize``:
    *backend*, or *torch*: uint8 pixels are copied and normalized on ``to``, with the same result and a quarter of the
    bytes. ``dtype``: what images are rounded to, as ``torch.bfloat16``; ``memory_format``: ``torch.channels_last`` for
    the same values in the order of NHWC. ``pin_memory``: page-locked batches, which CUDA copies faster; without a
    GPU it does nothing.

    ``last_batch``: *partial*, *pad* or *drop*. ``shard_id`` and ``num_shards``: None takes the rank and world size of
    ``torch.distributed`` or of torchrun's environment. ``bad_files``: *fail* raises ``BadSample``; *skip* leaves bad
    samples out, lists them in ``skipped``, and keeps the size of *pad* and *drop* batches with padding. A batch of
    which all are bad is left out, or is padding where there are several shards, which need equal numbers of batches;
    an epoch of which all are bad ends with ``BadSample``.

    ``cache``: keeps decoded or resized pictures on disk, see ``Cache``; samples stay equal in every bit.

    Raises ``BadDataset``, ``CannotCompile``, or ``ValueError`` for an option out of range.
    """

    def __init__(
        self,
        definition: Definition,
        source: SourceT,
        *,
        batch_size: int,
        train: bool = False,
        augmentation: Augmentation | None = None,
        shuffle: bool | None = None,
        shuffle_buffer: int | None = None,
        sampler: Sampler | None = None,
        seed: int = 0,
        backend: BackendName = ON_CPU,
        device: Device = "cpu",
        threads: int | None = None,
        prefetch: int = 2,
        to: torch.device | str | None = None,
        normalize: Literal["backend", "torch"] = "backend",
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format = torch.contiguous_format,
        pin_memory: bool = False,
        last_batch: LastBatch = "partial",
        shard_id: int | None = None,
        num_shards: int | None = None,
        bad_files: BadFiles = "fail",
        cache: Cache | None = None,
        limits: Limits | None = None,
    ) -> None:
        if augmentation is not None and not train:
            raise ValueError("augmentation needs train=True")
        counts = {"prefetch": prefetch, "threads": threads, "shuffle_buffer": shuffle_buffer}
        check_options(normalize=normalize, bad_files=bad_files, seed=seed, **counts)
        to_device: ToDevice[BatchT] = ToDevice(
            definition, device=to, normalize=normalize, dtype=dtype, memory_format=memory_format
        )
        config = self._configure(
            definition,
            source,
            varies=train,
            augmentation=augmentation,
            seed=seed,
            backend=backend,
            device=device,
            limits=limits,
            batch_size=batch_size,
            made=to_device.made,
            pin_memory=pin_memory,
            bad_files=bad_files,
            cache=cache,
        )
        order = order_of(
            len(self._pictures),
            batch_size,
            sampler=sampler,
            shuffle=shuffle,
            shuffle_buffer=shuffle_buffer,
            block_starts=getattr(self._pictures, "block_starts", None),
            train=train,
            seed=seed,
            shard_id=shard_id,
            num_shards=num_shards,
            last_batch=last_batch,
        )
        BaseLoader.__init__(self, self._pictures, order, to_device=to_device, bad_files=bad_files, things="images")
        threads = threads or len(os.sched_getaffinity(0))
        make: Callable[..., Workers] = ProcessWorkers if backend_named(backend).holds_interpreter else ThreadWorkers
        self._workers = make(config, threads=threads, prefetch=prefetch)


class ImageLoader(ImageKind, PictureLoader[Batch, Source]):
    """Images with labels; see ``PictureLoader`` for the options and ``ImageKind`` for sources and labels."""
