"""The search for how many streams are held, on machines whose capacity is known."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onestream.bench.held import STEP, find
from onestream.bench.playing import Played, rates_of


def machine(*capacities: float) -> object:
    """Holds so many streams; with several capacities, each for one attempt, and then again."""
    attempts = count()

    def attempt(load: float) -> Played:
        late = load > capacities[next(attempts) % len(capacities)] + 1e-9
        return Played(due=100, latencies_ms=[500.0 if late else 20.0] * 100)

    return attempt


@settings(deadline=None)
@given(st.floats(0.1, 40), st.floats(0.1, 40), st.floats(0.1, 20), st.integers(2, 20))
def test_each_competitor_gets_its_capacity(one: float, other: float, start: float, attempts: int) -> None:
    machines = {"one": machine(one), "other": machine(other)}
    found = find(machines, start={"one": start, "other": start}, attempts=attempts, settle_s=0)  # type: ignore[arg-type]
    for name, capacity in (("one", one), ("other", other)):
        tried = [attempt for attempt in found.tried if attempt.competitor == name]
        assert found.held[name] <= capacity + 1e-9 < found.held[name] + 2 * STEP
        assert all(attempt.held == (attempt.load <= capacity + 1e-9) for attempt in tried)
        assert sum(attempt.counts for attempt in tried) == attempts


def test_on_a_machine_that_changes_its_speed_the_middle_is_found() -> None:
    # A machine of 2 streams for an attempt, then of 4, stays at 3; a search by halving would end at either.
    found = find({"one": machine(2, 4)}, start={"one": 1.0}, attempts=40, settle_s=0)  # type: ignore[dict-item]
    assert 2 < found.held["one"] < 4


def test_who_holds_nothing_gets_0_and_does_not_stop_the_others() -> None:
    found = find({"one": machine(0), "two": machine(2)}, start={"one": 3, "two": 3}, attempts=4, settle_s=0)  # type: ignore[dict-item]
    assert found.held == {"one": 0, "two": 2}


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
