"""Picture files with boxes: one value, whatever format they were written in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from onestream.preprocess.errors import BadDataset, BadSample
from onestream.preprocess.geometry import Boxes, Size, clipped
from onestream.preprocess.limits import MAX_SIDE
from onestream.preprocess.training.sources.annotations import ROUNDING, ListedFiles, refuse_missing

Keypoints = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class DetectionSample:
    """One picture with its objects.

    ``size_hw`` and ``boxes``, float32 (n, 4) x0 y0 x1 y1, are in pixels of the picture after its EXIF orientation;
    ``class_ids`` int64 (n,) are positions in ``DetectionFiles.classes``. ``image_id`` is the dataset's own number of
    the picture. ``problem`` says why the picture cannot be trained on; it is empty where it can. ``keypoints``, float32
    (n, k, 3), are x, y and COCO's visibility of those of ``DetectionFiles.keypoints``: 0 of one that is not labelled, 1
    of a hidden and 2 of a visible one.
    """

    path: Path
    size_hw: Size = (0, 0)
    boxes: Boxes = field(default_factory=lambda: np.zeros((0, 4), np.float32))
    class_ids: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    image_id: int | None = None
    problem: str = ""
    keypoints: Keypoints = field(default_factory=lambda: np.zeros((0, 0, 3), np.float32))

    @classmethod
    def of(
        cls,
        path: Path,
        size_hw: Size,
        objects: Iterable[FoundObject],
        *,
        image_id: int | None = None,
        keypoints: Sequence[str] = (),
    ) -> DetectionSample:
        """A picture with the objects that a file lists. Raises ``BadSample`` for the first that cannot be.

        A box must have an area and lie in the picture, a keypoint lie in it, too; by up to ``ROUNDING`` pixels they may
        reach beyond and are cut. ``keypoints`` are the names of those that each object has.
        """
        refuse_missing(path)
        found = list(objects)
        height, width = size_hw
        if not (1 <= height <= MAX_SIDE and 1 <= width <= MAX_SIDE):
            raise BadSample(f"the picture's size is given as {width}x{height}; expected 1 to {MAX_SIDE} pixels a side")
        with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and refused as that
            boxes = np.array([one.box for one in found], np.float64).astype(np.float32).reshape(-1, 4)
        corners = clipped(boxes, size_hw)
        has_area = (boxes[:, 2:] > boxes[:, :2]).all(axis=1)
        within = (np.abs(boxes - corners) <= ROUNDING).all(axis=1) & (corners[:, 2:] > corners[:, :2]).all(axis=1)
        for place in np.flatnonzero(~(has_area & within)):
            seen = f"{found[place].where}: the box x0 y0 x1 y1 = {' '.join(f'{side:g}' for side in found[place].box)}"
            if not np.isfinite(boxes[place]).all():
                raise BadSample(f"{seen} is not finite; expected four numbers in pixels")
            if not has_area[place]:
                raise BadSample(f"{seen} has no area; expected x1 above x0 and y1 above y0")
            raise BadSample(
                f"{seen} is outside the picture of {width}x{height}; it may reach {ROUNDING:g} pixel beyond at most"
            )
        class_ids = np.array([one.class_id for one in found], np.int64)
        return cls(path, size_hw, corners, class_ids, image_id, keypoints=_keypoints(found, keypoints, size_hw))

    def refuse_other_size(self, size_hw: Size) -> DetectionSample:
        """Return the sample, or raise ``BadSample`` where its picture, of ``size_hw`` upright, has another size."""
        if self.size_hw != size_hw:
            raise BadSample(
                f"the picture has {size_hw[1]}x{size_hw[0]} pixels after its EXIF orientation; "
                f"its boxes are given for {self.size_hw[1]}x{self.size_hw[0]}"
            )
        return self


@dataclass(frozen=True, slots=True)
class FoundObject:
    """One object as a file lists it: ``where`` in the file, a position in the classes, and x0 y0 x1 y1 in pixels.

    ``keypoints`` are x, y and the visibility of each, one after the other.
    """

    where: str
    class_id: int
    box: tuple[float, float, float, float]
    keypoints: Sequence[float] = ()


def _keypoints(found: Sequence[FoundObject], names: Sequence[str], size_hw: Size) -> Keypoints:
    """Those of the objects of a picture. Raises ``BadSample`` for the first that cannot be."""
    for one in found:
        if len(one.keypoints) != 3 * len(names):
            raise BadSample(
                f"{one.where}: got {len(one.keypoints)} numbers of keypoints; expected three for each of {len(names)}"
            )
    with np.errstate(over="ignore"):
        given = np.array([one.keypoints for one in found], np.float64).astype(np.float32)
    points = given.reshape(len(found), len(names), 3)
    points[points[..., 2] == 0] = 0
    inside = np.clip(points[..., :2], 0, np.array(size_hw[::-1], np.float32))
    good = (np.abs(points[..., :2] - inside) <= ROUNDING).all(axis=2) & np.isin(points[..., 2], (0, 1, 2))
    for place, number in np.argwhere(~good):
        x, y, visibility = points[place, number].tolist()
        raise BadSample(
            f"{found[place].where}: the keypoint {names[number]} is x y = {x:g} {y:g} with the visibility "
            f"{visibility:g}; expected a place in the picture of {size_hw[1]}x{size_hw[0]}, {ROUNDING:g} pixel beyond "
            "at most, and a visibility of 0, 1 or 2"
        )
    points[..., :2] = inside
    return points


class DetectionFiles(ListedFiles[DetectionSample]):
    """Pictures with boxes; see ``ListedFiles``, ``read_coco``, ``read_voc`` and ``read_yolo``.

    ``classes`` are the names of the classes 0, 1, …; ``category_ids`` the dataset's own ids of these, which have gaps
    in COCO. Pictures without objects are kept. ``keypoints`` are the names of the keypoints 0, 1, … of each object, if
    they are known; the two of each of ``flip_pairs`` change places in a mirror, and are given by name and kept by
    number.
    """

    def __init__(
        self,
        samples: Sequence[DetectionSample],
        classes: Sequence[str],
        category_ids: Sequence[int] | None = None,
        *,
        keypoints: Sequence[str] = (),
        flip_pairs: Iterable[tuple[str, str]] = (),
    ) -> None:
        super().__init__(samples, classes)
        self.category_ids = tuple(range(len(self.classes)) if category_ids is None else category_ids)
        if len(self.category_ids) != len(self.classes):
            raise BadDataset(f"{len(self.classes)} classes have {len(self.category_ids)} category ids")
        self.keypoints = tuple(keypoints)
        for sample in self.samples:
            shape, expected = sample.keypoints.shape, (len(sample.boxes), len(self.keypoints), 3)
            # Without keypoints, or without objects, every shape holds the same: nothing.
            if shape != expected and (sample.keypoints.size or all(expected)):
                raise BadDataset(f"{sample.path}: keypoints have the shape {shape}; expected {expected}")
        self.flip_pairs = _numbers(flip_pairs, self.keypoints)

    def objects(self, index: int, size_hw: Size) -> Boxes:
        """The boxes of a picture that has ``size_hw`` upright. Raises ``BadSample`` where they are for another size."""
        return self.samples[index].refuse_other_size(size_hw).boxes


def _numbers(flip_pairs: Iterable[tuple[str, str]], names: Sequence[str]) -> tuple[tuple[int, int], ...]:
    pairs = tuple(tuple(pair) for pair in flip_pairs)
    seen = [name for pair in pairs for name in pair]
    if any(len(pair) != 2 for pair in pairs) or len(set(seen)) != len(seen) or not set(seen) <= set(names):
        raise BadDataset(
            f"flip_pairs are {list(pairs)}; expected pairs of two names, each once, of the keypoints "
            f"{', '.join(names) or '(none)'}"
        )
    return tuple((names.index(one), names.index(other)) for one, other in pairs)
