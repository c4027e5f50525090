"""Which lines of text of two answers are the same, and how far apart their texts are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.postprocess.same_objects import best_pairs
from onestream.wire.tensor_names import QUADS, SCORES, TEXTS

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """A line of text: ``quad`` (4, 2), x y in pixels of the picture, the text in it, and its score."""

    quad: _Floats
    text: str
    score: float


def lines_of(answer: Mapping[str, npt.NDArray[Any]]) -> list[Line]:
    """The lines of a text pipeline's outputs, each with a batch of 1, in reading order."""
    rows = zip(answer[QUADS][0], answer[TEXTS][0], answer[SCORES][0], strict=True)
    return [Line(np.asarray(quad, np.float64), text.decode(), float(score)) for quad, text, score in rows]


def same_lines(one: Sequence[Line], other: Sequence[Line]) -> list[tuple[int, int]]:
    """Places in both answers of lines whose quadrilaterals have an IoU of at least 0.5, each paired once at most.

    The largest overlap comes first; texts play no part.
    """
    return best_pairs(quad_iou([line.quad for line in one], [line.quad for line in other]))


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


def edit_distance(one: str, other: str) -> int:
    """How many characters must be put in, left out or changed to make ``other`` of ``one`` (Levenshtein, 1966)."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        diagonal, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (a != b))
    return row[-1]


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
