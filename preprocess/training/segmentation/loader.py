"""The loader of pictures with masks: pictures as serving makes them, and masks moved as they are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np
import torch

from onestream.preprocess.definition import Definition
from onestream.preprocess.geometry import Size
from onestream.preprocess.plan import Planner
from onestream.preprocess.training.augmentation import Augmentation
from onestream.preprocess.training.augmenting.draft import Use
from onestream.preprocess.training.base_loader import Seen, SeenPart, indices_of
from onestream.preprocess.training.map_style import PictureDataset
from onestream.preprocess.training.order import Slot
from onestream.preprocess.training.picture_loader import PictureLoader
from onestream.preprocess.training.pictures import BadFiles, PictureKind
from onestream.preprocess.training.segmentation.files import IGNORE, SegmentationFiles
from onestream.preprocess.training.targets import moved_mask
from onestream.preprocess.training.workers import Draw, See
from onestream.preprocess.variation import Variation, canvas_of, variation_transform


class SegmentationBatch(NamedTuple):
    """One batch.

    ``images`` is (batch, …) as the definition's output says. ``masks`` are uint8 (batch, height, width), the class of
    each pixel of the network's input: an eighth of the bytes of the int64 that ``torch.nn.CrossEntropyLoss`` takes, so
    give it ``masks.long()`` on the device. ``indices`` int64 (batch,) are positions in the dataset.

    The class is ``IGNORE`` where none is known: where the mask says so, beside the picture, and all over a sample that
    only fills the batch up, which has the index -1.
    """

    images: torch.Tensor
    masks: torch.Tensor
    indices: torch.Tensor


class SegmentationKind(PictureKind[SegmentationBatch, SegmentationFiles]):
    """Pictures with masks.

    ``source``: what ``read_masks`` gives. A pixel of a batch's mask has the class of the picture's pixel in which its
    centre lies. Without ``augmentation``, ``train`` draws boxes of 30 % of the picture or more. Operations that make a
    canvas of several samples are refused. The truth itself, in pixels of the picture, is ``samples.mask``.

    A picture is bad, too, where its mask cannot be read, has another size or a level that is no class. ``bad_files``:
    *fail* raises ``BadSample`` here for pictures without a mask, with a line for each.
    """

    samples: SegmentationFiles
    default_augmentation = Augmentation(area=(0.3, 1.0))
    use: ClassVar[Use] = "masks"

    def _open(self, source: SegmentationFiles, bad_files: BadFiles) -> SegmentationFiles:
        if bad_files == "fail":
            source.refuse_bad()
        self.samples = source
        return source

    def _see(self, draw: Draw | None) -> See:
        return partial(_see, self.definition, self.samples, draw)

    def _batch(self, samples: torch.Tensor, slots: Sequence[Slot], seen: Sequence[Seen]) -> SegmentationBatch:
        masks = np.full((len(slots), *canvas_of(self.definition)), IGNORE, np.uint8)
        for mask, slot, parts in zip(masks, slots, seen, strict=True):
            for part in () if slot.is_padding else parts:
                assert part.mask is not None
                mask[:] = part.mask
        return SegmentationBatch(samples, torch.from_numpy(masks), indices_of(slots))


class SegmentationLoader(SegmentationKind, PictureLoader[SegmentationBatch, SegmentationFiles]):
    """Batches of pictures with masks; see ``PictureLoader`` for the options and ``SegmentationKind`` for the rest."""


class SegmentationDataset(
    SegmentationKind, PictureDataset[SegmentationBatch, SegmentationFiles, tuple[torch.Tensor, torch.Tensor]]
):
    """A map-style dataset of (image, mask); see ``PictureDataset`` for the options."""

    def _item(self, batch: SegmentationBatch, index: int) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: ARG002
        return batch.images[0], batch.masks[0]


def _see(
    definition: Definition, files: SegmentationFiles, draw: Draw | None, epoch: int, index: int, size_hw: Size
) -> tuple[SeenPart, Variation | None]:
    mask = files.mask(index, size_hw)
    if draw is None:
        return SeenPart(
            index, Planner(definition).mapping(size_hw), mask=moved_mask(mask, definition, border=IGNORE)
        ), None
    variation = draw(epoch, index, size_hw)
    located = variation_transform(definition, variation, size_hw)
    return SeenPart(index, located, mask=moved_mask(mask, definition, variation, border=IGNORE)), variation
