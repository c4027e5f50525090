"""A server's spans go to a collector."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from small_models import FREE_PORTS, http_request, infer, output, write_model
from trace_collector import Collector, attributes, collecting

from onestream.serving.server.log_records import LogReader
from onestream.serving.server.server import Server
from onestream.serving.server.tracing import Tracing
from onestream.serving.server.triton.ports import free_port

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
COLLECTOR = "http://127.0.0.1:4318/v1/traces"


def test_what_is_no_collectors_address_is_refused() -> None:
    Tracing(url="https://collector/custom")
    expected = r"expected a collector such as http://127\.0\.0\.1:4318/v1/traces"
    for other in (
        "trace.jsonl",
        "grpc://collector:4317/x",
        "http://collector:4318",
        "http:///v1/traces",
        "http://a/b,c",
    ):
        with pytest.raises(ValueError, match=expected):
            Server("any", **FREE_PORTS, trace=other)
    with pytest.raises(ValueError, match="trace_rate=0, expected 1 or more"):
        Server("any", **FREE_PORTS, trace=COLLECTOR, trace_rate=0)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


def test_a_collector_is_asked_whether_it_takes_traces(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert Tracing(url=collector.url).complaint() is None
    assert Tracing(url=collector.url.replace("traces", "metrics")).complaint() == "it answers 404"
    assert collector.spans == []


@pytest.mark.slow
@pytest.mark.needs_triton
def test_a_collector_that_does_not_answer_costs_no_request(tmp_path: Path) -> None:
    write_model(tmp_path, "plus_one")
    said: list[str] = []
    events: list[str] = []
    url = f"http://127.0.0.1:{free_port('127.0.0.1')}/v1/traces"
    with Server(tmp_path, **FREE_PORTS, device="cpu", trace=url, on_event=events.append, on_log=said.append) as server:
        assert output(infer(server, "plus_one", 1.0)) == 2.0
    assert events == [f"the trace collector {url} is not reachable, traces are lost: [Errno 111] Connection refused"]
    # Triton's library writes these in blocks, so they may come only now.
    reader = LogReader(is_model=lambda _: False)
    records = [record for line in said for record in reader.read(line)]
    assert any(record.level == "error" and "OTLP HTTP Client" in record.message for record in records)


@pytest.mark.slow
@pytest.mark.needs_triton
def test_a_stop_loses_no_span(tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    # Where there is a proxy for the internet, spans must not go to it.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "internal.example")
    write_model(tmp_path, "plus_one")
    tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}
    with Server(tmp_path, **FREE_PORTS, device="cpu", trace=collector.url, trace_rate=2) as server:
        for number in range(20):
            body = {"id": str(number), "inputs": [tensor]}
            assert http_request(server, "POST", "/v2/models/plus_one/infer", body).status == 200
    # One of two.
    assert sum(span["name"] == "InferRequest" for span in collector.spans) == 10
    assert len({attributes(span)["triton.request_id"] for span in collector.spans if attributes(span)}) == 10
