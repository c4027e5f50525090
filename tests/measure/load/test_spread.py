"""Medians, quartiles and ratios within rounds."""

from __future__ import annotations

import pytest

from onestream.measure.spread import Spread, ratio


def test_median_and_quartiles() -> None:
    assert Spread.of([5, 1, 4, 2, 3]) == Spread(median=3, low=2, high=4, count=5)
    assert Spread.of([1, 2]) == Spread(median=1.5, low=1.25, high=1.75, count=2)
    assert Spread.of([1, 2, 3, 4, 5]).text(1) == "3.0 (2.0–4.0)"
    assert Spread.of([1.234]).text(2) == "1.23", "one round claims no quartiles"
    with pytest.raises(ValueError, match="at least one value"):
        Spread.of([])


def test_ratios_are_taken_within_rounds_that_hold_both() -> None:
    """The second round was twice as slow for both; a ratio of medians would be 1.75, of means 1.67."""
    found = ratio({0: 200, 1: 100, 2: 150, 3: 9}, {0: 100, 1: 50, 2: 100, 4: 1})
    assert found == Spread(median=2.0, low=1.75, high=2.0, count=3)
    assert ratio({0: 1}, {1: 1}) is None
