"""The search for how many streams are held, on machines whose capacity is known."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onestream.bench.held import STEP, find
from onestream.bench.playing import Played, rates_of


def machine(capacity: float, *, disturbed: Counter[float] | None = None) -> object:
    """Holds so many streams; once for each load in ``disturbed`` something else takes its time."""

    def attempt(load: float) -> Played:
        late = load > capacity + 1e-9
        if disturbed is not None and disturbed[load] == 0:
            disturbed[load] += 1
            late = True
        return Played(due=100, latencies_ms=[500.0 if late else 20.0] * 100)

    return attempt


@settings(deadline=None)
@given(st.floats(0.2, 40), st.floats(0.2, 40), st.floats(0.1, 20))
def test_each_competitor_gets_its_capacity(one: float, other: float, start: float) -> None:
    attempts = {"one": machine(one), "other": machine(other)}
    found = find(attempts, start={"one": start, "other": start}, settle_s=0)  # type: ignore[arg-type]
    for name, capacity in (("one", one), ("other", other)):
        assert found.held[name] <= capacity + 1e-9 < found.held[name] + 2 * STEP
        assert all(tried.held == (tried.load <= capacity + 1e-9) for tried in found.tried if tried.competitor == name)


def test_a_load_that_was_disturbed_once_is_tried_again() -> None:
    found = find({"one": machine(3.05, disturbed=Counter())}, start={"one": 2.0}, settle_s=0)  # type: ignore[dict-item]
    assert found.held["one"] == pytest.approx(3.0)
    assert any(not tried.held for tried in found.tried if tried.load <= 3)


def test_competitors_take_turns() -> None:
    order: list[str] = []

    def noted(name: str) -> object:
        def attempt(load: float) -> Played:
            order.append(name)
            return Played(due=1, latencies_ms=[1.0 if load <= 2 else 900.0])

        return attempt

    find({name: noted(name) for name in "ab"}, start={"a": 1.0, "b": 1.0}, settle_s=0)  # type: ignore[misc]
    assert order[:4] == ["a", "b", "a", "b"]


@given(st.integers(1, 400))
def test_the_rates_add_up_and_only_the_last_is_a_part(tenths: int) -> None:
    rates = rates_of(tenths / 10)
    assert sum(rates) == pytest.approx(tenths / 10)
    assert set(rates[:-1]) <= {1.0}
    assert 0 < rates[-1] <= 1
