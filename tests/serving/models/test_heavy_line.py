"""The line of heavy pictures: bounded, in order, each request answered once, whatever becomes of the one before it."""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import triton_stand_in
from triton_stand_in import TRITON, TritonError, imported_anew, triton

DEADLINE_S = 30.0


class Request(triton_stand_in.Request):
    """Triton freed the trace, and the client that sent *gone* disconnected."""

    def trace(self) -> object:
        raise AssertionError("Triton has freed it")

    def send(self, response: Any, flags: int) -> None:
        super().send(response, flags)
        if self.name == "gone":
            raise RuntimeError("nobody there")


class Line:
    """A ``HeavyLine`` whose work waits until it is let go on."""

    def __init__(self, heavy: Any, *, max_waiting_bytes: int = 1000) -> None:
        self.go_on, self.begun = threading.Event(), threading.Event()
        self.worked: list[str] = []
        self.handed_on: list[dict[str, Any]] = []
        self.niceness = 0
        self.line = heavy.HeavyLine(
            self._open_work, failed=lambda error: f"failed: {error}", max_waiting_bytes=max_waiting_bytes
        )

    def _open_work(self) -> Callable[[Sequence[Any]], list[object]]:
        self.niceness = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        return self._work

    def _work(self, callers: Sequence[Any]) -> list[object]:
        (caller,) = callers
        request = caller.request
        self.begun.set()
        assert self.go_on.wait(DEADLINE_S)
        self.worked.append(request.name)
        self.handed_on.append(caller.handed_on())
        if request.name == "fails":
            raise MemoryError("no more")
        return [f"answer to {request.name}"]

    def finish(self) -> None:
        self.go_on.set()
        self.line.close()

    def occupy(self) -> Request:
        """Take one request and wait until it is at work, so that nothing but what follows waits."""
        first = Request("first")
        assert self.line.take(first, 1)
        assert self.begun.wait(DEADLINE_S)
        return first


@pytest.fixture
def heavy() -> Iterator[Any]:
    """The module, with the part of Triton that it uses."""
    with imported_anew("onestream.serving.models.heavy_pictures", **{TRITON: triton()}):
        yield importlib.import_module("onestream.serving.models.heavy_pictures")


def test_requests_are_answered_in_order_and_closing_waits_for_them(heavy: Any) -> None:
    line = Line(heavy)
    requests = [line.occupy(), *(Request(f"number {number}") for number in range(5))]
    assert all(line.line.take(request, 10) for request in requests[1:])
    line.finish()
    assert [request.answer() for request in requests] == [f"answer to {request.name}" for request in requests]
    assert line.worked == [request.name for request in requests]


def test_it_is_bounded_by_requests_and_by_bytes_and_one_always_may_wait(heavy: Any) -> None:
    for most_bytes, sizes, taken in (
        (1000, [1] * (heavy.WAITING + 3), [True] * heavy.WAITING + [False] * 3),
        (100, [500, 1], [True, False]),
        (100, [60, 50, 40, 1], [True, False, True, False]),
    ):
        line = Line(heavy, max_waiting_bytes=most_bytes)
        line.occupy()
        assert [line.line.take(Request(str(size)), size) for size in sizes] == taken
        line.finish()
        assert len(line.worked) == 1 + sum(taken)


def test_one_that_fails_or_is_gone_leaves_the_others_their_answers(heavy: Any) -> None:
    line = Line(heavy)
    line.occupy()
    fails, gone, last = Request("fails"), Request("gone"), Request("last")
    assert all(line.line.take(request, 1) for request in (fails, gone, last))
    line.finish()
    assert fails.answer() == "failed: no more"
    assert last.answer() == "answer to last"


def test_one_whose_caller_has_stopped_waiting_is_refused_without_work(heavy: Any) -> None:
    line = Line(heavy)
    line.occupy()
    late, patient = Request("late", timeout_us=1), Request("patient", timeout_us=3_600_000_000)
    assert line.line.take(late, 1)
    assert line.line.take(patient, 1)
    time.sleep(0.1)
    line.finish()
    refusal = late.answer()
    assert refusal.error == "Request timeout expired"
    assert refusal.error.code == TritonError.UNAVAILABLE
    assert patient.answer() == "answer to patient"
    assert line.worked == ["first", "patient"]
    # What goes on is the time that is left since it was taken, and not its trace.
    first, handed_on = line.handed_on
    assert first == {"request_id": "first"}
    assert 0 < handed_on.pop("timeout") <= 3_600_000_000 - 100_000
    assert handed_on == {"request_id": "patient"}


def test_its_thread_is_nicer_than_the_process_and_what_opening_raises_is_raised(heavy: Any) -> None:
    before = os.nice(0)
    line = Line(heavy)
    assert line.niceness == min(before + heavy.NICER, 19)
    assert os.nice(0) == before
    line.line.close()

    def open_work() -> Any:
        raise ValueError("no decoder")

    with pytest.raises(ValueError, match="no decoder"):
        heavy.HeavyLine(open_work, failed=str, max_waiting_bytes=1)
