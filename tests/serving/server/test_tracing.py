"""A server's spans go to a collector, the last ones when it stops."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from builds import build
from clip_files import write_video
from small_models import FREE_PORTS, http_request, write_model
from streamed import STREAMED
from trace_collector import Collector, attributes, collecting

from onestream.client import Client, OnestreamError
from onestream.serving.server.server import Server
from onestream.serving.server.tracing import Tracing
from onestream.serving.server.triton.load_failures import models_unloaded

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
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    # Where there is a proxy for the internet, spans must not go to it.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with collecting() as made:
        yield made


def test_a_collector_is_asked_whether_it_takes_traces(collector: Collector) -> None:
    assert Tracing(url=collector.url).complaint() is None
    assert Tracing(url=collector.url.replace("traces", "metrics")).complaint() == "it answers 404"
    assert collector.spans == []


@pytest.mark.slow
@pytest.mark.needs_triton
def test_a_stop_ends_streams_and_loses_no_span(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One stream waits for its caller, one has ended early; neither holds the stop back until its limit.

    Triton 2.51 now and then keeps a request of a stream that ended in this moment; then the limit ends the stop, so one
    of three must do without.
    """
    monkeypatch.setenv("NO_PROXY", "internal.example")
    repository, clip = tmp_path / "repository", write_video(tmp_path / "clip.mp4", "libx264")
    write_model(repository, "plus_one")
    build(tmp_path / "streamed.yaml", folder=repository, onnx_file=STREAMED.write(tmp_path))
    tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}
    options = {"models": ["plus_one", *STREAMED.models], "trace": collector.url, "trace_rate": 2, "stop_timeout_s": 60}
    for log in (tmp_path / f"{number}.log" for number in range(3)):
        collector.bodies.clear()
        with (
            Server(repository, **FREE_PORTS, device="cpu", log_path=log, **options) as server,
            Client(server.grpc_url, timeout_s=20) as client,
        ):
            client.stream(clip, pipeline="streamed").open().close()
            waiting = client.stream(clip, pipeline="streamed", results=1).open()
            assert next(waiting).frame_index == 0
            for number in range(20):
                body = {"id": str(number), "inputs": [tensor]}
                assert http_request(server, "POST", "/v2/models/plus_one/infer", body).status == 200
            server.stop()
            with pytest.raises(OnestreamError):
                list(waiting)
            waiting.close()
        if models_unloaded(log.read_text()):
            break
    else:
        pytest.fail("each stop took as long as it may")
    roots = {span["spanId"] for span in collector.spans if span["name"] == "InferRequest"}
    traced = [span for span in collector.spans if span["name"] == "plus_one" and span["parentSpanId"] in roots]
    numbers = {int(attributes(span)["triton.request_id"]) for span in traced}
    # One of two, where a message of the stream may come between.
    assert 9 <= len(numbers) == len(traced) <= 11
    assert max(numbers) >= 18
