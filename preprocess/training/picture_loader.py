"""The loader of images, and what those with boxes or masks share with it: batches made by the definition of serving."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch

from onestream.preprocess.backends.base import ON_CPU, BackendName, Device
from onestream.preprocess.backends.table import backend_named
from onestream.preprocess.collage import Collage
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BadDataset, CannotCompile
from onestream.preprocess.geometry import Size
from onestream.preprocess.limits import Limits
from onestream.preprocess.training.augmentation import Augmentation
from onestream.preprocess.training.augmenting.draft import Use
from onestream.preprocess.training.augmenting.mixing import Pictures as Drawable
from onestream.preprocess.training.base_loader import (
    BaseLoader,
    Batch,
    Seen,
    check_options,
    indices_of,
    labels_of,
)
from onestream.preprocess.training.collages import Mixing, Objects
from onestream.preprocess.training.device import ToDevice
from onestream.preprocess.training.order import LastBatch, Order, Slot, this_shard
from onestream.preprocess.training.samples import Pictures, Samples, Source, class_label, samples_of
from onestream.preprocess.training.workers import Draw, ProcessWorkers, See, ThreadWorkers, WorkerConfig, Workers
from onestream.preprocess.variation import Variation, canvas_of

BatchT = TypeVar("BatchT", bound=tuple[Any, ...])
SourceT = TypeVar("SourceT")
BadFiles = Literal["fail", "skip"]


class PictureLoader(BaseLoader[BatchT], Generic[BatchT, SourceT]):
    """An iterator over batches; each ``for`` loop is one epoch.

    ``source``: the pictures, and what belongs to each.
    ``train``: with random augmentation in place of the definition's geometry, shuffled; otherwise exactly what serving
    runs, in the dataset's order. ``shuffle`` overrides the latter. ``augmentation``: how images vary; needs ``train``.

    ``backend`` and ``device``: *dali* on *cpu* or *gpu*, *cvcuda* on *gpu* (batches stay there), or *reference*: Pillow
    in the worker processes of a ``torch.utils.data.DataLoader``. ``threads``: workers; None is one per core.
    ``prefetch``: batches that are made ahead.

    ``to``: the PyTorch device to which batches are copied, on a CUDA stream of the loader's own. ``normalize``:
    *backend*, or *torch*: uint8 pixels are copied and normalized on ``to``, with the same result and a quarter of the
    bytes. ``pin_memory``: page-locked batches, which CUDA copies faster; without a
    GPU it does nothing.

    ``last_batch``: *partial*, *pad* or *drop*. ``shard_id`` and ``num_shards``: None takes the rank and world size of
    ``torch.distributed`` or of torchrun's environment. ``bad_files``: *fail* raises ``BadSample``; *skip* leaves bad
    samples out, lists them in ``skipped``, and keeps the size of *pad* and *drop* batches with padding. A batch of
    which all are bad is left out, or is padding where there are several shards, which need equal numbers of batches;
    an epoch of which all are bad ends with ``BadSample``.

    Raises ``BadDataset``, ``CannotCompile``, or ``ValueError`` for an option out of range.
    """

    default_augmentation: ClassVar[Augmentation] = Augmentation()
    """How images vary where ``train`` comes without ``augmentation``."""
    use: ClassVar[Use]
    """What an augmentation varies here."""

    def __init__(
        self,
        definition: Definition,
        source: SourceT,
        *,
        batch_size: int,
        train: bool = False,
        augmentation: Augmentation | None = None,
        shuffle: bool | None = None,
        seed: int = 0,
        backend: BackendName = ON_CPU,
        device: Device = "cpu",
        threads: int | None = None,
        prefetch: int = 2,
        to: torch.device | str | None = None,
        normalize: Literal["backend", "torch"] = "backend",
        pin_memory: bool = False,
        last_batch: LastBatch = "partial",
        shard_id: int | None = None,
        num_shards: int | None = None,
        bad_files: BadFiles = "fail",
        limits: Limits | None = None,
    ) -> None:
        if augmentation is not None and not train:
            raise ValueError("augmentation needs train=True")
        check_options(normalize=normalize, bad_files=bad_files, seed=seed, prefetch=prefetch, threads=threads)
        try:
            canvas_of(definition)
        except ValueError as error:
            raise CannotCompile(f"images of a batch must have one size: {error}") from None
        self.definition = definition
        samples = self._open(source, bad_files)
        shard_id, num_shards = this_shard(shard_id, num_shards)
        order = Order(
            len(samples),
            batch_size,
            shuffle=train if shuffle is None else shuffle,
            seed=seed,
            shard_id=shard_id,
            num_shards=num_shards,
            last_batch=last_batch,
        ).check()
        to_device: ToDevice[BatchT] = ToDevice(definition, device=to, normalize=normalize == "torch")
        super().__init__(samples, order, to_device=to_device, bad_files=bad_files, things="images")
        self.augmentation = (augmentation or self.default_augmentation).check(self.use)
        row = backend_named(backend)
        row.check_device(device)
        if train and device == "gpu" and (lacking := self.augmentation.lacking(row.varies_on_gpu)):
            raise CannotCompile(f"{backend} on a GPU lacks {', '.join(lacking)}; device='cpu' can")
        mixes = train and self.augmentation.mixes
        self._mixing = self._mix(seed) if mixes else None
        draw = self._draw(self.augmentation, seed) if train and not mixes else None
        config = WorkerConfig(
            definition=definition.pixels() if normalize == "torch" else definition,
            samples=samples,
            backend=backend,
            device=device,
            limits=limits or Limits(),
            batch_size=batch_size,
            vary=draw,
            # As PyTorch's DataLoader: without a GPU there is nothing to copy to.
            pin_memory=pin_memory and torch.cuda.is_available(),
            see=self._see(draw),
            mixing=self._mixing,
        )
        threads = threads or len(os.sched_getaffinity(0))
        make: Callable[..., Workers] = ProcessWorkers if row.holds_interpreter else ThreadWorkers
        self._workers = make(config, threads=threads, prefetch=prefetch)

    @abstractmethod
    def _open(self, source: SourceT, bad_files: BadFiles) -> Pictures:
        """The pictures of a source. Raises ``BadDataset``, or ``BadSample`` where one is bad and may not be."""

    def _draw(self, augmentation: Augmentation, seed: int) -> Draw:
        """What draws the variation of each picture. It crosses processes."""
        return partial(_vary, augmentation, seed, self.definition)

    def _see(self, draw: Draw | None) -> See | None:  # noqa: ARG002 (for those that override it)
        """What says what is seen of each picture, if batches need it. It crosses processes."""
        return None

    def _objects(self) -> Objects | None:
        """What gives the boxes of each picture, if it has any. It crosses processes."""
        return None

    def _prepare_mixing(self) -> None:
        """Check what mixing samples needs. Raises ``BadDataset``."""

    def _mix(self, seed: int) -> Mixing:
        self._prepare_mixing()
        return Mixing(partial(_collage, self.augmentation, seed, self.definition), self._objects())


def _vary(
    augmentation: Augmentation, seed: int, definition: Definition, epoch: int, index: int, size_hw: Size
) -> Variation:
    return augmentation.draw(size_hw, seed=seed, epoch=epoch, index=index, definition=definition)


def _collage(
    augmentation: Augmentation, seed: int, definition: Definition, epoch: int, index: int, pictures: Drawable
) -> Collage:
    return augmentation.collage(pictures, seed=seed, epoch=epoch, index=index, definition=definition)


class ImageLoader(PictureLoader[Batch, Source]):
    """Images with labels; see ``PictureLoader`` for the options.

    ``source``: a folder with one folder per class, a file list, a ``torch.utils.data.Dataset`` of (bytes or path,
    label), or an iterable of bytes or (bytes, label).

    Where the augmentation mixes samples (``mixup``, ``cutmix``), ``Batch.labels`` are float32 (batch, classes): the
    share of each class, which ``torch.nn.CrossEntropyLoss`` takes as it is. There are as many classes as the source has
    names, or without names as its largest label needs; ``BadDataset`` is raised where a sample has no label.
    """

    samples: Samples
    use: ClassVar[Use] = "classes"

    def _open(self, source: Source, bad_files: BadFiles) -> Samples:  # noqa: ARG002 (found when they are read)
        self.samples = samples_of(source)
        return self.samples

    def _prepare_mixing(self) -> None:
        samples = self.samples
        labels = [class_label(samples.label(index), samples.name(index)) for index in range(len(samples))]
        self._num_classes = len(self.samples.classes) or 1 + max(labels)
        for index, label in enumerate(labels):
            if not 0 <= label < self._num_classes:
                raise BadDataset(
                    f"{self.samples.name(index)} has the label {label}; samples are mixed with labels of 0 to "
                    f"{max(0, self._num_classes - 1)}"
                )

    def _batch(self, samples: torch.Tensor, slots: Sequence[Slot], seen: Sequence[Seen]) -> Batch:
        if self._mixing is None:
            return Batch(samples, labels_of(self.samples, slots), indices_of(slots))
        labels = torch.zeros((len(slots), self._num_classes))
        for row, slot, parts in zip(labels, slots, seen, strict=True):
            for part in () if slot.is_padding else parts:
                row[self.samples.label(part.index)] += part.share
        return Batch(samples, labels, indices_of(slots))
