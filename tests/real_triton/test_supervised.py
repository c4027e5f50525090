"""A process of a server is killed or stopped under load: requests end, readiness tells, and all answers again."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from onestream.client import Client, OnestreamError
from onestream.serving.server.server import Server

pytestmark = [pytest.mark.needs_triton, pytest.mark.slow]
DEADLINE_S = 5.0
RECOVERY_DEADLINE_S = 120.0  # for a very busy machine


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize(
    ("victim", "pipeline"),
    [("classify_fused", "classify_fused"), ("classify_preprocess", "classify"), ("classify_model", "classify")],
)
def test_a_killed_or_stopped_model_process_is_replaced(
    repository: Path, photos: dict[str, bytes], victim: str, pipeline: str, how: signal.Signals
) -> None:
    with Server(repository, http_port=0, grpc_port=0, metrics_port=0, models=[pipeline]) as server:
        stop = threading.Event()
        slowest_s = [0.0]
        errors: list[OnestreamError] = []

        def load() -> None:
            with Client(server.grpc_url, timeout_s=DEADLINE_S, retries=0) as client:
                while not stop.is_set():
                    began = time.monotonic()
                    try:
                        client.classify(photos["coffee"], pipeline=pipeline)
                    except OnestreamError as error:
                        errors.append(error)
                        time.sleep(0.01)
                    slowest_s[0] = max(slowest_s[0], time.monotonic() - began)

        threads = [threading.Thread(target=load) for _ in range(8)]
        for thread in threads:
            thread.start()
        try:
            time.sleep(1.0)
            assert not errors
            triton, killed_at = server.pid, time.monotonic()
            os.kill(_process_of(server, victim), how)
            with Client(server.http_url, timeout_s=DEADLINE_S, retries=0) as probe:
                seen_unready = recovered = False
                while time.monotonic() - killed_at < RECOVERY_DEADLINE_S:
                    ready = probe.is_ready()
                    seen_unready = seen_unready or not ready
                    if seen_unready and ready and _answers(probe, photos["coffee"], pipeline):
                        recovered = True
                        break
                    time.sleep(0.02)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert seen_unready, "the server stayed ready while a model was dead"
        assert recovered
        assert slowest_s[0] < DEADLINE_S + 1.0
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
            _, alive = psutil.wait_procs(processes, timeout=30)
            assert not alive
            deadline = time.monotonic() + RECOVERY_DEADLINE_S
            while not _answers(client, photos["coffee"], "classify_fused"):
                assert time.monotonic() < deadline, events
                time.sleep(0.1)
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
