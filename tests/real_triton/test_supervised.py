"""A process of a server is killed or stopped under load: requests end, readiness tells, and all answers again."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
from patience import PATIENCE_S, wait_until

from onestream.client import Client, OnestreamError
from onestream.serving.server.server import Server

pytestmark = [pytest.mark.needs_triton, pytest.mark.slow]
DEADLINE_S = 5.0


@pytest.mark.parametrize(
    ("victim", "pipeline", "how"),
    [
        ("classify_fused", "classify_fused", signal.SIGKILL),
        ("classify_preprocess", "classify", signal.SIGSTOP),
        ("classify_fused", "classify_fused", signal.SIGSTOP),
        ("classify_preprocess", "classify", signal.SIGKILL),
        ("classify_model", "classify", signal.SIGKILL),
        ("classify_model", "classify", signal.SIGSTOP),
    ],
)
def test_a_killed_or_stopped_model_process_is_replaced(
    repository: Path, photos: dict[str, bytes], victim: str, pipeline: str, how: signal.Signals
) -> None:
    with Server(repository, http_port=0, grpc_port=0, metrics_port=0, models=[pipeline]) as server:
        stop = threading.Event()
        errors: list[OnestreamError] = []

        def load() -> None:
            with Client(server.grpc_url, timeout_s=DEADLINE_S, retries=0) as client:
                while not stop.is_set():
                    try:
                        client.classify(photos["coffee"], pipeline=pipeline)
                    except OnestreamError as error:
                        errors.append(error)
                        time.sleep(0.01)

        threads = [threading.Thread(target=load, daemon=True) for _ in range(8)]
        for thread in threads:
            thread.start()
        try:
            time.sleep(1.0)
            assert not errors
            triton = server.pid
            os.kill(_process_of(server, victim), how)
            with Client(server.http_url, timeout_s=DEADLINE_S, retries=0) as probe:
                wait_until(lambda: not probe.is_ready(), "the server is not ready while a model is dead")
                wait_until(lambda: probe.is_ready() and _answers(probe, photos["coffee"], pipeline), "it answers again")
        finally:
            stop.set()
            for thread in threads:
                thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in threads), "a request goes on beyond its deadline"
        assert server.restarts == {victim: 1}
        assert server.pid == triton, "tritonserver had to be started again"


def test_a_triton_that_is_killed_at_work_is_started_again_and_nothing_is_left_of_it(
    repository: Path, photos: dict[str, bytes]
) -> None:
    events: list[str] = []
    with Server(
        repository, http_port=0, grpc_port=0, metrics_port=0, models=["classify_fused"], on_event=events.append
    ) as server:
        address = server.grpc_url
        processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
        with Client(server.grpc_url, timeout_s=DEADLINE_S, retries=0) as client:
            items = client.classify_many([photos["coffee"]] * 400, pipeline="classify_fused", in_flight=16)
            for _ in range(50):
                next(items)
            os.kill(server.pid, signal.SIGKILL)
            assert any(item.error is not None for item in items)
            _, alive = psutil.wait_procs(processes, timeout=PATIENCE_S)
            assert not alive
            wait_until(lambda: _answers(client, photos["coffee"], "classify_fused"), events)
        assert server.grpc_url == address
        assert any("tritonserver was killed (SIGKILL)" in event for event in events)


def _process_of(server: Server, model: str) -> int:
    for child in psutil.Process(server.pid).children(recursive=True):
        if any(f"/{model}/" in argument for argument in child.cmdline()):
            return child.pid
    raise AssertionError(f"no process of {model}")


def _answers(client: Client, image: bytes, pipeline: str) -> bool:
    try:
        return client.classify(image, pipeline=pipeline).top.label == "espresso"
    except OnestreamError:
        return False
