"""The image loader: batches for PyTorch, made by the definition that serving runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from onestream.preprocess.errors import BadDataset
from onestream.preprocess.training.augmenting.draft import Use
from onestream.preprocess.training.base_loader import Batch, Seen, indices_of, labels_of
from onestream.preprocess.training.order import Slot
from onestream.preprocess.training.picture_loader import BadFiles, PictureLoader
from onestream.preprocess.training.samples import Samples, Source, class_label, samples_of


class ImageLoader(PictureLoader[Batch, Source]):
    """Images with labels; see ``PictureLoader`` for the options.

    ``source``: a folder with one folder per class, a file list, or an iterable of bytes or (bytes, label).

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
