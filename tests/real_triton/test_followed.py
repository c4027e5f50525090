"""One id is followed from the client's call to the server's log and its trace; docs/monitoring.md shows how."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pages import blocks
from patience import wait_until
from proxies import plain_proxy
from trace_collector import Collector, Traced, collecting

from onestream.client import AsyncClient, BadImage, Client

pytestmark = [pytest.mark.needs_triton, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
*_, SERVE, LOOK = blocks("monitoring.md", "bash")
ONESTREAM = [sys.executable, "-m", "onestream"]


@dataclass(frozen=True)
class Running:
    """The command of the page, at work in ``folder``; ``ready`` is what it said on stdout."""

    folder: Path
    ready: dict[str, Any]
    collector: Collector

    @property
    def log(self) -> list[dict[str, Any]]:
        """Every line on stderr so far."""
        return [json.loads(line) for line in (self.folder / "serve.log").read_text().splitlines()]

    def said_of(self, request_id: str) -> list[dict[str, Any]]:
        """The log's lines about a request, as soon as there are any."""
        wait_until(lambda: any(line.get("request_id") == request_id for line in self.log))
        return [line for line in self.log if line.get("request_id") == request_id]

    def traced(self, request_id: str) -> Traced:
        return self.collector.request(request_id)


def expect_parent(running: Running, protocol: str, name: str, send: Callable[[str, str], object]) -> None:
    """Expect Triton's spans under the caller's, whose traceparent and request id ``send`` is called with."""
    # Over gRPC, Triton 2.51 overlooks the parent of up to 15 of 100 requests (docs/monitoring.md).
    for attempt in range(5 if protocol == "grpc" else 1):
        trace_id, request_id = secrets.token_hex(16), f"{name}.{attempt}"
        send(f"00-{trace_id}-b7ad6b7169203331-01", request_id)
        if running.traced(request_id).trace_id == trace_id:
            return
    pytest.fail(f"{name}: the caller's trace is not Triton's")


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


@pytest.fixture(scope="module")
def running(repository: Path, collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("followed")
    (folder / "examples").symlink_to(ROOT / "examples")
    command, log = SERVE.strip().replace("http://127.0.0.1:4318/v1/traces", collector.url).split(" 2> ")
    options = ["--shared-memory", "--http-port=0", "--grpc-port=0", "--metrics-port=0", f"--repository={repository}"]
    options += ["--model=classify", "--model=classify_fused", "--device=cpu", f"--log-file={folder / 'triton.log'}"]
    with (folder / log).open("w") as stderr:
        process = subprocess.Popen(
            [*ONESTREAM, *shlex.split(command)[1:], *options],
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        assert process.stdout is not None
        try:
            yield Running(folder, json.loads(process.stdout.readline()), collector)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == 0
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
    lines = [json.loads(line) for line in (folder / log).read_text().splitlines()]
    assert lines[-1]["message"] == "stopped"


@pytest.mark.parametrize("protocol", ["grpc_url", "http_url"])
@pytest.mark.parametrize(("pipeline", "refused_by"), [("classify", "classify_preprocess"), ("classify_fused",) * 2])
def test_one_id_goes_from_the_call_to_the_log_and_the_trace(
    running: Running, protocol: str, pipeline: str, refused_by: str
) -> None:
    good, bad = f"{protocol}:{pipeline}:good", f"{protocol}:{pipeline}:bad"
    with Client(running.ready[protocol], timeout_s=30) as client:
        photo = ROOT / "examples" / "photos" / "coffee.jpg"
        result = client.classify(photo, pipeline=pipeline, request_id=good)
        with pytest.raises(BadImage) as failure:
            client.classify(b"not an image", pipeline=pipeline, request_id=bad)
    assert (result.request_id, failure.value.request_id) == (good, bad)

    (line,) = running.said_of(bad)
    assert (line["level"], line["source"], line["message"]) == ("warning", refused_by, str(failure.value))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", line["time"])

    (called,) = running.traced(good).below
    steps = ["classify_preprocess", "classify_model", "classify_postprocess"] if pipeline == "classify" else []
    assert (called.model, [step.model for step in called.below]) == (pipeline, steps)
    assert all(step.total_ms <= called.total_ms for step in called.below)
    (called,) = running.traced(bad).below
    assert [step.model for step in called.below] == [refused_by] * (pipeline == "classify")


@pytest.mark.parametrize("shared_memory", [False, True])
def test_a_callers_span_is_the_parent_over_every_way(running: Running, shared_memory: bool) -> None:
    photo = ROOT / "examples" / "photos" / "cat.jpg"

    def send(url: str, asynchronous: bool, traceparent: str, request_id: str) -> None:
        options: dict[str, Any] = {"request_id": request_id, "traceparent": traceparent}

        async def call() -> None:
            async with AsyncClient(url, timeout_s=30, shared_memory=shared_memory) as client:
                await client.infer("classify_fused", photo, **options)

        if asynchronous:
            asyncio.run(call())
        else:
            with Client(url, timeout_s=30, shared_memory=shared_memory) as client:
                client.infer("classify_fused", photo, **options)

    for protocol in ("grpc", "http"):
        for asynchronous in (False, True):
            name = f"{protocol}.{asynchronous}.{shared_memory}"
            expect_parent(running, protocol, name, partial(send, running.ready[f"{protocol}_url"], asynchronous))


@pytest.mark.needs_nginx
def test_a_proxy_passes_id_and_parent_on(running: Running, tmp_path: Path) -> None:
    photo = ROOT / "examples" / "photos" / "cat.jpg"
    servers = {name: running.ready[f"{name}_url"].split("//")[1] for name in ("http", "grpc")}

    def send(url: str, traceparent: str, request_id: str) -> None:
        with Client(url, timeout_s=30, max_body_bytes=1 << 20) as client:
            client.classify(photo, request_id=request_id, traceparent=traceparent)

    with plain_proxy(tmp_path / "output", **servers) as addresses:
        for protocol, address in zip(("http", "grpc"), addresses, strict=True):
            expect_parent(running, protocol, f"behind-{protocol}", partial(send, f"{protocol}://{address}"))


def test_an_id_of_another_client_cannot_forge_a_line(running: Running) -> None:
    import tritonclient.grpc
    from tritonclient.utils import InferenceServerException

    tensor = tritonclient.grpc.InferInput("image", [1, 3], "UINT8")
    tensor._raw_content = b"bad"
    forged = 'x"}\n{"level": "fatal"} \x1b[2J'
    with (
        tritonclient.grpc.InferenceServerClient(running.ready["grpc_url"].removeprefix("grpc://")) as client,
        pytest.raises(InferenceServerException),
    ):
        client.infer("classify_fused", [tensor], request_id=forged)
    (line,) = running.said_of("x%22%7D%0A%7B%22level%22:%20%22fatal%22%7D%20%1B%5B2J")
    assert line["source"] == "classify_fused"
    assert "\x1b" not in (running.folder / "triton.log").read_text()


def test_the_page_shows_what_happens(running: Running) -> None:
    (program,) = blocks("monitoring.md", "python")
    program = program.replace("127.0.0.1:8001", running.ready["grpc_url"], 1)

    def run(command: list[str]) -> str:
        done = subprocess.run(
            command, cwd=running.folder, env=environment(), capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run([sys.executable, "-c", program]).splitlines() == [
        "order-4711 Egyptian cat",
        "order-4712 unsupported_format",
    ]
    running.said_of("order-4712")
    running.traced("order-4711")
    *_, shown = blocks("monitoring.md", "text")
    assert without_numbers(run(shlex.split(LOOK))) == without_numbers(shown)


def without_numbers(text: str) -> list[str]:
    """The lines without times and line numbers."""
    return re.sub(r"\d+-\d\d-\d\dT[\d:.]+Z|refusal_log.py:\d+", " ", text).splitlines()
