"""The loader of pictures with objects: pictures as serving makes them, boxes and keypoints moved as they are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from onestream.preprocess.definition import Definition
from onestream.preprocess.geometry import Boxes, Mapping, Size
from onestream.preprocess.plan import Planner
from onestream.preprocess.projection import Located
from onestream.preprocess.training.augmentation import Augmentation
from onestream.preprocess.training.augmenting.draft import Use
from onestream.preprocess.training.base_loader import Seen, SeenPart, indices_of
from onestream.preprocess.training.collages import Objects
from onestream.preprocess.training.detection.files import DetectionFiles, Keypoints
from onestream.preprocess.training.map_style import PictureDataset
from onestream.preprocess.training.order import Slot
from onestream.preprocess.training.picture_loader import PictureLoader
from onestream.preprocess.training.pictures import BadFiles, PictureKind
from onestream.preprocess.training.targets import visible_boxes, visible_keypoints
from onestream.preprocess.training.workers import Draw, See
from onestream.preprocess.variation import Variation, canvas_of, variation_mapping

_NO_BOXES: Boxes = np.zeros((0, 4), np.float32)
_NO_CLASSES = np.zeros(0, np.int64)


class DetectionBatch(NamedTuple):
    """One batch.

    ``images`` is (batch, …) as the definition's output says. ``boxes`` are float32 (n, 4), x0 y0 x1 y1 in pixels of
    the network's input, and ``class_ids`` int64 (n,), one of each a picture. ``indices`` int64 (batch,) are positions
    in the dataset. ``mappings`` bring boxes of the network's input back, ``mappings[0].to_source(boxes)``, to pixels of
    the upright picture, whose (height, width) is ``mappings[0].source_hw``. Where the augmentation mixes samples there
    are none, since a sample is made of several pictures. ``keypoints`` are float32 (n, k, 3) of each picture: x, y in
    pixels of the network's input and the visibility, 0 of what is not labelled or not seen; k is 0 where none are read.

    A sample that only fills the batch up has the index -1, no boxes, and a mapping that changes nothing.
    """

    images: torch.Tensor
    boxes: list[torch.Tensor]
    class_ids: list[torch.Tensor]
    indices: torch.Tensor
    mappings: list[Located]
    keypoints: list[torch.Tensor]


class DetectionItem(NamedTuple):
    """One picture with its objects: what ``DetectionBatch`` holds of it, without the axis of the batch.

    ``position`` is its index in the dataset. ``mapping`` is None where the augmentation mixes samples.
    """

    image: torch.Tensor
    boxes: torch.Tensor
    class_ids: torch.Tensor
    position: int
    mapping: Located | None
    keypoints: torch.Tensor


class DetectionKind(PictureKind[DetectionBatch, DetectionFiles]):
    """Pictures with boxes, and with keypoints where the source has them.

    ``source``: what ``read_coco``, ``read_voc`` or ``read_yolo`` gives. Boxes that leave the network's input are cut at
    its borders; one of which less than the augmentation's ``min_visible`` of its area is left is dropped, and so it is
    without augmentation, where a definition crops. Without ``augmentation``, ``train`` draws boxes of 30 % of the
    picture or more: objects become up to 1.8 times as large. The truth itself, in source pixels and with every object,
    is ``samples.samples``. Keypoints stay with their object; one that leaves the network's input is no longer labelled,
    and in a mirrored picture those of ``samples.flip_pairs`` change places.

    A picture whose size is not the one that its file of boxes gives is bad: its boxes were drawn in another picture, as
    one that was not turned by its EXIF orientation. ``bad_files``: *fail* raises ``BadSample`` here for what the files
    of boxes already show, with a line for each picture.
    """

    samples: DetectionFiles
    default_augmentation = Augmentation(area=(0.3, 1.0))
    use: ClassVar[Use] = "boxes"

    def _open(self, source: DetectionFiles, bad_files: BadFiles) -> DetectionFiles:
        if bad_files == "fail":
            source.refuse_bad()
        self.samples = source
        return source

    def _draw(self, augmentation: Augmentation, seed: int) -> Draw:
        return partial(_vary, augmentation, seed, self.definition, self.samples)

    def _see(self, draw: Draw | None) -> See:
        return partial(_see, self.definition, self.samples, draw)

    def _objects(self) -> Objects:
        return self.samples.objects

    def _batch(self, samples: torch.Tensor, slots: Sequence[Slot], seen: Sequence[Seen]) -> DetectionBatch:
        canvas = canvas_of(self.definition)
        unmoved = Mapping(canvas, canvas, (1.0, 1.0), (0.0, 0.0))
        nothing = _NO_BOXES, _NO_CLASSES, np.zeros((0, len(self.samples.keypoints), 3), np.float32)
        targets: list[list[torch.Tensor]] = []
        mappings: list[Located] = []
        for slot, parts in zip(slots, seen, strict=True):
            parts = () if slot.is_padding else parts
            found = [nothing, *(self._visible(part) for part in parts)]
            targets.append([torch.from_numpy(np.concatenate(of_parts)) for of_parts in zip(*found, strict=True)])
            if self._mixing is None:
                mappings.append(parts[0].located if parts else unmoved)
        boxes, class_ids, keypoints = (list(field) for field in zip(*targets, strict=True))
        return DetectionBatch(samples, boxes, class_ids, indices_of(slots), mappings, keypoints)

    def _visible(self, part: SeenPart) -> tuple[Boxes, npt.NDArray[np.int64], Keypoints]:
        """The boxes of what is seen of a picture, in pixels of the whole canvas, their classes and keypoints."""
        sample = self.samples.samples[part.index]
        kept, which = visible_boxes(sample.boxes, part.located, min_visible=self.augmentation.min_visible)
        top, left = part.corner
        keypoints = np.zeros((len(kept), len(self.samples.keypoints), 3), np.float32)
        if sample.keypoints.size:
            keypoints = visible_keypoints(sample.keypoints[which], part.located, flip_pairs=self.samples.flip_pairs)
            keypoints[keypoints[..., 2] > 0] += np.array([left, top, 0], np.float32)
        return kept + np.array([left, top, left, top], np.float32), sample.class_ids[which], keypoints


class DetectionLoader(DetectionKind, PictureLoader[DetectionBatch, DetectionFiles]):
    """Batches of pictures with boxes; see ``PictureLoader`` for the options and ``DetectionKind`` for the rest."""


class DetectionDataset(DetectionKind, PictureDataset[DetectionBatch, DetectionFiles, DetectionItem]):
    """A map-style dataset of pictures with boxes; see ``PictureDataset`` for the options.

    Pictures have different numbers of boxes: give the ``DataLoader`` ``collate_fn=DetectionDataset.collate``.
    """

    def _item(self, batch: DetectionBatch, index: int) -> DetectionItem:
        mapping = batch.mappings[0] if batch.mappings else None
        return DetectionItem(batch.images[0], batch.boxes[0], batch.class_ids[0], index, mapping, batch.keypoints[0])

    @staticmethod
    def collate(items: Sequence[DetectionItem]) -> DetectionBatch:
        """The batch of items, as ``DetectionLoader`` gives it."""
        images, boxes, class_ids, indices, mappings, keypoints = zip(*items, strict=True)
        return DetectionBatch(
            torch.stack(images),
            list(boxes),
            list(class_ids),
            torch.tensor(indices, dtype=torch.int64),
            [mapping for mapping in mappings if mapping is not None],
            list(keypoints),
        )


def _vary(
    augmentation: Augmentation,
    seed: int,
    definition: Definition,
    files: DetectionFiles,
    epoch: int,
    index: int,
    size_hw: Size,
) -> Variation:
    objects = files.samples[index].boxes
    return augmentation.draw(size_hw, seed=seed, epoch=epoch, index=index, definition=definition, objects=objects)


def _see(
    definition: Definition, files: DetectionFiles, draw: Draw | None, epoch: int, index: int, size_hw: Size
) -> tuple[SeenPart, Variation | None]:
    files.objects(index, size_hw)
    if draw is None:
        return SeenPart(index, Planner(definition).mapping(size_hw)), None
    variation = draw(epoch, index, size_hw)
    return SeenPart(index, variation_mapping(definition, variation, size_hw)), variation
