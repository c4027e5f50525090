"""The load generator of the overload benchmark: what it sends, when, and how it counts what becomes of it."""

from __future__ import annotations

import itertools
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceServicer, add_GRPCInferenceServiceServicer_to_server

from benchmarks.overload import offered

ANSWER, REFUSE, DELAY, FAIL = b"answer", b"refuse", b"delay", b"fail"


class Behaving(GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Does what the photo says, and remembers the requests; as many at a time as come."""

    def __init__(self, answer_s: float) -> None:
        self.answer_s, self.counting, self.stopping = answer_s, threading.Lock(), threading.Event()
        self.seen: list[Any] = []
        self.at_work = self.most_at_work = 0

    def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        with self.counting:
            self.seen.append(request)
            self.at_work += 1
            self.most_at_work = max(self.most_at_work, self.at_work)
        try:
            kind = request.raw_input_contents[0]
            if kind == REFUSE:
                context.abort(grpc.StatusCode.UNAVAILABLE, "Exceeds maximum queue size")
            if kind == FAIL:
                context.abort(grpc.StatusCode.INTERNAL, "broken, as ordered")
            self.stopping.wait(60 if kind == DELAY else self.answer_s)
            return messages.ModelInferResponse(model_name=request.model_name)
        finally:
            with self.counting:
                self.at_work -= 1


@contextmanager
def behaving(answer_s: float = 0.0) -> Iterator[tuple[str, Behaving]]:
    """A gRPC server, and its address."""
    servicer, server = Behaving(answer_s), grpc.server(ThreadPoolExecutor(100))
    add_GRPCInferenceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}", servicer
    finally:
        servicer.stopping.set()
        server.stop(None).wait()


def test_every_request_is_counted_once_by_what_became_of_it() -> None:
    # The deadline is long enough for a busy test machine to answer at once, and short against the delay of a minute.
    options = {"rate_per_s": 100, "seconds": 0.6, "deadline_s": 3, "seed": 3}
    with behaving() as (address, server):
        outcome = offered.offer(address, "any", [ANSWER, REFUSE, DELAY, FAIL, ANSWER], **options)  # type: ignore[arg-type]
    kinds = Counter(request.raw_input_contents[0] for request in server.seen)
    assert outcome.offered == len(server.seen) == len(offered.arrivals(100, seconds=0.6, seed=3)) > 30
    became = (len(outcome.answered_ms), len(outcome.refused_ms), outcome.expired, outcome.failed)
    assert became == tuple(kinds[kind] for kind in (ANSWER, REFUSE, DELAY, FAIL))
    assert outcome.failure == "INTERNAL: broken, as ordered"
    assert outcome.goodput_per_s == kinds[ANSWER] / 0.6
    assert all(0 < ms < 3000 for ms in [*outcome.answered_ms, *outcome.refused_ms])


def test_requests_are_a_clients_with_this_deadline_and_those_of_the_warm_up_are_not_counted() -> None:
    warm, whole = (len(offered.arrivals(100, seconds=seconds, seed=5)) for seconds in (0.3, 0.6))
    with behaving() as (address, server):
        outcome = offered.offer(address, "any", [ANSWER], rate_per_s=100, warm_s=0.3, seconds=0.3, deadline_s=5, seed=5)
    assert len(server.seen) == whole
    assert outcome.offered == len(outcome.answered_ms) == whole - warm
    for request in server.seen:
        assert request.model_name == "any"
        assert request.parameters["timeout"].int64_param == 5_000_000
        (tensor,) = request.inputs
        assert (tensor.name, tensor.datatype, list(tensor.shape)) == ("image", "UINT8", [1, len(ANSWER)])


def test_arrivals_are_a_poisson_process() -> None:
    moments = offered.arrivals(500, seconds=20, seed=1)
    # Of 10,000 expected the standard deviation is 100; four of them.
    assert abs(len(moments) - 10_000) < 400
    gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert min(gaps) >= 0
    # 1 for exponential gaps, 0 for regular ones; over 10,000 gaps its standard error is about 0.01.
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(1, abs=0.05)
    assert moments == offered.arrivals(500, seconds=20, seed=1) != offered.arrivals(500, seconds=20, seed=2)


def test_latency_counts_from_when_a_request_was_due_and_not_from_when_it_left() -> None:
    previous = signal.signal(signal.SIGALRM, lambda *_: time.sleep(0.4))
    try:
        with behaving() as (address, _):
            # The load generator itself stands still for 0.4 s.
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            outcome = offered.offer(address, "any", [ANSWER], rate_per_s=100, seconds=0.8, deadline_s=30, seed=1)
    finally:
        signal.signal(signal.SIGALRM, previous)
    # Of those that were due meanwhile all but the last 50 ms' leave late, to be answered within milliseconds.
    assert outcome.sent_late > 10
    assert sum(ms > 50 for ms in outcome.answered_ms) >= outcome.sent_late


def test_capacity_is_what_eight_callers_get_who_wait_for_answers() -> None:
    with behaving(answer_s=0.05) as (address, server):
        found = offered.capacity(address, "any", [ANSWER], seconds=0.5, warm_s=0.2)
    assert server.most_at_work == 8
    # 8 ÷ 50 ms, and 1 ms for the resolution of timers; a busy machine is slower.
    assert 0 < found <= 8 / 0.049


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 1))
def test_percentile(values: list[float], share: float) -> None:
    found = offered.percentile(values, share)
    assert found in values
    needed = share * len(values)
    assert sum(value <= found for value in values) >= needed
    # It is the smallest such value.
    smaller = [value for value in values if value < found]
    assert len(smaller) < needed or not smaller
    assert offered.percentile([], share) is None
