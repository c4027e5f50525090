"""Exports as Triton 2.51 makes them, for tests without a server."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

Span = dict[str, Any]


def span(
    name: str,
    span_id: str,
    parent_id: str = "",
    *,
    ms: tuple[float, float],
    trace_id: str = "a" * 32,
    attributes: Mapping[str, str] | None = None,
    events: Mapping[str, float] | None = None,
) -> Span:
    """A span from ``ms[0]`` to ``ms[1]``, in milliseconds since 1970."""
    return {
        "traceId": trace_id,
        "spanId": span_id,
        "parentSpanId": parent_id,
        "name": name,
        "kind": 2,
        "startTimeUnixNano": str(round(ms[0] * 1e6)),
        "endTimeUnixNano": str(round(ms[1] * 1e6)),
        "attributes": [{"key": key, "value": {"stringValue": value}} for key, value in (attributes or {}).items()],
        "events": [{"name": key, "timeUnixNano": str(round(at * 1e6))} for key, at in (events or {}).items()],
    }


def export(spans: Iterable[Span]) -> str:
    """One line of a trace file."""
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}) + "\n"


def request(
    request_id: str, number: int, *, began_ms: float = 1000.0, queue_ms: float = 2.0, compute_ms: float = 5.0
) -> list[Span]:
    """The spans of a request to an ensemble ``both`` of one step, which waits and computes."""
    root, outer, inner, compute = (f"{number:04x}{kind:012x}" for kind in range(4))
    named = {"triton.request_id": request_id} if request_id else {}
    queued = began_ms + 1
    computes = queued + queue_ms
    ends = computes + compute_ms
    return [
        span("compute", compute, inner, ms=(computes, ends)),
        span(
            "one",
            inner,
            outer,
            ms=(began_ms + 0.5, ends + 0.5),
            attributes={"triton.model_name": "one", **named},
            events={"REQUEST_START": began_ms + 0.5, "QUEUE_START": queued},
        ),
        span(
            "both",
            outer,
            root,
            ms=(began_ms + 0.25, ends + 1),
            attributes={"triton.model_name": "both", **named},
            events={"QUEUE_START": began_ms + 0.25},
        ),
        span("InferRequest", root, ms=(began_ms, ends + 2)),
    ]
