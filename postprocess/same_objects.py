"""Which objects, or lines of text, of two answers are the same, and how far apart their boxes are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.wire.tensor_names import (
    BOXES,
    CLASS_IDS,
    DEGREES,
    IMAGE_SIZE,
    LABELS,
    LEFT_OUT,
    QUADS,
    SCORES,
    TEXTS,
)

SAME_OBJECT_IOU = 0.5
"""The least overlap of two boxes that mean the same object, as COCO and Pascal VOC count."""

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Found:
    """The objects in one picture: ``boxes`` (n, 4), x0 y0 x1 y1 in its pixels; scores, ids and names of n classes.

    Of lines of text the texts stand for both ids and names, and boxes are those around them. Of a cascade that names
    nothing, the directions do, or all regions have one id.
    """

    boxes: _Floats
    scores: _Floats
    class_ids: npt.NDArray[Any]
    labels: list[str]

    @classmethod
    def of(cls, answer: Mapping[str, npt.NDArray[Any]]) -> Found:
        """From the outputs of a pipeline that finds objects or regions, each with a batch of 1; of k classes the best.

        Where there are no scores, all are 1.
        """
        if QUADS in answer:
            boxes = np.concatenate([answer[QUADS][0].min(axis=1), answer[QUADS][0].max(axis=1)], axis=1)
        else:
            boxes = answer[BOXES][0]
        scores = _best(answer[SCORES][0]) if SCORES in answer else np.ones(len(boxes))
        return cls(boxes.astype(np.float64), scores.astype(np.float64), *_said(answer, len(boxes)))

    def __len__(self) -> int:
        return len(self.boxes)

    def text(self, index: int) -> str:
        """An object in words, such as *cat 0.95*."""
        return f"{self.labels[index]} {self.scores[index]:.2f}"


@dataclass(frozen=True, slots=True)
class Pair:
    """The same object in two answers, by its place in each. ``moved_px`` is the largest distance of a corner."""

    one: int
    other: int
    iou: float
    moved_px: float


@dataclass(frozen=True, slots=True)
class Compared:
    """Two answers side by side: objects that both hold, and the places of those that only one holds.

    ``became`` are the places in both of objects that overlap, but have another class.
    """

    same: list[Pair]
    only_one: list[int]
    only_other: list[int]
    became: dict[int, int]


def holds_objects(answer: Mapping[str, npt.NDArray[Any]]) -> bool:
    """Whether an answer is of objects or lines of text, not of a network that calls one of its outputs so."""
    names = answer.keys()
    if {BOXES, SCORES, CLASS_IDS, LABELS, IMAGE_SIZE} <= names:
        return True
    return {IMAGE_SIZE, LEFT_OUT} <= names and (BOXES in names or QUADS in names)


def compare(one: Found, other: Found) -> Compared:
    """Find the objects that both answers hold: of one class, with an IoU of at least 0.5, each paired once at most."""
    overlap = iou(one.boxes, other.boxes)
    same_class = one.class_ids[:, None] == other.class_ids[None]
    same = [
        Pair(i, j, float(overlap[i, j]), _farthest_corner_px(one.boxes[i], other.boxes[j]))
        for i, j in best_pairs(np.where(same_class, overlap, 0))
    ]
    lost = sorted(set(range(len(one))) - {pair.one for pair in same})
    added = sorted(set(range(len(other))) - {pair.other for pair in same})
    became = {lost[i]: added[j] for i, j in best_pairs(overlap[np.ix_(lost, added)])}
    return Compared(same, lost, added, became)


def iou(one: _Floats, other: _Floats) -> _Floats:
    """Intersection over union of boxes (n, 4) and (m, 4), x0 y0 x1 y1: (n, m), 0 where both are empty."""
    start = np.maximum(one[:, None, :2], other[None, :, :2])
    sides = np.clip(np.minimum(one[:, None, 2:], other[None, :, 2:]) - start, 0, None)
    common = sides.prod(axis=2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(axis=1) for boxes in (one, other)]
    union = areas[0][:, None] + areas[1][None] - common
    shared: _Floats = common / np.where(union > 0, union, 1)
    return shared


def _said(answer: Mapping[str, npt.NDArray[Any]], count: int) -> tuple[npt.NDArray[Any], list[str]]:
    """The ids and the names of what was found."""
    if TEXTS in answer or CLASS_IDS in answer:
        ids, names = (TEXTS, TEXTS) if TEXTS in answer else (CLASS_IDS, LABELS)
        return _best(answer[ids][0]), [label.decode(errors="replace") for label in _best(answer[names][0])]
    if DEGREES in answer:
        return answer[DEGREES][0], [f"{degrees}°" for degrees in answer[DEGREES][0]]
    return np.zeros(count, np.int64), ["region"] * count


def _best(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The first of several values of each object."""
    return values if values.ndim == 1 else values[:, :1].ravel()


def best_pairs(overlap: _Floats) -> list[tuple[int, int]]:
    """Rows and columns that belong together, each at most once: the largest overlap first."""
    left, found = overlap.copy(), []
    while left.size:
        i, j = (int(index) for index in np.unravel_index(left.argmax(), left.shape))
        if left[i, j] < SAME_OBJECT_IOU:
            break
        found.append((i, j))
        left[i], left[:, j] = -1, -1
    return found


def _farthest_corner_px(one: _Floats, other: _Floats) -> float:
    x, y = np.abs(one - other).reshape(2, 2).max(axis=0)
    return float(np.hypot(x, y))
