"""Picture files with boxes: one value, whatever format they were written in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from onestream.preprocess.errors import BadDataset, BadSample
from onestream.preprocess.geometry import Boxes, Size, clipped
from onestream.preprocess.headers.reader import Encoded
from onestream.preprocess.limits import MAX_SIDE
from onestream.preprocess.training.annotations import ROUNDING, refuse_bad, refuse_missing


@dataclass(frozen=True, slots=True)
class DetectionSample:
    """One picture with its objects.

    ``size_hw`` and ``boxes``, float32 (n, 4) x0 y0 x1 y1, are in pixels of the picture after its EXIF orientation;
    ``class_ids`` int64 (n,) are positions in ``DetectionFiles.classes``. ``image_id`` is the dataset's own number of
    the picture. ``problem`` says why the picture cannot be trained on; it is empty where it can.
    """

    path: Path
    size_hw: Size = (0, 0)
    boxes: Boxes = field(default_factory=lambda: np.zeros((0, 4), np.float32))
    class_ids: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    image_id: int | None = None
    problem: str = ""

    @classmethod
    def of(
        cls, path: Path, size_hw: Size, objects: Iterable[FoundObject], *, image_id: int | None = None
    ) -> DetectionSample:
        """A picture with the objects that a file lists. Raises ``BadSample`` for the first that cannot be.

        A box must have an area and lie in the picture; by up to ``ROUNDING`` pixels it may reach beyond and is cut.
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
        return cls(path, size_hw, corners, np.array([one.class_id for one in found], np.int64), image_id)


@dataclass(frozen=True, slots=True)
class FoundObject:
    """One object as a file lists it: ``where`` in the file, a position in the classes, and x0 y0 x1 y1 in pixels."""

    where: str
    class_id: int
    box: tuple[float, float, float, float]


class DetectionFiles:
    """Pictures with boxes, in the order of their paths; see ``read_coco``, ``read_voc`` and ``read_yolo``.

    ``classes`` are the names of the classes 0, 1, …; ``category_ids`` the dataset's own ids of these, which have gaps
    in COCO. Pictures without objects are kept. Those that cannot be trained on keep a ``problem``, and a loader fails
    or skips them. Raises ``BadDataset`` where there is no picture at all.
    """

    def __init__(
        self, samples: Sequence[DetectionSample], classes: Sequence[str], category_ids: Sequence[int] | None = None
    ) -> None:
        if not samples:
            raise BadDataset("got no picture")
        self.samples = tuple(sorted(samples, key=lambda sample: sample.path))
        self.classes = tuple(classes)
        self.category_ids = tuple(range(len(self.classes)) if category_ids is None else category_ids)
        if len(self.category_ids) != len(self.classes):
            raise BadDataset(f"{len(self.classes)} classes have {len(self.category_ids)} category ids")

    def __len__(self) -> int:
        """Number of pictures."""
        return len(self.samples)

    def read(self, index: int) -> Encoded:
        """See ``Pictures.read``."""
        sample = self.samples[index]
        if sample.problem:
            raise BadSample(sample.problem)
        return sample.path.read_bytes()

    def objects(self, index: int, size_hw: Size) -> Boxes:
        """The boxes of a picture that has ``size_hw`` upright. Raises ``BadSample`` where they are for another size."""
        given = self.samples[index].size_hw
        if given != size_hw:
            raise BadSample(
                f"the picture has {size_hw[1]}x{size_hw[0]} pixels after its EXIF orientation; "
                f"its boxes are given for {given[1]}x{given[0]}"
            )
        return self.samples[index].boxes

    def name(self, index: int) -> str:
        """The picture's path."""
        return str(self.samples[index].path)

    def refuse_bad(self) -> None:
        """Raise ``BadSample`` where a picture cannot be trained on, with a line for each of the first ten."""
        problems = [f"{sample.path}: {sample.problem}" for sample in self.samples if sample.problem]
        refuse_bad(problems, count=len(self), things="pictures")
