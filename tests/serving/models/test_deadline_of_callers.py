"""What is known of the caller of a request, and what goes on to the requests that are made for it."""

from __future__ import annotations

from typing import Any

import pytest
from triton_stand_in import Request

from onestream.serving.models import deadline
from onestream.serving.models.deadline import Caller, NobodyWaits, RequestCaller


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in seconds, as its only item."""
    now = [1000.0]
    monkeypatch.setattr(deadline.time, "monotonic", lambda: now[0])
    return now


def test_what_is_left_of_the_time_goes_on_and_not_the_whole(clock: list[float]) -> None:
    caller = RequestCaller(Request("cat-1", timeout_us=2_000_000), is_held=True)
    for passed_s, left_us in ((0, 2_000_000), (0.5, 1_500_000), (1.999999, 1)):
        clock[0] = 1000 + passed_s
        assert caller.handed_on() == {"request_id": "cat-1", "timeout": left_us, "trace": Request.traced}
        assert caller.is_waiting()
    clock[0] = 1003
    assert caller.is_late()
    assert not caller.is_waiting()
    with pytest.raises(NobodyWaits):
        caller.handed_on()


def test_who_gives_no_time_waits_for_as_long_as_it_takes(clock: list[float]) -> None:
    caller = RequestCaller(Request("cat-1"), is_held=True)
    clock[0] = 1e9
    assert caller.is_waiting()
    assert caller.handed_on() == {"request_id": "cat-1", "trace": Request.traced}


def test_the_trace_of_a_request_that_triton_let_go_of_is_not_used() -> None:
    assert RequestCaller(Request("cat-1"), is_held=False).handed_on() == {"request_id": "cat-1"}


def test_who_has_left_waits_no_more() -> None:
    assert not RequestCaller(Request(is_cancelled=True), is_held=True).is_waiting()


def test_anybody_waits_and_hands_nothing_on() -> None:
    anybody: Any = Caller()
    assert anybody.is_waiting()
    assert anybody.handed_on() == {}
