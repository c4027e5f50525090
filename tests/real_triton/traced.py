"""What a server exports or logs some time after a request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from patience import wait_until

from onestream.measure.trace_file import TracedRequest, read_traces

T = TypeVar("T")


def when_there(look: Callable[[], list[T]]) -> list[T]:
    """What ``look`` finds at last: exports come once a second."""
    found: list[T] = []

    def looked() -> bool:
        found[:] = look()
        return bool(found)

    wait_until(looked)
    return found


def when_traced(file: Path, request_id: str) -> TracedRequest:
    """The trace of a request, as soon as it was exported."""
    (one,) = when_there(lambda: [one for one in read_traces(file).requests if one.request_id == request_id])
    return one
