"""Reads a trace file: the spans of Triton, put together as requests and their steps.

A line is one export in OTLP JSON, as ``onestream serve --trace FILE`` and the file exporter of the OpenTelemetry
Collector write it. Triton 2.51 makes a span ``InferRequest`` for each request, below it one with the name of each model
that it went through, and below that one named ``compute`` where the model computes.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_REQUEST = "InferRequest"
_COMPUTE = "compute"


class BadTraceFile(Exception):
    """The file cannot be read, or holds no traces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A model's part in a request, and what it called. Times are in milliseconds.

    Attributes:
        model: its name.
        start_ms: when it began, after the request's own beginning.
        total_ms: until it ended, its queue included.
        queue_ms: how long it waited for an instance; None where it has none, as an ensemble.
        compute_ms: how long its batch took, this request's batch-mates included; None as above.
        steps: the models that it called.
    """

    model: str
    start_ms: float
    total_ms: float
    queue_ms: float | None
    compute_ms: float | None
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRequest:
    """A request from its arrival in Triton until its answer was sent.

    Attributes:
        request_id: as the client sent it; empty where it sent none.
        trace_id: 32 hexadecimal digits.
        start_ns: when it arrived, in nanoseconds since 1970.
        total_ms: until its answer was sent.
        steps: the models that it went through; one, the model called, unless its spans are lost.
    """

    request_id: str
    trace_id: str
    start_ns: int
    total_ms: float
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Traces:
    """What a file holds; ``unreadable`` lines are left out, as the last one of a file that is being written."""

    requests: tuple[TracedRequest, ...]
    unreadable: int


@dataclass(frozen=True, slots=True)
class _Span:
    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int
    end_ns: int
    attributes: dict[str, str]
    events: dict[str, int]

    @property
    def total_ms(self) -> float:
        return (self.end_ns - self.start_ns) / 1e6


def read_traces(path: Path) -> Traces:
    """The requests of a trace file, in the order in which they arrived.

    Raises:
        BadTraceFile: it cannot be read, or no line of it is an export.
    """
    spans: list[_Span] = []
    exports = unreadable = 0
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    spans.extend(_spans(json.loads(line)))
                    exports += 1
                except (ValueError, KeyError, TypeError, AttributeError):
                    unreadable += 1
    except OSError as error:
        raise BadTraceFile(f"cannot read {path}: {error.strerror}") from None
    if unreadable and not exports:
        raise BadTraceFile(f"{path} holds no traces; expected lines of OTLP JSON, as `onestream serve --trace` writes")
    below: dict[tuple[str, str], list[_Span]] = defaultdict(list)
    for span in spans:
        below[span.trace_id, span.parent_id].append(span)
    found = [_request(span, below) for span in spans if span.name == _REQUEST]
    return Traces(tuple(sorted(found, key=lambda request: request.start_ns)), unreadable)


def _spans(export: dict[str, Any]) -> list[_Span]:
    return [
        _Span(
            trace_id=span["traceId"],
            span_id=span["spanId"],
            parent_id=span.get("parentSpanId", ""),
            name=span["name"],
            start_ns=int(span["startTimeUnixNano"]),
            end_ns=int(span["endTimeUnixNano"]),
            attributes={entry["key"]: entry["value"].get("stringValue", "") for entry in span.get("attributes", ())},
            events={event["name"]: int(event["timeUnixNano"]) for event in span.get("events", ())},
        )
        for resource in export["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


def _request(span: _Span, below: dict[tuple[str, str], list[_Span]]) -> TracedRequest:
    inner = _inner(span, below)
    ids = [one.attributes["triton.request_id"] for one in inner if "triton.request_id" in one.attributes]
    return TracedRequest(
        request_id=ids[0] if ids else "",
        trace_id=span.trace_id,
        start_ns=span.start_ns,
        total_ms=span.total_ms,
        steps=tuple(_steps(span, below, since_ns=span.start_ns)),
    )


def _inner(span: _Span, below: dict[tuple[str, str], list[_Span]]) -> list[_Span]:
    return sorted(below.get((span.trace_id, span.span_id), ()), key=lambda inner: inner.start_ns)


def _steps(span: _Span, below: dict[tuple[str, str], list[_Span]], *, since_ns: int) -> Iterator[Step]:
    """The models directly below a span. What a ``compute`` span called counts as called by its model."""
    for inner in _inner(span, below):
        if inner.name == _COMPUTE:
            yield from _steps(inner, below, since_ns=since_ns)
            continue
        compute = next((one for one in _inner(inner, below) if one.name == _COMPUTE), None)
        queued_ns = inner.events.get("QUEUE_START", inner.start_ns)
        yield Step(
            model=inner.name,
            start_ms=(inner.start_ns - since_ns) / 1e6,
            total_ms=inner.total_ms,
            queue_ms=None if compute is None else (compute.start_ns - queued_ns) / 1e6,
            compute_ms=None if compute is None else compute.total_ms,
            steps=tuple(_steps(inner, below, since_ns=since_ns)),
        )
