"""Where a server's spans go: to a collector, or into a file that holds what a collector would get."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from http_answers import answering
from patience import wait_until
from small_models import FREE_PORTS, http_request, infer, output, running, write_ensemble, write_model

from onestream.serving.server.errors import ServerError
from onestream.serving.server.log_records import LogReader
from onestream.serving.server.server import Server
from onestream.serving.server.tracing import TraceFile, collector_complaint, is_collector
from onestream.serving.server.triton.ports import free_port

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ANY_PROGRAM = Path("/bin/true")
EXPORT = b'{"resourceSpans": [ ]}'


def post(url: str, body: bytes, *, path: str | None = None) -> int:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=10)
    try:
        connection.request("POST", path or parts.path, body)
        return connection.getresponse().status
    finally:
        connection.close()


@contextlib.contextmanager
def trace_file(path: Path, *, most_bytes: int = 1 << 20) -> Iterator[tuple[TraceFile, list[str]]]:
    said: list[str] = []
    file = TraceFile(path, announce=said.append, most_bytes=most_bytes)
    try:
        yield file, said
    finally:
        file.close()


def test_every_export_is_a_line_after_those_that_were_there(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("before\n")
    with trace_file(path) as (file, _):
        threads = [threading.Thread(target=post, args=(file.url, EXPORT)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert path.read_text() == "before\n" + '{"resourceSpans":[]}\n' * 8


def test_what_is_no_export_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with trace_file(path) as (file, _):
        assert post(file.url, b"{") == 400
        assert post(file.url, EXPORT, path="/v1/traces") == 404
        assert post(file.url, EXPORT) == 200
    assert path.read_text() == '{"resourceSpans":[]}\n'


def test_a_file_that_grew_too_large_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with trace_file(path, most_bytes=40) as (file, _):
        for _ in range(7):
            assert post(file.url, EXPORT) == 200
    # A line has 21 bytes, so each file takes two.
    assert len(path.read_text().splitlines()) == 1
    assert len((tmp_path / "trace.jsonl.1").read_text().splitlines()) == 2


@pytest.mark.parametrize("take", [lambda path: path.rename(f"{path}-20261122"), Path.unlink])
@pytest.mark.parametrize("most_bytes", [20, 1 << 20])
def test_a_file_that_was_moved_or_deleted_is_begun_anew(
    tmp_path: Path, take: Callable[[Path], object], most_bytes: int
) -> None:
    path = tmp_path / "trace.jsonl"
    with trace_file(path, most_bytes=most_bytes) as (file, said):
        assert post(file.url, EXPORT) == 200
        take(path)
        assert post(file.url, EXPORT) == 200
    assert path.read_text() == '{"resourceSpans":[]}\n'
    assert said == []


def test_a_folder_that_is_gone_for_a_while_costs_only_what_comes_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "traces" / "trace.jsonl"
    path.parent.mkdir()
    with trace_file(path) as (file, said):
        path.parent.rename(tmp_path / "elsewhere")
        assert post(file.url, EXPORT) == 503
        path.parent.mkdir()
        assert post(file.url, EXPORT) == 200
    assert path.read_text() == '{"resourceSpans":[]}\n'
    assert said == [f"traces are lost: cannot write {path}: No such file or directory"]


def test_what_fails_in_an_export_is_one_line_and_no_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with trace_file(tmp_path / "trace.jsonl") as (file, said):
        with pytest.raises(http.client.RemoteDisconnected):
            post(file.url, b"[" * 1_000_000)
        # One that goes away in the middle is nobody's fault.
        parts = urlsplit(file.url)
        with socket.create_connection((str(parts.hostname), parts.port or 0), timeout=10) as connection:
            connection.sendall(f"POST {parts.path} HTTP/1.1\r\nContent-Length: 9\r\n\r\n".encode())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert post(file.url, EXPORT) == 200
    (line,) = said
    assert line.startswith("traces are lost: RecursionError: ")
    assert capfd.readouterr().err == ""


def test_a_full_disk_is_said_once_and_ends_nothing() -> None:
    with trace_file(Path("/dev/full")) as (file, said):
        assert [post(file.url, EXPORT) for _ in range(3)] == [503, 503, 503]
    assert said == ["traces are lost: cannot write /dev/full: No space left on device"]


def test_a_file_that_cannot_be_made_keeps_the_server_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path / "models", "plus_one")
    logs = tmp_path / "logs"
    logs.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(logs))
    server = Server(tmp_path / "models", **FREE_PORTS, triton=ANY_PROGRAM, trace=tmp_path / "none" / "trace.jsonl")
    with pytest.raises(ServerError, match=r"cannot write traces to .*trace\.jsonl: No such file or directory"):
        server.start()
    assert list(logs.iterdir()) == []


def test_no_trace_file_is_left_open_where_the_log_cannot_be_made(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "plus_one")
    (tmp_path / "file").touch()
    trace, log = tmp_path / "trace.jsonl", tmp_path / "file" / "triton.log"
    server = Server(tmp_path / "models", **FREE_PORTS, triton=ANY_PROGRAM, trace=trace, log_path=log)
    with pytest.raises(ServerError, match=r"cannot write the log to .*triton\.log: File exists"):
        server.start()
    assert not trace.exists()
    assert "trace-file" not in [thread.name for thread in threading.enumerate()]


def test_addresses_of_collectors_are_told_from_files() -> None:
    assert is_collector("http://127.0.0.1:4318/v1/traces")
    assert is_collector("https://collector/custom")
    assert not is_collector("runs/trace.jsonl")
    expected = r"expected a file or a collector such as http://127\.0\.0\.1:4318/v1/traces"
    for other in ("grpc://collector:4317/x", "http://collector:4318", "http:///v1/traces", "http://a/b,c"):
        with pytest.raises(ValueError, match=expected):
            Server("any", **FREE_PORTS, trace=other)
    with pytest.raises(ValueError, match="trace_rate=0, expected 1 or more"):
        Server("any", **FREE_PORTS, trace="trace.jsonl", trace_rate=0)


class Collector:
    """A small OTLP/HTTP collector at ``url``."""

    def __init__(self, address: str) -> None:
        self.url = f"http://{address}/v1/traces"
        self.bodies: list[bytes] = []

    @property
    def spans(self) -> list[dict[str, Any]]:
        """All spans so far, after each export was read as the protocol's own message, unknown fields refused."""
        from google.protobuf import json_format
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        for body in self.bodies:
            json_format.Parse(body, ExportTraceServiceRequest())
        return spans_of(self.bodies)


def spans_of(exports: Iterable[str | bytes]) -> list[dict[str, Any]]:
    return [
        span
        for export in exports
        for resource in json.loads(export)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


@pytest.fixture
def collector() -> Iterator[Collector]:
    def answer(path: str, body: bytes) -> tuple[int, bytes]:
        made.bodies.append(body)
        return (200 if path == "/v1/traces" else 404), b""

    with answering(answer) as address:
        made = Collector(address)
        yield made


def test_a_collector_is_asked_whether_it_takes_traces(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert collector_complaint(collector.url) is None
    assert collector_complaint(collector.url.replace("traces", "metrics")) == "it answers 404"
    assert collector.spans == []


def attributes(span: dict[str, Any]) -> dict[str, str]:
    return {entry["key"]: next(iter(entry["value"].values())) for entry in span.get("attributes", ())}


@pytest.mark.slow
@pytest.mark.needs_triton
def test_a_collector_gets_the_spans_of_every_step_under_the_callers(tmp_path: Path, collector: Collector) -> None:
    write_model(tmp_path, "plus_one")
    write_ensemble(tmp_path, "plus_two", ["plus_one"])
    tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}
    # At this rate the first requests are traced only where their caller's are.
    with running(tmp_path, device="cpu", trace=collector.url, trace_rate=1000) as server:
        for number in range(3):
            body = {"id": f"plain-{number}", "inputs": [tensor]}
            assert http_request(server, "POST", "/v2/models/plus_two/infer", body).status == 200
        connection = http.client.HTTPConnection(server.http_address, timeout=10)
        body = {"id": "followed", "inputs": [tensor]}
        headers = {"traceparent": PARENT, "Content-Type": "application/octet-stream"}
        connection.request("POST", "/v2/models/plus_two/infer", json.dumps(body), headers)
        assert connection.getresponse().status == 200
        connection.close()
        wait_until(lambda: any(span["name"] == "InferRequest" for span in collector.spans))
    by_id = {span["spanId"]: span for span in collector.spans}
    _, trace_id, parent_id, _ = PARENT.split("-")
    assert {span["traceId"] for span in by_id.values()} == {trace_id}
    (root,) = (span for span in by_id.values() if span["name"] == "InferRequest")
    assert root["parentSpanId"] == parent_id
    models = {span["name"]: span for span in by_id.values() if attributes(span)}
    assert {name: attributes(span)["triton.request_id"] for name, span in models.items()} == {
        "plus_two": "followed",
        "plus_one": "followed",
    }
    assert by_id[models["plus_one"]["parentSpanId"]] is models["plus_two"]
    assert by_id[models["plus_two"]["parentSpanId"]] is root


@pytest.mark.slow
@pytest.mark.needs_triton
def test_a_collector_that_does_not_answer_costs_no_request(tmp_path: Path) -> None:
    write_model(tmp_path, "plus_one")
    said: list[str] = []
    events: list[str] = []
    url = f"http://127.0.0.1:{free_port('127.0.0.1')}/v1/traces"
    with Server(tmp_path, **FREE_PORTS, device="cpu", trace=url, on_event=events.append, on_log=said.append) as server:
        assert output(infer(server, "plus_one", 1.0)) == 2.0
    assert events == [f"the collector {url} takes no traces now, they are lost: [Errno 111] Connection refused"]
    # Triton's library writes these in blocks, so they may come only now.
    reader = LogReader(is_model=lambda _: False)
    records = [record for line in said for record in reader.read(line)]
    assert any(record.level == "error" and "OTLP HTTP Client" in record.message for record in records)


@pytest.mark.slow
@pytest.mark.needs_triton
def test_a_stop_loses_no_span_of_a_trace_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Where there is a proxy for the internet, spans must not go to it.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "internal.example")
    write_model(tmp_path / "models", "plus_one")
    path = tmp_path / "trace.jsonl"
    tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}
    with Server(tmp_path / "models", **FREE_PORTS, device="cpu", trace=str(path), trace_rate=2) as server:
        for number in range(20):
            body = {"id": str(number), "inputs": [tensor]}
            assert http_request(server, "POST", "/v2/models/plus_one/infer", body).status == 200
    spans = spans_of(path.read_text().splitlines())
    # One of two.
    assert sum(span["name"] == "InferRequest" for span in spans) == 10
    assert len({attributes(span)["triton.request_id"] for span in spans if attributes(span)}) == 10
