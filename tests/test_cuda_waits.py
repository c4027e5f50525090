"""The host's waits are attributed to the calls that make them, from CUPTI's records alone."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cuda_waits import ELSEWHERE, LIBRARY_CALLS, OURS, Window, attributed

ROOT = Path(__file__).parent.parent
EVENT, STREAM_WAIT_EVENT, STREAM, CONTEXT = 1, 2, 3, 4


def wait(start: int, type_: int = EVENT) -> Any:
    return SimpleNamespace(kind=38, type=type_, start=start, end=start + 1)


def kernel(name: str, stream: int) -> Any:
    return SimpleNamespace(kind=10, name=name, stream_id=stream, start=5)


def test_a_wait_belongs_to_the_innermost_call_in_which_it_began() -> None:
    windows = [Window("batch", 0, 100), Window("decode", 10, 50), Window("cuda", 20, 30), Window(OURS, 90, 95)]
    records = [wait(10), wait(20, STREAM), wait(30), wait(31), wait(60, CONTEXT), wait(90, STREAM), wait(101)]
    trace = attributed(records, windows)
    assert trace.waits == {
        ("decode", "event"): 2,
        ("cuda", "stream"): 1,
        ("cuda", "event"): 1,
        ("batch", "context"): 1,
        (OURS, "stream"): 1,
        (ELSEWHERE, "event"): 1,
    }
    assert trace.waits_of("cuda") == 2
    assert trace.waits_of("nobody") == 0


def test_calls_of_the_same_name_add_up_and_streams_that_wait_for_streams_do_not_count() -> None:
    windows = [Window("decode", 0, 9), Window("decode", 20, 29)]
    trace = attributed([wait(3), wait(23), wait(4, STREAM_WAIT_EVENT)], windows)
    assert trace.waits == {("decode", "event"): 2}


def test_kernels_are_counted_by_stream() -> None:
    trace = attributed([kernel("resize", 7), kernel("resize", 7), kernel("idct", 8)], [])
    assert trace.kernel_streams == {("resize", 7): 2, ("idct", 8): 1}
    assert trace.waits == {}


def test_the_page_names_the_calls_that_wait() -> None:
    page = (ROOT / "docs" / "gpu.md").read_text()
    table = page[page.index("| call | waits for |") :].split("\n\n")[0]
    rows = dict(re.findall(r"^\| `([^`]+)` \| (?:the|an) (event|stream)", table, re.MULTILINE))
    assert rows == {**LIBRARY_CALLS, "Stream.sync": "stream"}
