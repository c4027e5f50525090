"""A small OTLP/HTTP collector, and the requests that it was sent as trees of models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from http_answers import answering
from patience import wait_until

Span = dict[str, Any]


@dataclass(frozen=True)
class Traced:
    """A span of Triton with what is below it; ``compute`` spans count as a part of their model."""

    span: Span
    below: tuple[Traced, ...]

    @property
    def model(self) -> str:
        return str(self.span["name"])

    @property
    def trace_id(self) -> str:
        return str(self.span["traceId"])

    @property
    def total_ms(self) -> float:
        return (int(self.span["endTimeUnixNano"]) - int(self.span["startTimeUnixNano"])) / 1e6


class Collector:
    """Keeps the exports that are posted to ``url``."""

    def __init__(self, address: str) -> None:
        self.url = f"http://{address}/v1/traces"
        self.bodies: list[bytes] = []

    @property
    def spans(self) -> list[Span]:
        """All spans so far, after each export was read as the protocol's own message, unknown fields refused."""
        from google.protobuf import json_format
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        exports = [json.loads(body) for body in list(self.bodies)]
        for export in exports:
            json_format.ParseDict(export, ExportTraceServiceRequest())
        scopes = [
            scope for export in exports for resource in export["resourceSpans"] for scope in resource["scopeSpans"]
        ]
        return [span for scope in scopes for span in scope["spans"]]

    def request(self, request_id: str) -> Traced:
        """The root span of a request, as soon as all of it was exported, once a second."""
        found: list[Traced] = []

        def look() -> bool:
            spans = self.spans
            found[:] = [
                Traced(span, _below(span, spans))
                for span in spans
                if span["name"] == "InferRequest"
                and request_id in {attributes(one).get("triton.request_id") for one in _children(span, spans)}
            ]
            return bool(found)

        wait_until(look)
        (one,) = found
        return one


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that listens."""

    def answer(path: str, body: bytes) -> tuple[int, bytes]:
        if path != "/v1/traces":
            return 404, b""
        made.bodies.append(body)
        return 200, b""

    with answering(answer) as address:
        made = Collector(address)
        yield made


def attributes(span: Span) -> dict[str, str]:
    """The attributes of a span."""
    return {entry["key"]: next(iter(entry["value"].values())) for entry in span.get("attributes", ())}


def _children(span: Span, spans: list[Span]) -> list[Span]:
    found = [one for one in spans if one.get("parentSpanId") == span["spanId"] and one["traceId"] == span["traceId"]]
    return sorted(found, key=lambda one: int(one["startTimeUnixNano"]))


def _below(span: Span, spans: list[Span]) -> tuple[Traced, ...]:
    below: list[Traced] = []
    for one in _children(span, spans):
        below += _below(one, spans) if one["name"] == "compute" else [Traced(one, _below(one, spans))]
    return tuple(below)
