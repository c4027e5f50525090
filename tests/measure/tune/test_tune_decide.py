"""The rule: what noise cannot explain is better, everything else is not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from onestream.measure.spread import Spread
from onestream.measure.tune import decide


def samples(speeds: Sequence[float], p99_ms: float = 50.0) -> list[decide.Measurement]:
    return [decide.Measurement(images_per_s=speed, p50_ms=10.0, p99_ms=p99_ms) for speed in speeds]


SLOW_ROUNDS = [100.0, 50.0, 100.0, 60.0, 100.0, 100.0]


@pytest.mark.parametrize(
    ("challenger", "other", "better"),
    [
        ([speed * 1.05 for speed in SLOW_ROUNDS], SLOW_ROUNDS, True),
        (SLOW_ROUNDS, SLOW_ROUNDS, False),
        ([speed * (1 + decide.MIN_GAIN / 2) for speed in SLOW_ROUNDS], SLOW_ROUNDS, False),
        ([85, 95, 102, 106, 115, 125], [100.0] * 6, False),
        ([102, 103, 104, 104, 105, 106], [100.0] * 6, True),
        ([200.0], [100.0], False),
        ([200.0] * 2, [100.0] * 2, False),
    ],
    ids=["in every round", "equal", "below the smallest worth having", "noise", "above it", "one round", "two rounds"],
)
def test_only_what_noise_cannot_explain_is_better(challenger: list[float], other: list[float], better: bool) -> None:
    """However slow some rounds were."""
    judged = decide.judge(samples(challenger), samples(other))
    assert judged.better == better
    if challenger[0] == 105:
        assert judged.ratio.median == pytest.approx(1.05)
        assert "+5.0%" in judged.reason


def test_chances_are_those_that_the_rule_states() -> None:
    """2,000 comparisons with 5 % noise, seeded; within three standard errors of such a share."""
    rng = np.random.default_rng(0)

    def share(gain: float, standard_errors: float) -> float:
        passed = 0
        for _ in range(2000):
            ratios = np.exp(rng.normal(np.log(1 + gain), 0.05, decide.ROUNDS))
            challenger, other = samples((100 * ratios).tolist()), samples([100.0] * decide.ROUNDS)
            passed += decide.judge(challenger, other, standard_errors=standard_errors).better
        return passed / 2000

    assert share(0, decide.FIRST_LOOK) == pytest.approx(0.08, abs=0.018)
    assert share(0, decide.SECOND_LOOK) == pytest.approx(0.016 / 0.08, abs=0.027)
    assert share(0.10, decide.FIRST_LOOK) * share(0.10, decide.SECOND_LOOK) == pytest.approx(0.95, abs=0.016)


def test_the_needed_gain_is_in_standard_errors_of_the_median() -> None:
    """Of a normal distribution, by simulation: the quartile estimate of so few values is within a fifth of it."""
    rng = np.random.default_rng(1)
    values = rng.normal(1, 0.05, (20000, 25))
    estimated = np.mean([decide.needed_gain(Spread.of(row), 2.0) for row in values[:2000].tolist()])
    assert estimated == pytest.approx(2 * np.std(np.median(values, axis=1)), rel=0.2)
    assert decide.needed_gain(Spread(1.0, 1.0, 1.0, 6)) == decide.MIN_GAIN


@pytest.mark.parametrize(
    ("challenger", "other", "better"),
    [
        ((50.0, 20), (100.0, 40), True),
        ((200.0, 40), (100.0, 20), False),
        ((90.0, 40), (100.0, 60), True),
        ((110.0, 60), (100.0, 40), False),
        ((110.0, 29), (100.0, 10), True),
    ],
    ids=["one keeps it", "the other keeps it", "shorter, above it", "longer, above it", "both keep it"],
)
def test_a_limit_on_p99_comes_first(challenger: tuple[float, float], other: tuple[float, float], better: bool) -> None:
    """Then, where neither keeps it, the shorter p99; where both do, images per second."""
    one, two = (samples([speed] * 6, p99_ms=p99_ms) for speed, p99_ms in (challenger, other))
    assert decide.judge(one, two, p99_ms=30).better == better


def test_a_comparison_ends_early_when_it_is_lost() -> None:
    other = samples([100.0] * 4)
    assert not decide.hopeless(samples([90, 91]), other[:2])
    assert decide.hopeless(samples([90, 91, 99]), other[:3])
    assert not decide.hopeless(samples([90, 91, 101]), other[:3])
    assert decide.hopeless(samples([90, 91, 101, 99]), other)
    assert not decide.hopeless(samples([90, 105, 101, 99.5]), other)
    assert decide.hopeless(samples([120.0] * 3, p99_ms=40), samples([100.0] * 3, p99_ms=20), p99_ms=30)
    # Slower, but within a limit that the other breaks.
    assert not decide.hopeless(samples([80.0] * 3, p99_ms=25), samples([100.0] * 3, p99_ms=40), p99_ms=30)
