"""The overload benchmark: what the load generator sends and counts, and what the table and the plot say of results."""

from __future__ import annotations

import asyncio
import itertools
import math
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
from bench_results import made_up
from grpc import aio
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceServicer, add_GRPCInferenceServiceServicer_to_server

from benchmarks import tables
from benchmarks.overload import offered
from benchmarks.overload.plot import draw, figure_of
from benchmarks.overload.results import FILE_NAME, VARIANTS, Capacity, OfferedLoad, OverloadResults, Variant
from benchmarks.overload.table import table
from benchmarks.result_files import read
from onestream.measure.tables import BEGIN, END

ANSWER, REFUSE, DELAY, FAIL = b"answer", b"refuse", b"delay", b"fail"
PNG = b"\x89PNG\r\n\x1a\n"


class Behaving(GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Does what the photo says, and remembers the requests; as many at a time as come."""

    def __init__(self, answer_s: float) -> None:
        self.answer_s = answer_s
        self.seen: list[Any] = []
        self.at_work = self.most_at_work = 0

    @property
    def kinds(self) -> Counter[bytes]:
        return Counter(request.raw_input_contents[0] for request in self.seen)

    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        self.seen.append(request)
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        try:
            kind = request.raw_input_contents[0]
            if kind == REFUSE:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "Exceeds maximum queue size")
            if kind == FAIL:
                await context.abort(grpc.StatusCode.INTERNAL, "broken, as ordered")
            await asyncio.sleep(60 if kind == DELAY else self.answer_s)
            return messages.ModelInferResponse(model_name=request.model_name)
        finally:
            self.at_work -= 1


@contextmanager
def behaving(answer_s: float = 0.0) -> Iterator[tuple[str, Behaving]]:
    """A gRPC server in a thread of its own, and its address."""
    servicer, started, stop = Behaving(answer_s), threading.Event(), threading.Event()
    found: list[int] = []

    async def serve() -> None:
        server = aio.server(options=[("grpc.so_reuseport", 0)])
        add_GRPCInferenceServiceServicer_to_server(servicer, server)
        found.append(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        started.set()
        await asyncio.to_thread(stop.wait)
        await server.stop(None)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert started.wait(10)
        yield f"127.0.0.1:{found[0]}", servicer
    finally:
        stop.set()
        thread.join()


def test_every_request_is_counted_once_by_what_became_of_it() -> None:
    photos = [ANSWER, REFUSE, DELAY, FAIL, ANSWER]
    # The deadline is long enough for a busy test machine to answer at once, and short against the delay of a minute.
    with behaving() as (address, server):
        outcome = offered.offer(address, "any", photos, rate_per_s=100, seconds=0.6, deadline_s=5, seed=3)
    assert outcome.offered == len(server.seen) == len(offered.arrivals(100, seconds=0.6, seed=3)) > 30
    assert (len(outcome.answered_ms), len(outcome.refused_ms), outcome.expired, outcome.failed) == tuple(
        server.kinds[kind] for kind in (ANSWER, REFUSE, DELAY, FAIL)
    )
    assert outcome.failure == "INTERNAL: broken, as ordered"
    assert outcome.goodput_per_s == server.kinds[ANSWER] / 0.6
    assert all(0 < ms < 5000 for ms in [*outcome.answered_ms, *outcome.refused_ms])


def test_requests_are_those_of_a_client_with_this_deadline() -> None:
    with behaving() as (address, server):
        offered.offer(address, "classify", [ANSWER], rate_per_s=50, seconds=0.2, deadline_s=1.25, seed=1)
    for request in server.seen:
        assert request.model_name == "classify"
        assert request.parameters["timeout"].int64_param == 1_250_000
        (tensor,) = request.inputs
        assert (tensor.name, tensor.datatype, list(tensor.shape)) == ("image", "UINT8", [1, len(ANSWER)])
    assert server.seen


def test_the_warm_up_is_sent_and_not_counted() -> None:
    warm, whole = (len(offered.arrivals(100, seconds=seconds, seed=5)) for seconds in (0.3, 0.8))
    with behaving() as (address, server):
        outcome = offered.offer(address, "any", [ANSWER], rate_per_s=100, warm_s=0.3, seconds=0.5, deadline_s=5, seed=5)
    assert len(server.seen) == whole
    assert outcome.offered == len(outcome.answered_ms) == whole - warm


def test_arrivals_are_a_poisson_process() -> None:
    moments = offered.arrivals(500, seconds=20, seed=1)
    # Of 10,000 expected the standard deviation is 100; four of them.
    assert abs(len(moments) - 10_000) < 400
    gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert min(gaps) >= 0
    # 1 for exponential gaps, 0 for regular ones; over 10,000 gaps its standard error is about 0.01.
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(1, abs=0.05)
    assert moments == offered.arrivals(500, seconds=20, seed=1) != offered.arrivals(500, seconds=20, seed=2)


def test_the_load_waits_for_no_answer() -> None:
    with behaving() as (address, server):
        offered.offer(address, "any", [DELAY], rate_per_s=100, seconds=0.3, deadline_s=2, seed=1)
    assert server.most_at_work == len(offered.arrivals(100, seconds=0.3, seed=1)) > 15


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
        found = offered.capacity(address, "any", [ANSWER], seconds=1, warm_s=0.2)
    assert server.most_at_work == 8
    # 8 ÷ 50 ms, and 1 ms for the resolution of timers; a test machine that is busy may make it much slower.
    assert 20 < found <= 8 / 0.049


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 1))
def test_percentile(values: list[float], share: float) -> None:
    found = offered.percentile(values, share)
    assert found in values
    needed = share * len(values)
    assert sum(value <= found for value in values) >= needed
    # It is the smallest such value.
    smaller = [value for value in values if value < found]
    assert len(smaller) < needed or not smaller


def test_nothing_has_no_percentile() -> None:
    assert offered.percentile([], 0.5) is None


def point(round_index: int, variant: Variant, share: float, **changes: Any) -> OfferedLoad:
    """100/s of capacity in the first round, 200/s in the second, of which all are answered in 40 ms."""
    capacity = 100.0 * (1 + round_index)
    good = min(1.0, share) * capacity
    fields: dict[str, Any] = {
        "round": round_index, "form": "classify", "variant": variant, "share": share, "capacity_per_s": capacity,
        "offered_per_s": share * capacity, "goodput_per_s": good, "refused_per_s": share * capacity - good,
        "expired_per_s": 0, "failed": 0, "failure": "", "sent_late": 0, "p50_ms": 10, "p99_ms": 40,
        "refused_p50_ms": None if share <= 1 else 2.0, "refused_p99_ms": None if share <= 1 else 3.0,
    }  # fmt: skip
    return OfferedLoad(**{**fields, **changes})


def of_points(points: list[OfferedLoad]) -> OverloadResults:
    return OverloadResults(
        machine=made_up().machine,
        commit="0123456789abcdef",
        started_utc="2030-01-02T03:04:05+00:00",
        server_cores=1,
        load_cores=1,
        rounds=2,
        seconds=8,
        deadline_s=1,
        capacities=[
            Capacity(round=number, form=form, variant=variant, per_s=190 if variant == "bounded" else 200)
            for number in range(2)
            for form in sorted({one.form for one in points})
            for variant in VARIANTS
        ],
        points=points,
    )


def measured() -> OverloadResults:
    """Two rounds, in which queues without bounds answer nothing in time at twice the capacity."""
    silent = {"goodput_per_s": 0, "refused_per_s": 0, "p50_ms": None, "p99_ms": None}
    points = []
    for index in range(2):
        points += [point(index, "bounded", share) for share in (0.5, 2)]
        points.append(point(index, "unbounded", 0.5))
        late = {**silent, "expired_per_s": 200 * (1 + index), "refused_p50_ms": None, "refused_p99_ms": None}
        points.append(point(index, "unbounded", 2, **late))
    return of_points(points)


def rows(text: str) -> dict[tuple[str, ...], list[str]]:
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    return {tuple(row[:3]): row[3:] for row in cells[2:]}


def test_the_table_has_a_row_for_every_load_and_ratios_within_rounds() -> None:
    text = table(measured())
    found = rows(text)
    assert len(found) == 4
    # Capacity doubles between the rounds, and the ratio stays.
    assert found["classify", "as generated", "2"] == [
        "1.00 (1.00–1.00)", "40 (40–40)", "150 (125–175)", "2.0 (2.0–2.0)", "3.0 (3.0–3.0)", "0 (0–0)",
    ]  # fmt: skip
    assert found["classify", "`max_queue_size: 0`", "2"] == [
        "0.00 (0.00–0.00)", "–", "0 (0–0)", "–", "–", "300 (250–350)",
    ]  # fmt: skip
    for words in (
        "with bounds ÷ without: classify 0.95 (0.95–0.95)",
        "worth nothing after 1 s",
        "the server on one core",
        "2030-01-02",
        "commit 0123456789ab.",
    ):
        assert words in text
    assert "failed" not in text
    assert "load generator" not in text


def test_failures_and_late_requests_are_told() -> None:
    failing = point(0, "bounded", 1, failed=3, failure="INTERNAL: broken", sent_late=200)
    text = table(of_points([failing, point(1, "bounded", 1)]))
    assert "3 requests failed otherwise: INTERNAL: broken" in text
    # 200 of 8 s × 100/s.
    assert "Up to 25% of a run's requests left the load generator more than 50 ms late." in text


def test_results_survive_their_file_and_come_into_the_page(tmp_path: Path) -> None:
    folder = tmp_path / "results" / measured().machine.slug
    folder.mkdir(parents=True)
    page = tmp_path / "results.md"
    page.write_text(f"{BEGIN}\n{END}\n")
    assert tables.main(["--write", str(page), "--results", str(folder.parent)]) == 0
    assert "overload" not in page.read_text()
    (folder / FILE_NAME).write_text(measured().model_dump_json(indent=1) + "\n")
    assert read(folder.parent, FILE_NAME, OverloadResults) == [measured()]
    assert tables.main(["--write", str(page), "--results", str(folder.parent)]) == 0
    text = page.read_text()
    assert table(measured()) in text
    assert f"](../benchmarks/results/{measured().machine.slug}/overload.png)" in text


def test_a_file_that_holds_no_results_is_refused(tmp_path: Path) -> None:
    (tmp_path / "machine").mkdir()
    (tmp_path / "machine" / FILE_NAME).write_text('{"points": []}')
    with pytest.raises(ValueError, match="machine"):
        read(tmp_path, FILE_NAME, OverloadResults)


def test_the_plot_shows_both_configurations_and_where_nothing_was_answered(tmp_path: Path) -> None:
    figure = figure_of(measured())
    good, late = figure.axes
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "ideal", "as generated", "without bounds (max_queue_size: 0)", "deadline",
    ]  # fmt: skip
    # No answer: a cross where the line of the deadline is.
    crosses = [line for line in late.get_lines() if line.get_marker() == "x"]
    assert [(list(one.get_xdata()), list(one.get_ydata())) for one in crosses] == [([2.0], [1000.0])]
    assert any(list(line.get_xdata()) == [0.5, 2.0] and line.get_ydata()[1] == 0.0 for line in good.get_lines())
    assert all(math.isfinite(limit) for axes in (good, late) for limit in (*axes.get_xlim(), *axes.get_ylim()))
    draw(measured(), tmp_path / "overload.png")
    assert (tmp_path / "overload.png").read_bytes().startswith(PNG)
