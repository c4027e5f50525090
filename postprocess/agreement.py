"""How far the answers of one network agree with those of another, such as one in int8 with the same in float32."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from onestream.wire.comparing import Compared

CONFIDENT = 0.5
"""A prediction with a score above this is confident."""
_DIGITS = 6
_Z = 1.96
"""Standard deviations within which 95 % of a normal distribution lie."""
_Answer = dict[str, npt.NDArray[Any]]


class Agreement(BaseModel):
    """How far int8 answers what float32 answers, or what labels say, on the pictures that were held out.

    Attributes:
        measure: what ``share`` is a share of, in words.
        share: from 0 to 1, which ``min_agreement`` bounds.
        of: how many things that is a share of; 0 where it is a mean.
        all_share: the same of all predictions, confident or not; None where there is no such difference.
        all_of: how many these are.
        average_precision: of a detector: COCO's, with float32's boxes as the truth.
        accuracy: of float32 and of int8, where there are labels.
        mean_change: of scores, or of what the kind answers, between float32 and int8.
        largest_change: the largest one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    measure: str
    share: float
    of: int = 0
    all_share: float | None = None
    all_of: int = 0
    average_precision: float | None = None
    accuracy: dict[Literal["float32", "int8"], float] | None = None
    mean_change: float
    largest_change: float

    @property
    def rank(self) -> tuple[float, float]:
        """More is better: what is bound first, then the finest other measure that there is."""
        finer = (self.average_precision, self.all_share, self.share)
        return self.share, next(value for value in finer if value is not None)

    @property
    def at_least(self) -> float | None:
        """The least share that so few things leave likely: the lower end of Wilson's 95 % interval.

        None for a mean, and for accuracies.
        """
        if not self.of or self.accuracy is not None:
            return None
        share, squared = self.share, _Z**2 / self.of
        spread = _Z * math.sqrt(share * (1 - share) / self.of + squared / (4 * self.of))
        return (share + squared / 2 - spread) / (1 + squared)

    def __str__(self) -> str:
        return f"{self.measure}: {self.share:.3f}" + (f" of {self.of}" if self.of else "")


def of_predictions(answers: Sequence[Compared]) -> Agreement:
    """Of what answers say: a share of the confident predictions, or of all where none is confident.

    What is found counts on both sides; of what is said of whole pictures only the first.
    """
    row = answers[0].row
    same: list[bool] = []
    scores: list[float] = []
    for one in answers:
        sides = [(one.one, {pair.one for pair in one.same})]
        sides += [(one.other, {pair.other for pair in one.same})] if row.is_found else []
        for side, both in sides:
            same += [index in both for index in range(len(side))]
            scores += side.scores.tolist()
    confident = [is_same for is_same, score in zip(same, scores, strict=True) if score > CONFIDENT]
    chosen = confident or same
    what = f"{row.nouns[1]} of either" if row.is_found else row.nouns[1]
    among = f"with a score above {CONFIDENT} " if confident else ""
    changes = np.array([change for one in answers for change in one.changes])
    return Agreement(
        measure=f"{what} {among}that are the same",
        share=_mean(chosen),
        of=len(chosen),
        all_share=_mean(same),
        all_of=len(same),
        mean_change=_mean(changes),
        largest_change=_rounded(changes.max(initial=0)),
    )


def of_vectors(pairs: Sequence[tuple[_Answer, _Answer]]) -> Agreement:
    """Of all values: their direction."""
    vectors = [(_flat(one), _flat(other)) for one, other in pairs]
    cosines = [_cosine(one, other) for one, other in vectors]
    changes = np.concatenate([np.abs(one - other) for one, other in vectors])
    return of_values("mean cosine of what both give", float(np.mean(cosines)), changes)


def of_values(what: str, share: float, changes: npt.NDArray[np.floating[Any]]) -> Agreement:
    """Of a share that a kind computes itself, and of the changes of its values."""
    return Agreement(
        measure=what, share=_rounded(share), mean_change=_mean(changes), largest_change=_rounded(changes.max(initial=0))
    )


def _mean(values: Sequence[float] | npt.NDArray[Any]) -> float:
    return _rounded(np.mean(values)) if len(values) else 0.0


def _rounded(value: Any) -> float:
    return round(float(value), _DIGITS)


def _flat(answer: _Answer) -> npt.NDArray[np.float64]:
    return np.concatenate([np.asarray(answer[name], np.float64).ravel() for name in sorted(answer)])


def _cosine(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> float:
    lengths = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / lengths if lengths else float(np.array_equal(one, other))
