"""Medians, quartiles and ratios over rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of a quantity over rounds, and its quartiles."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarize at least one value; quartiles are interpolated linearly. Raises ``ValueError`` without any."""
        if not values:
            raise ValueError("a spread needs at least one value, got none")
        low, median, high = np.percentile(values, [25, 50, 75])
        return cls(float(median), float(low), float(high), len(values))

    def text(self, digits: int) -> str:
        """Median and quartiles, such as ``1.52 (1.49–1.55)``; without quartiles where there was one round."""
        middle = f"{self.median:.{digits}f}"
        return middle if self.count == 1 else f"{middle} ({self.low:.{digits}f}–{self.high:.{digits}f})"


def ratio(numerator: Mapping[int, float], denominator: Mapping[int, float]) -> Spread | None:
    """The ratio within each round, summarized; None where no round holds both.

    Rounds are the keys. A machine that is slow during one round slows both sides of that round's ratio.
    """
    rounds = sorted(numerator.keys() & denominator.keys())
    return ratio_of_all([numerator[r] for r in rounds], [denominator[r] for r in rounds]) if rounds else None


def ratio_of_all(numerators: Sequence[float], denominators: Sequence[float]) -> Spread:
    """As ``ratio``, where every round holds both, in order. Raises ``ValueError`` without any, or for other lengths."""
    return Spread.of([one / other for one, other in zip(numerators, denominators, strict=True)])
