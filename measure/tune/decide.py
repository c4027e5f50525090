"""When one setting counts as better than another: a rule over paired measurements, so that noise changes nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from onestream.measure.spread import Spread

ROUNDS = 6
"""Rounds of a full comparison."""

MIN_GAIN = 0.01
"""A smaller gain is not worth a changed file."""

FIRST_LOOK = 2.0
"""Standard errors that a gain must exceed in the search."""

SECOND_LOOK = 1.0
"""Standard errors that it must exceed again, where what the search found is measured anew."""

_FEWEST_ROUNDS = 3
# Of a normal distribution: the median's standard error is 1.2533 σ/√n, and the quartiles are 1.349 σ apart.
_MEDIAN_ERROR_PER_QUARTILE_DISTANCE = 1.2533 / 1.349


class Measurement(BaseModel):
    """One measurement of one setting. Latencies are a client's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    images_per_s: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether the challenger is better, its ratio to the other in images/s, and the reason in words."""

    better: bool
    ratio: Spread
    reason: str


def judge(
    challenger: Sequence[Measurement],
    other: Sequence[Measurement],
    *,
    p99_ms: float | None = None,
    standard_errors: float = FIRST_LOOK,
) -> Judgement:
    """Compare two settings that were measured in the same rounds; sample ``i`` of both is from round ``i``.

    The challenger is better when the median of its ratios to the other exceeds 1 by ``MIN_GAIN`` and by a number of
    standard errors of that median, which are estimated from the distance between the ratios' quartiles. With normal
    noise of 5 % and 6 rounds, an equal challenger passes the first look in 8 % of the cases, and the second as well in
    1.6 %; one that is 10 % better passes both in 95 %. In fewer than 3 rounds nothing is better.

    The ratios are of images/s. With a limit ``p99_ms`` on the median p99, a setting that keeps it beats one that does
    not, and between two that do not the ratios are of p99, turned round so that more is better.
    """
    speed = ratios(challenger, other)
    if p99_ms is not None:
        keeps, other_keeps = keeps_limit(challenger, p99_ms), keeps_limit(other, p99_ms)
        if keeps != other_keeps:
            tail = _median_p99(challenger)
            return Judgement(keeps, speed, f"p99 {tail:.0f} ms, {'within' if keeps else 'above'} {p99_ms:g}")
        if not keeps:
            latency = Spread.of([old.p99_ms / new.p99_ms for new, old in zip(challenger, other, strict=True)])
            reason = f"p99 above {p99_ms:g} ms; {_told(latency, 'p99', standard_errors)}"
            return Judgement(_clearly_above_one(latency, standard_errors), speed, reason)
    return Judgement(_clearly_above_one(speed, standard_errors), speed, _told(speed, "images/s", standard_errors))


def ratios(samples: Sequence[Measurement], base: Sequence[Measurement]) -> Spread:
    """Images/s of one setting as multiples of another's, round by round."""
    return Spread.of([new.images_per_s / old.images_per_s for new, old in zip(samples, base, strict=True)])


def keeps_limit(samples: Sequence[Measurement], p99_ms: float) -> bool:
    """Whether the median p99 is within the limit."""
    return _median_p99(samples) <= p99_ms


def hopeless(challenger: Sequence[Measurement], other: Sequence[Measurement], *, p99_ms: float | None = None) -> bool:
    """Whether the comparison can end early: the challenger lost all of three rounds, or the median of four."""
    if len(challenger) < _FEWEST_ROUNDS:
        return False
    pairs = list(zip(challenger, other, strict=True))
    gains = [new.images_per_s / old.images_per_s for new, old in pairs]
    if p99_ms is not None:
        if not keeps_limit(other, p99_ms):
            gains = [old.p99_ms / new.p99_ms for new, old in pairs]
            if keeps_limit(challenger, p99_ms):
                return False
        elif all(new.p99_ms > p99_ms for new in challenger):
            return True
    if all(gain < 1 for gain in gains):
        return True
    return len(gains) > _FEWEST_ROUNDS and Spread.of(gains).median < 1


def needed_gain(ratio: Spread, standard_errors: float = FIRST_LOOK) -> float:
    """What the median has to exceed 1 by."""
    error = _MEDIAN_ERROR_PER_QUARTILE_DISTANCE * (ratio.high - ratio.low) / math.sqrt(ratio.count)
    return max(MIN_GAIN, standard_errors * error)


def _clearly_above_one(ratio: Spread, standard_errors: float) -> bool:
    return ratio.count >= _FEWEST_ROUNDS and ratio.median - 1 > needed_gain(ratio, standard_errors)


def _told(ratio: Spread, quantity: str, standard_errors: float) -> str:
    change, needed = f"{quantity} {ratio.median - 1:+.1%}", f"{needed_gain(ratio, standard_errors):.1%}"
    if _clearly_above_one(ratio, standard_errors):
        return f"{change}, more than the {needed} needed"
    return f"{change}; {needed} needed" if ratio.median > 1 else change


def _median_p99(samples: Sequence[Measurement]) -> float:
    return Spread.of([sample.p99_ms for sample in samples]).median
