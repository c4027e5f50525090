"""Which lines of text of two answers are the same, and how far apart their texts are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.wire.comparing import best_pairs, quad_iou
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


def edit_distance(one: str, other: str) -> int:
    """How many characters must be put in, left out or changed to make ``other`` of ``one`` (Levenshtein, 1966)."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        diagonal, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (a != b))
    return row[-1]
