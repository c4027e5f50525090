"""Which batch sizes are run, recorded and replayed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from onestream.serving.engine.replay import Turns


def take(turns: Turns, batch: int, *, refuse: bool = False) -> str:
    turn = turns.next(batch)
    if turn == "record":
        turns.refused(batch) if refuse else turns.recorded(batch)
    return turn


def test_a_size_runs_then_is_recorded_then_replayed() -> None:
    turns = Turns()
    assert [take(turns, 8) for _ in range(4)] == ["run", "record", "replay", "replay"]
    assert take(turns, 7) == "run"


def test_a_size_that_cannot_be_recorded_is_tried_once() -> None:
    turns = Turns()
    assert [take(turns, 8, refuse=True) for _ in range(4)] == ["run", "record", "run", "run"]


@given(st.lists(st.integers(1, 6), max_size=60), st.integers(0, 4), st.sets(st.integers(1, 6)))
def test_graphs_are_bounded_and_only_what_was_recorded_is_replayed(
    sizes: list[int], limit: int, refused: set[int]
) -> None:
    turns, recorded = Turns(limit=limit), set()
    for size in sizes:
        turn = take(turns, size, refuse=size in refused)
        assert turn != "replay" or size in recorded
        if turn == "record" and size not in refused:
            assert size not in recorded
            recorded.add(size)
    assert len(recorded) <= limit
