"""The search for how many streams are held, on machines whose capacity is known."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onestream.measure.capacity.capacity_search import STEP, find
from onestream.measure.capacity.playing import Played, rates_of


def machine(capacity: Callable[[], float]) -> object:
    """Holds ``capacity()`` streams, which is asked before each attempt."""

    def attempt(load: float) -> Played:
        late = load > capacity() + 1e-9
        return Played(due=100, latencies_ms=[500.0 if late else 20.0] * 100)

    return attempt


@given(st.floats(0.1, 40), st.floats(0.1, 40), st.floats(0.1, 20), st.integers(2, 20))
def test_each_competitor_gets_its_capacity(one: float, other: float, start: float, attempts: int) -> None:
    machines = {"one": machine(lambda: one), "other": machine(lambda: other)}
    found = find(machines, start={"one": start, "other": start}, attempts=attempts, settle_s=0)  # type: ignore[arg-type]
    for name, capacity in (("one", one), ("other", other)):
        tried = [attempt for attempt in found.tried if attempt.competitor == name]
        assert abs(found.held[name] - capacity) <= STEP + 1e-9
        assert all(attempt.held == (attempt.load <= capacity + 1e-9) for attempt in tried)
        assert sum(attempt.counts for attempt in tried) == attempts


@pytest.mark.parametrize("seed", range(5))
def test_on_a_machine_that_changes_its_speed_the_middle_is_found(seed: int) -> None:
    # Over seeds the mean of 200 attempts varies by 0.07.
    speeds = random.Random(seed)
    changing = {"one": machine(lambda: speeds.uniform(2, 4))}
    found = find(changing, start={"one": 1.0}, attempts=200, settle_s=0)  # type: ignore[arg-type]
    assert found.held["one"] == pytest.approx(3, abs=0.2)


def test_all_count_in_the_same_turns() -> None:
    machines = {"near": machine(lambda: 1.0), "far": machine(lambda: 30.0)}
    found = find(machines, start={"near": 1.0, "far": 1.0}, attempts=6, settle_s=0)  # type: ignore[arg-type]
    turns = [[tried.counts for tried in found.tried if tried.competitor == name] for name in machines]
    assert turns[0] == turns[1]
    assert sum(turns[0]) == 6
    assert turns[0].index(True) > 20, "the far one has a long way"


def test_who_holds_nothing_gets_0_and_does_not_stop_the_others() -> None:
    machines = {"none": machine(lambda: 0.0), "two": machine(lambda: 2.0)}
    found = find(machines, start={"none": 3, "two": 3}, attempts=4, settle_s=0)  # type: ignore[arg-type]
    assert found.held == {"none": 0, "two": pytest.approx(2.05)}


@given(st.integers(1, 400))
def test_the_rates_add_up_and_only_the_last_is_a_part(tenths: int) -> None:
    rates = rates_of(tenths / 10)
    assert sum(rates) == pytest.approx(tenths / 10)
    assert set(rates[:-1]) <= {1.0}
    assert 0 < rates[-1] <= 1
