"""Shared by loaders and map-style datasets of pictures: a source opened, and what a worker needs to make samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch

from onestream.preprocess.backends.base import BackendName, Device
from onestream.preprocess.backends.table import backend_named
from onestream.preprocess.collage import Collage
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BadDataset, CannotCompile
from onestream.preprocess.geometry import Size
from onestream.preprocess.limits import Limits
from onestream.preprocess.training.augmentation import Augmentation
from onestream.preprocess.training.augmenting.draft import Use
from onestream.preprocess.training.augmenting.mixing import Pictures as Drawable
from onestream.preprocess.training.base_loader import Batch, Seen, indices_of, labels_of
from onestream.preprocess.training.collages import Mixing, Objects
from onestream.preprocess.training.order import Slot
from onestream.preprocess.training.sources.cache import Cache, CachedPictures, kept_by, made_of_resized
from onestream.preprocess.training.sources.labels import Labels, class_label
from onestream.preprocess.training.sources.opening import Source, samples_of
from onestream.preprocess.training.sources.samples import Pictures, Samples
from onestream.preprocess.training.workers import Draw, See, WorkerConfig
from onestream.preprocess.variation import Variation, canvas_of

BatchT = TypeVar("BatchT", bound=tuple[Any, ...])
SourceT = TypeVar("SourceT")
BadFiles = Literal["fail", "skip"]


class PictureKind(ABC, Generic[BatchT, SourceT]):
    """Pictures with what belongs to each: how a source is opened and varied, and what a batch holds."""

    default_augmentation: ClassVar[Augmentation] = Augmentation()
    """How images vary where ``train`` comes without ``augmentation``."""
    use: ClassVar[Use]
    """What an augmentation varies here."""
    definition: Definition
    augmentation: Augmentation
    _mixing: Mixing | None
    _pictures: Pictures

    def _configure(
        self,
        definition: Definition,
        source: SourceT,
        *,
        varies: bool,
        augmentation: Augmentation | None,
        seed: int,
        backend: BackendName,
        device: Device,
        limits: Limits | None,
        batch_size: int,
        made: Definition,
        pin_memory: bool,
        bad_files: BadFiles,
        cache: Cache | None,
    ) -> WorkerConfig:
        """Open the source, and say what a worker needs, which runs ``made``.

        Raises ``BadDataset``, ``BadSample`` and ``CannotCompile``.
        """
        try:
            canvas_of(definition)
        except ValueError as error:
            raise CannotCompile(f"images of a batch must have one size: {error}") from None
        self.definition = definition
        self._pictures = self._open(source, bad_files)
        self.augmentation = (augmentation or self.default_augmentation).check(self.use)
        row = backend_named(backend)
        row.check_device(device)
        if varies and device == "gpu" and (lacking := self.augmentation.lacking(row.varies_on_gpu)):
            raise CannotCompile(f"{backend} on a GPU lacks {', '.join(lacking)}; device='cpu' can")
        mixes = varies and self.augmentation.mixes
        self._mixing = self._mix(seed) if mixes else None
        draw = self._draw(self.augmentation, seed) if varies and not mixes else None
        see, limits = self._see(draw), limits or Limits()
        pictures = self._pictures
        if cache is not None:
            if device == "gpu":
                raise CannotCompile("a cache keeps what a CPU decodes; device='gpu' decodes on a GPU")
            if cache.of == "resized" and (varies or see is not None):
                what = (
                    "an augmentation takes the place of the resize" if varies else "boxes and masks follow the resize"
                )
                raise CannotCompile(f"a cache of='resized' cannot be used where {what}; of='decoded' can")
            kept = kept_by(cache, definition)
            pictures = CachedPictures(self._pictures, cache, kept, backend=backend, limits=limits)
            made = made_of_resized(made) if cache.of == "resized" else made
        return WorkerConfig(
            definition=made,
            samples=pictures,
            backend=backend,
            device=device,
            limits=limits,
            batch_size=batch_size,
            vary=draw,
            # As PyTorch's DataLoader: without a GPU there is nothing to copy to.
            pin_memory=pin_memory and torch.cuda.is_available(),
            see=see,
            mixing=self._mixing,
        )

    @abstractmethod
    def _open(self, source: SourceT, bad_files: BadFiles) -> Pictures:
        """The pictures of a source. Raises ``BadDataset``, or ``BadSample`` where one is bad and may not be."""

    @abstractmethod
    def _batch(self, samples: torch.Tensor, slots: Sequence[Slot], seen: Sequence[Seen]) -> BatchT:
        """A batch as a loop gets it; of padding it may be missing what is seen."""

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


class ImageKind(PictureKind[Batch, Source]):
    """Images with labels.

    ``source``: a folder with one folder per class, a file list, tar or Parquet files (``read_tar``, ``read_parquet``),
    a dataset of Hugging Face's library (``read_hugging_face``), a ``torch.utils.data.Dataset`` of (bytes or path,
    label), or an iterable of bytes or (bytes, label).

    Labels of another kind than class numbers: ``read_labels`` and ``with_labels``, with batches as of ``Labels``. Where
    the augmentation mixes samples (``mixup``, ``cutmix``), labels are float32 (batch, classes): the share of each
    class, which ``torch.nn.CrossEntropyLoss`` takes as it is. There are as many classes as the source has names, or
    without names as its largest label needs; ``BadDataset`` is raised where a sample has no label.
    """

    samples: Samples
    use: ClassVar[Use] = "classes"

    def _open(self, source: Source, bad_files: BadFiles) -> Samples:  # noqa: ARG002 (found when they are read)
        self.samples = samples_of(source)
        return self.samples

    def _prepare_mixing(self) -> None:
        samples = self.samples
        kind: Labels | None = getattr(samples, "kind", None)
        if kind is not None and kind.kind != "class":
            raise BadDataset(f"samples are mixed with one class each; the labels are {kind.kind!r}")
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
                row[class_label(self.samples.label(part.index), self.samples.name(part.index))] += part.share
        return Batch(samples, labels, indices_of(slots))
