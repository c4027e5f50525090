"""Two answers of one kind side by side: what is the same, lost, added, moved or something else.

The row of the kind says what is compared. Found regions are the same where they overlap by one half and more, and the
same is said of them; masks count in the place of boxes, and the likeness of points. What is said of a whole picture is
one thing in one place. Of kinds that say nothing, values are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.wire.kinds import KINDS, Kind
from onestream.wire.run_lengths import Counts, area, common, decode
from onestream.wire.tensor_names import (
    BOXES,
    CLASS_IDS,
    DEGREES,
    KEYPOINTS,
    LABELS,
    POINT_SCORES,
    QUADS,
    RUN_LENGTHS,
    SCORES,
    TEXTS,
)

SAME_OBJECT_IOU = 0.5
"""The least overlap of two boxes that mean the same object, as COCO and Pascal VOC count."""
_EVERYWHERE = [[0.0, 0.0, 1.0, 1.0]]
"""The box of what is said of a whole picture: the same in every answer."""
SEEN = 0.25
"""Points with a lower score are not drawn and not compared, as ultralytics' ``Annotator.kpts`` leaves them out."""
POINT_SIGMAS = np.array(
    [0.26, 0.25, 0.25, 0.35, 0.35, 0.79, 0.79, 0.72, 0.72, 0.62, 0.62, 1.07, 1.07, 0.87, 0.87, 0.89, 0.89]
) / 10  # fmt: skip
"""How far apart people put each of COCO's 17 points, in parts of an object's size: https://cocodataset.org/#keypoints-eval."""
_TINY = 1e-9
_OBJECT_IN_BOX = 0.53
"""The part of a box that an object fills, where only the box is known, as in ultralytics' ``PoseValidator``."""

_Floats = npt.NDArray[np.float64]
Answer = Mapping[str, npt.NDArray[Any]]
"""The outputs of a pipeline, each with a batch of 1; texts are UTF-8 or ``str``."""


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What one answer says: ``boxes`` (n, 4), x0 y0 x1 y1 in pixels; scores, ids and names of n things.

    Of k classes it is the best. Of texts and directions they stand for both ids and names; where nothing is said of
    regions, all have one id. Where the places are ``quads``, n of (4, 2), boxes are those around them. ``points``
    (n, k, 3) are x, y and score, of objects that have some; ``runs`` the run lengths of masks, likewise.
    ``said`` is the tensor that the ids are from, where there is one.
    """

    boxes: _Floats
    scores: _Floats
    class_ids: npt.NDArray[Any]
    labels: list[str]
    quads: Sequence[_Floats] | None = None
    said: str | None = None
    points: _Floats | None = None
    runs: Sequence[Counts] | None = None

    @classmethod
    def of(cls, kind: str | None, answer: Answer) -> Found:
        """From an answer of a kind; where there are no scores, all are 1. Empty for kinds that say nothing."""
        row = _row(kind)
        said = next((name for name in row.said if name in answer), None)
        quads = None
        if row.is_found and QUADS in answer:
            quads = [np.asarray(quad, np.float64) for quad in answer[QUADS][0]]
            corners = np.asarray(answer[QUADS][0], np.float64).reshape(-1, 4, 2)
            boxes = np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)
        elif row.is_found:
            boxes = np.asarray(answer[BOXES][0], np.float64)
        elif said is not None:
            boxes = np.array(_EVERYWHERE)
        else:
            return cls._of_values(answer) if not row.outputs else cls._nothing()
        count = len(boxes)
        scores = _best(answer[SCORES][0], count) if SCORES in answer else np.ones(count)
        ids = np.zeros(count, np.int64) if said is None else _best(answer[said][0], count)
        runs = [decode(_text(one)) for one in answer[RUN_LENGTHS][0]] if RUN_LENGTHS in answer else None
        points = None
        if row.is_found and KEYPOINTS in answer:
            parts = (
                np.asarray(answer[KEYPOINTS][0], np.float64),
                np.asarray(answer[POINT_SCORES][0], np.float64)[..., None],
            )
            points = np.concatenate(parts, axis=2)
        return cls(boxes, scores.astype(np.float64), ids, _names(answer, said, ids), quads, said, points, runs)

    @classmethod
    def _of_values(cls, answer: Answer) -> Found:
        """The best class of a network whose only output is a row of scores; else nothing."""
        first = next(iter(answer.values()), np.empty(0))
        if len(answer) != 1 or first.ndim != 2 or first.shape[1] < 2 or first.dtype.kind != "f":
            return cls._nothing()
        best = first[0].argmax(keepdims=True)
        return cls(np.array(_EVERYWHERE), first[0, best].astype(np.float64), best, [str(best[0])])

    @classmethod
    def _nothing(cls) -> Found:
        return cls(np.empty((0, 4)), np.empty(0), np.empty(0, np.int64), [])

    def __len__(self) -> int:
        return len(self.boxes)

    def overlap(self, other: Found) -> _Floats:
        """How much the things of both are in the same places, by the kind of their places: (n, m), 0 to 1.

        Objects with different numbers of points have nothing in common.
        """
        if self.quads is not None:
            return quad_iou(self.quads, other.quads or [])
        overlap = iou(self.boxes, other.boxes)
        if self.runs is not None and other.runs is not None:
            for i, j in np.argwhere(overlap > 0):
                shared = common(self.runs[i], other.runs[j])
                overlap[i, j] = shared / max(1, area(self.runs[i]) + area(other.runs[j]) - shared)
        if self.points is None or other.points is None or not overlap.size:
            return overlap
        if self.points.shape[1] != other.points.shape[1]:
            return np.zeros_like(overlap)
        areas = (self.boxes[:, 2:] - self.boxes[:, :2]).prod(axis=1) * _OBJECT_IN_BOX
        shown = (self.points[..., 2] >= SEEN).any(axis=1)[:, None]
        return np.where(shown, similarity(self.points, other.points, areas), overlap)

    def moved_px(self, i: int, other: Found, j: int) -> float:
        """How far the corner, or the point that is shown, of one thing is at most from that of another's."""
        if self.quads is not None:
            return _farthest_corner_px(self.quads[i], (other.quads or [])[j])
        if self.points is not None and other.points is not None:
            shown = self.points[i, :, 2] >= SEEN
            if shown.any():
                return _farthest_corner_px(self.points[i, shown, :2], other.points[j, shown, :2])
        return _farthest_corner_px(self.boxes[[i]], other.boxes[[j]])

    def text(self, index: int) -> str:
        """One thing in words, such as *cat 0.95*."""
        return f"{self.labels[index]} {self.scores[index]:.2f}"


@dataclass(frozen=True, slots=True)
class Pair:
    """The same thing in two answers, by its place in each. ``moved_px`` is the largest distance of a corner."""

    one: int
    other: int
    iou: float
    moved_px: float


@dataclass(frozen=True, slots=True, eq=False)
class Compared:
    """Two answers side by side: what both say, and the places of what only one says.

    ``became`` are those among both, ``lost`` and ``added``, that overlap and of which something else is said.
    ``row`` is that of their kind; ``difference`` is the largest, of the scores of the same things or of
    those of a whole picture, else of all values, and infinite between unequal shapes.
    """

    row: Kind
    one: Found
    other: Found
    same: list[Pair]
    lost: list[int]
    added: list[int]
    became: list[Pair]
    difference: float

    @property
    def says(self) -> bool:
        """Whether answers of this kind say something that can be the same."""
        return self.row.is_found or len(self.one) > 0

    @property
    def of(self) -> int:
        """How many different things both say together; of a whole picture it is one."""
        return len(self.same) + (len(self.lost) + len(self.added) if self.row.is_found else len(self.lost))

    @property
    def changes(self) -> list[float]:
        """How far the scores of the same things are apart."""
        return [abs(float(self.one.scores[pair.one] - self.other.scores[pair.other])) for pair in self.same]


def compare(kind: str | None, expected: Answer, got: Answer) -> Compared:
    """Compare two answers of a kind; None stands for tensors of which nothing is known."""
    row = _row(kind)
    compared = compare_found(row, Found.of(kind, expected), Found.of(kind, got))
    if row.is_found or row.said:
        return compared
    return replace(compared, difference=_values_apart(expected, got))


def compare_found(row: Kind, one: Found, other: Found) -> Compared:
    """Compare what two answers of a kind say."""
    overlap = one.overlap(other)
    alike = one.class_ids[:, None] == other.class_ids[None]
    same = list(_pairs(one, other, np.where(alike, overlap, 0)))
    lost = sorted(set(range(len(one))) - {pair.one for pair in same})
    added = sorted(set(range(len(other))) - {pair.other for pair in same})
    overlap[[pair.one for pair in same]] = 0
    overlap[:, [pair.other for pair in same]] = 0
    became = list(_pairs(one, other, overlap))
    pairs = same if row.is_found else [*same, *became]
    apart = [abs(float(one.scores[pair.one] - other.scores[pair.other])) for pair in pairs]
    return Compared(row, one, other, same, lost, added, became, max(apart, default=0.0))


def _row(kind: str | None) -> Kind:
    return KINDS.get(kind or "", KINDS["raw"])


def _pairs(one: Found, other: Found, overlap: _Floats) -> Iterator[Pair]:
    for i, j in best_pairs(overlap):
        yield Pair(i, j, float(overlap[i, j]), one.moved_px(i, other, j))


def _values_apart(expected: Answer, got: Answer) -> float:
    if any(name not in got or expected[name].shape != got[name].shape for name in expected):
        return float("inf")
    numbers = [name for name in expected if expected[name].dtype.kind in "fiu" and expected[name].size]
    apart = [np.abs(expected[name].astype(float) - got[name].astype(float)).max() for name in numbers]
    return float(max(apart, default=0.0))


def _best(values: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """The first of several values of each thing."""
    return values[:count] if values.ndim == 1 else values[:, :1].ravel()


def _names(answer: Answer, said: str | None, ids: npt.NDArray[Any]) -> list[str]:
    """The names of what is said."""
    if said == CLASS_IDS and LABELS in answer:
        return [_text(label) for label in _best(answer[LABELS][0], len(ids))]
    if said in (CLASS_IDS, TEXTS):
        return [_text(one) for one in ids]
    return [f"{degrees}°" for degrees in ids] if said == DEGREES else ["region"] * len(ids)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def best_pairs(overlap: _Floats) -> list[tuple[int, int]]:
    """Rows and columns of ``iou`` or ``quad_iou`` that belong together, each once at most: the largest first."""
    left, found = overlap.copy(), []
    while left.size:
        i, j = (int(index) for index in np.unravel_index(left.argmax(), left.shape))
        if left[i, j] < SAME_OBJECT_IOU:
            break
        found.append((i, j))
        left[i], left[:, j] = -1, -1
    return found


def iou(one: _Floats, other: _Floats) -> _Floats:
    """Intersection over union of boxes (n, 4) and (m, 4), x0 y0 x1 y1: (n, m), 0 where both are empty."""
    start = np.maximum(one[:, None, :2], other[None, :, :2])
    sides = np.clip(np.minimum(one[:, None, 2:], other[None, :, 2:]) - start, 0, None)
    common = sides.prod(axis=2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(axis=1) for boxes in (one, other)]
    union = areas[0][:, None] + areas[1][None] - common
    shared: _Floats = common / np.where(union > 0, union, 1)
    return shared


def similarity(one: _Floats, other: _Floats, areas: _Floats) -> _Floats:
    """COCO's object keypoint similarity of n and m objects: (n, m), 0 to 1; 0 of one that shows no point.

    Points are (n, k, 3) and (m, k, 3), x, y and score, of which those count that ``one`` shows; ``areas`` (n,) are of
    its objects in square pixels. Points that are not COCO's 17 have a sigma of 1 / k each, as ultralytics has it.
    """
    count = one.shape[1]
    sigmas = POINT_SIGMAS if count == len(POINT_SIGMAS) else np.full(count, 1 / count)
    apart = ((one[:, None, :, :2] - other[None, :, :, :2]) ** 2).sum(axis=3)
    alike = np.exp(-apart / (2 * np.maximum(areas, _TINY)[:, None, None] * (2 * sigmas) ** 2))
    shown = (one[..., 2] >= SEEN)[:, None]
    mean: _Floats = (alike * shown).sum(axis=2) / np.maximum(shown.sum(axis=2), 1)
    return mean


def quad_iou(one: Sequence[_Floats], other: Sequence[_Floats]) -> _Floats:
    """Intersection over union of n and m convex quadrilaterals (4, 2), whose corners go round: (n, m)."""
    shared = np.zeros((len(one), len(other)))
    if not len(one) or not len(other):
        return shared
    these, those = ([_one_way_round(quad) for quad in quads] for quads in (one, other))
    (low, high), (others_low, others_high) = (
        (np.min(quads, axis=1), np.max(quads, axis=1)) for quads in (np.stack(these), np.stack(those))
    )
    # Of the many pairs of a page, few meet.
    meet = (np.maximum(low[:, None], others_low) < np.minimum(high[:, None], others_high)).all(axis=2)
    for i, j in np.argwhere(meet):
        common = _area(_clipped(these[i], those[j]))
        union = _area(these[i]) + _area(those[j]) - common
        shared[i, j] = common / union if union > 0 else 0
    return shared


def _area(polygon: _Floats) -> float:
    """The area of (n, 2) corners: the shoelace formula; negative where they go the other way round."""
    x, y = polygon.T
    return float(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2


def _one_way_round(quad: _Floats) -> _Floats:
    return quad if _area(quad) >= 0 else quad[::-1]


def _clipped(polygon: _Floats, window: _Floats) -> _Floats:
    """The part of a polygon inside a convex one that goes the same way round (Sutherland and Hodgman, 1974)."""
    for start, end in zip(window, np.roll(window, -1, axis=0), strict=True):
        edge = end - start
        offset = polygon - start
        inside = edge[0] * offset[:, 1] - edge[1] * offset[:, 0]
        corners: list[_Floats] = []
        for k in range(len(polygon)):
            previous = inside[k - 1]
            if (inside[k] >= 0) != (previous >= 0):
                corners.append(polygon[k - 1] + (polygon[k] - polygon[k - 1]) * (previous / (previous - inside[k])))
            if inside[k] >= 0:
                corners.append(polygon[k])
        polygon = np.array(corners).reshape(-1, 2)
    return polygon


def _farthest_corner_px(one: _Floats, other: _Floats) -> float:
    """Of corners (n, 2), or of one box (1, 4)."""
    x, y = np.abs(one - other).reshape(-1, 2).T
    return float(np.hypot(x, y).max()) if one.shape[-1] == 2 else float(np.hypot(x.max(), y.max()))
