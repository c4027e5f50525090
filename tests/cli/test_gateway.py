"""``onestream gateway`` before the shared server, and before a client that waits, fails or is slow."""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import re
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pages import ROOT, Shell, blocks
from patience import PATIENCE_S
from shared_server import SharedServer
from typer.testing import CliRunner
from web_services import ServiceThread

from onestream.cli.gateway import app as gateway_app
from onestream.cli.gateway.bodies import MOST_IMAGES
from onestream.cli.gateway.command import gateway
from onestream.cli.main import app
from onestream.client import Client, ServerFailed, TimedOut

PAGE = "https://app.example.com"
COFFEE = (ROOT / "examples" / "photos" / "coffee.jpg").read_bytes()
TEXT = base64.b64encode(COFFEE).decode()
CLASSIFY = "/v1/pipelines/classify"


def form(*fields: str, content: bytes = COFFEE) -> tuple[bytes, dict[str, str]]:
    """The body and headers of a form; of ``fields`` each is a name, with or without a file's name."""
    parts = [f"--X\r\nContent-Disposition: form-data; {field}\r\n\r\n".encode() + content + b"\r\n" for field in fields]
    return b"".join([*parts, b"--X--\r\n"]), {"Content-Type": "multipart/form-data; boundary=X"}


FILE = 'name="file"; filename="a.jpg"'


@pytest.fixture(scope="module")
def running(server: SharedServer) -> Iterator[ServiceThread]:
    def command() -> None:
        gateway(url=server.grpc_address, port=0, allow_origin=[PAGE], concurrency=4, timeout_s=60)

    with ServiceThread(command) as running:
        yield running


@pytest.fixture(scope="module")
def expected(server: SharedServer) -> dict[str, Any]:
    with Client(server.grpc_address, timeout_s=60) as client:
        return client.classify(COFFEE).to_dict()


def result(said: dict[str, Any]) -> dict[str, Any]:
    """What does not differ from request to request."""
    return {name: value for name, value in said.items() if name not in ("request_id", "latency_ms")}


@pytest.mark.needs_triton
def test_every_form_of_an_image_has_the_client_s_result(running: ServiceThread, expected: dict[str, Any]) -> None:
    forms = ({}, {"Content-Type": "application/x-www-form-urlencoded"}, {"Content-Type": "no/such; type"})
    texts = (TEXT, base64.encodebytes(COFFEE).decode(), f"data:image/jpeg;base64,{TEXT}")
    for body, headers in (
        *((COFFEE, headers) for headers in forms),
        form(FILE),
        *((json.dumps({"image": text}).encode(), {"Content-Type": "text/plain"}) for text in texts),
    ):
        status, _, content = running.send("POST", CLASSIFY, body, headers)
        assert (status, result(json.loads(content))) == (200, result(expected)), headers
    images = [TEXT, "no base64!", base64.b64encode(b"no image").decode(), 7, TEXT]
    status, found = running.ask(CLASSIFY, json.dumps({"images": images}).encode())
    assert status == 200
    first, *bad, last = found["results"]
    assert result(first) == result(last) == result(expected)
    assert [one["error"]["code"] for one in bad] == ["bad_request", "unsupported_format", "bad_request"]


@pytest.mark.needs_triton
def test_query_parameters_are_the_pipeline_s(running: ServiceThread, expected: dict[str, Any]) -> None:
    status, found = running.ask(f"{CLASSIFY}?top_k=1", COFFEE)
    assert (status, found["labels"]) == (200, expected["labels"][:1])
    for query, text in (("top_k=99", "whole number from 1 to 5"), ("top_k=x", "NAME=NUMBER"), ("a=1&a=2", "twice")):
        status, found = running.ask(f"{CLASSIFY}?{query}", COFFEE)
        assert (status, found["error"]["code"]) == (400, "invalid_request"), query
        assert text in found["error"]["reason"]


@pytest.mark.needs_triton
def test_what_is_no_image_is_told_apart(running: ServiceThread) -> None:
    bodies = (b"{", b"[" * 100_000, b'{"image": "", "top_k": 1}', b'{"image": "a,b"}')
    cases = [
        ((b"", {}), 400, "empty"),
        ((b"not an image", {}), 400, "unsupported_format"),
        ((COFFEE[:2000], {}), 400, "corrupt"),
        *(((body, {}), 400, "bad_request") for body in bodies),
        ((json.dumps({"images": [""] * (MOST_IMAGES + 1)}).encode(), {}), 400, "bad_request"),
        (form(FILE, FILE), 400, "bad_request"),
        (form('name="top_k"', content=b"1"), 400, "bad_request"),
        ((b"no form", {"Content-Type": "multipart/form-data; boundary=X"}), 400, "bad_request"),
        ((b"no form", {"Content-Type": "multipart/form-data"}), 400, "bad_request"),
        ((bytes((32 << 20) + 1), {}), 413, "too_large"),
        ((bytes((64 << 20) + 1), {}), 413, "too_large"),
        (form(FILE, content=bytes((64 << 20) + 1)), 413, "too_large"),
    ]
    for number, ((body, headers), *expected) in enumerate(cases):
        status, _, content = running.send("POST", CLASSIFY, body, headers)
        assert [status, json.loads(content)["error"]["code"]] == expected, (number, content)


@pytest.mark.needs_triton
def test_what_is_served_is_listed_and_what_is_not_is_named(running: ServiceThread) -> None:
    status, found = running.ask("/v1/pipelines")
    (classify,) = (one for one in found["pipelines"] if one["name"] == "classify")
    assert (status, classify["kind"], classify["max_body_bytes"]) == (200, "classification", 32 << 20)
    assert classify["parameters"] == {"top_k": {"minimum": 1, "maximum": 5}}
    status, found = running.ask("/v1/pipelines/absent", COFFEE)
    assert (status, found["error"]["code"]) == (404, "unknown_pipeline")
    assert {"classify", "classify_fused"} <= {*found["error"]["reason"].replace(",", "").split()}
    assert running.ask("/health") == (200, {"status": "ok"})
    assert running.ask("/absent")[1] == {"error": {"code": "not_found", "reason": "GET /absent"}}
    assert running.ask(CLASSIFY)[0] == 405


@pytest.mark.needs_triton
def test_pages_of_allowed_origins_may_ask_and_no_others(running: ServiceThread) -> None:
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    status, headers, _ = running.send("OPTIONS", CLASSIFY, headers={"Origin": PAGE, **asks})
    assert (status, headers["Access-Control-Allow-Origin"], headers["Vary"]) == (204, PAGE, "Origin")
    assert headers["Access-Control-Allow-Methods"] == "GET, POST"
    assert headers["Access-Control-Allow-Headers"] == "Content-Type"
    for body, expected in ((COFFEE, 200), (b"x", 400)):
        status, headers, _ = running.send("POST", CLASSIFY, body, {"Origin": PAGE})
        assert (status, headers["Access-Control-Allow-Origin"]) == (expected, PAGE)
    for refused in ({"Origin": "https://attacker.example"}, {"Origin": "null"}, {"Host": "attacker.example"}):
        for method, more in (("OPTIONS", asks), ("POST", {})):
            status, headers, content = running.send(method, CLASSIFY, COFFEE, {**refused, **more})
            assert (status, json.loads(content)["error"]["code"]) == (403, "forbidden")
            assert "Access-Control-Allow-Origin" not in headers
    assert running.ask(CLASSIFY, COFFEE, Origin=running.url.rstrip("/"))[0] == 200


@pytest.mark.needs_triton
def test_the_openapi_document_names_the_routes(running: ServiceThread) -> None:
    status, document = running.ask("/openapi.json")
    assert (status, document["openapi"]) == (200, "3.1.0")
    assert {(path, *methods) for path, methods in document["paths"].items()} == {
        ("/v1/pipelines/{name}", "post"),
        ("/v1/pipelines", "get"),
        ("/health", "get"),
    }
    text = json.dumps(document)
    for reference in re.findall(r'"\$ref": "#/([^"]+)"', text):
        assert functools.reduce(dict.__getitem__, reference.split("/"), document)
    assert {*re.findall(r'"maxItems": (\d+)', text)} == {str(MOST_IMAGES)}
    status, headers, page = running.send("GET", "/docs")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert b"<script" not in page
    assert b"src=" not in page


@pytest.mark.needs_triton
def test_the_commands_of_the_page_run(running: ServiceThread, tmp_path: Path) -> None:
    start, ask = (block for block in blocks("client.md", "bash") if "gateway" in block or "8080" in block)
    assert [line.split()[:2] for line in start.splitlines()] == [["onestream", "gateway"]] * 2
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    script = ask.replace("127.0.0.1:8080", f"127.0.0.1:{running.port}").replace("curl -s", "curl -s -w '\\n'")
    listed, whole, first, single, batch = map(json.loads, Shell(tmp_path).line(script).splitlines())
    assert {"classify", "classify_fused"} <= {one["name"] for one in listed["pipelines"]}
    assert result(whole) == result(single)
    assert first["labels"] == whole["labels"][:1] == ["espresso"]
    assert [one["labels"][0] for one in batch["results"]] == ["espresso", batch["results"][1]["labels"][0]]


class StandIn:
    """A client whose pipelines wait, fail or raise something of their own."""

    waiting = threading.Semaphore(0)
    cancelled = threading.Event()

    def __init__(self, _url: str, *, timeout_s: float | None) -> None:
        assert timeout_s is None

    async def max_body_bytes(self, _pipeline: str) -> int:
        return 1000

    async def predict(self, _image: bytes, *, pipeline: str, inputs: Any, parameters: dict[str, float]) -> Any:
        assert inputs == parameters == {}
        failures = {"slow": TimedOut("no answer"), "failed": ServerFailed("it", status="INTERNAL")}
        if pipeline != "wait":
            raise failures.get(pipeline, RuntimeError("a secret"))
        self.waiting.release()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def is_ready(self) -> bool:
        return False

    async def close(self) -> None:
        pass


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceThread]:
    monkeypatch.setattr(gateway_app, "AsyncClient", StandIn)
    monkeypatch.setattr(gateway_app, "OPEN_PER_IMAGE", 1)
    with ServiceThread(lambda: gateway(port=0, concurrency=1)) as running:
        yield running


def opened(running: ServiceThread, body: bytes) -> socket.socket:
    """A connection with a request that is being answered, of 10 bytes."""
    connection = socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE_S)
    head = f"POST /v1/pipelines/wait HTTP/1.1\r\nHost: 127.0.0.1:{running.port}\r\nContent-Length: 10\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def test_a_caller_that_is_gone_frees_its_place(stand_in: ServiceThread) -> None:
    with opened(stand_in, b"0123456789"):
        assert StandIn.waiting.acquire(timeout=PATIENCE_S)
        status, headers, content = stand_in.send("POST", CLASSIFY, COFFEE)
        assert (status, headers["Retry-After"], json.loads(content)["error"]["code"]) == (429, "1", "overloaded")
    assert StandIn.cancelled.wait(PATIENCE_S)


def test_failures_have_their_status_and_tell_no_more(stand_in: ServiceThread, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {"slow": (504, "timeout"), "failed": (502, "server_failed"), "broken": (500, "internal")}
    for name, (status, code) in expected.items():
        seen, found = stand_in.ask(f"/v1/pipelines/{name}", b"x")
        assert (seen, found["error"]["code"]) == (status, code)
        assert "secret" not in found["error"]["reason"]
    # An input that cannot be read is named once, whatever the number of images that it goes with.
    for inputs, reason in (
        ({"second": "photo.jpg"}, "second: not base64"),
        ({"points": [[1, 2], [3]]}, "points: rows of different lengths, or too deep"),
    ):
        body = json.dumps({"images": ["eA=="] * 3, "inputs": inputs}).encode()
        assert stand_in.ask(CLASSIFY, body) == (400, {"error": {"code": "bad_request", "reason": reason}})
    assert stand_in.ask("/health")[0] == 503
    monkeypatch.setattr(gateway_app, "_BODY_S", 0.01)
    with opened(stand_in, b"012") as connection:
        assert connection.recv(1000).startswith(b"HTTP/1.1 408 ")


def test_what_cannot_be_started_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [
        (["--host", "0.0.0.0"], "lets other machines reach the gateway"),
        (["--url", "http://127.0.0.1:8000"], "expected host:port of Triton's gRPC service"),
        (["--allow-origin", "https://app.example.com/"], "without a path"),
    ]
    for arguments, text in cases:
        done = CliRunner().invoke(app, ["gateway", *arguments])
        assert (done.exit_code, text in done.stderr) == (2, True), done.stderr
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    done = CliRunner().invoke(app, ["gateway"])
    assert "aiohttp is not installed. Run: pip install -e '.[demo]'" in done.stderr
