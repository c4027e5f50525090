"""The image loader: batches for PyTorch, made by the definition that serving runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from onestream.preprocess.definition import Definition
from onestream.preprocess.geometry import Size
from onestream.preprocess.projection import Located
from onestream.preprocess.training.augmentation import Augmentation
from onestream.preprocess.training.base_loader import Batch, indices_of, labels_of
from onestream.preprocess.training.order import Slot
from onestream.preprocess.training.picture_loader import BadFiles, PictureLoader
from onestream.preprocess.training.samples import Samples, Source, samples_of
from onestream.preprocess.training.workers import Draw
from onestream.preprocess.variation import Variation


class ImageLoader(PictureLoader[Batch, Source]):
    """Images with labels; see ``PictureLoader`` for the options.

    ``source``: a folder with one folder per class, a file list, or an iterable of bytes or (bytes, label).
    """

    samples: Samples

    def _open(self, source: Source, bad_files: BadFiles) -> Samples:  # noqa: ARG002 (found when they are read)
        self.samples = samples_of(source)
        return self.samples

    def _draw(self, augmentation: Augmentation, seed: int) -> Draw:
        return partial(_vary, augmentation, seed, self.definition)

    def _batch(self, samples: torch.Tensor, slots: Sequence[Slot], mappings: Sequence[Located | None]) -> Batch:  # noqa: ARG002 (labels do not move)
        return Batch(samples, labels_of(self.samples, slots), indices_of(slots))


def _vary(
    augmentation: Augmentation, seed: int, definition: Definition, epoch: int, index: int, size_hw: Size
) -> Variation:
    return augmentation.draw(size_hw, seed=seed, epoch=epoch, index=index, definition=definition)
