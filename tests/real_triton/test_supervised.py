"""A model process is killed under load: requests end, readiness tells, and the model answers again."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from client import Client, OnestreamError
from serving.server import Server
from serving.server_errors import TritonDied

pytestmark = [pytest.mark.needs_triton, pytest.mark.slow]
DEADLINE_S = 5.0
RECOVERY_S = 5.0


@pytest.mark.parametrize(
    ("victim", "pipeline"),
    [("classify_fused", "classify_fused"), ("classify_preprocess", "classify"), ("classify_model", "classify")],
)
def test_a_killed_model_process_is_replaced(
    repository: Path, photos: dict[str, bytes], victim: str, pipeline: str
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
            killed_at = time.monotonic()
            os.kill(_process_of(server, victim), signal.SIGKILL)
            with Client(server.http_url, timeout_s=DEADLINE_S, retries=0) as probe:
                seen_unready = False
                while time.monotonic() - killed_at < 15.0:
                    ready = probe.is_ready()
                    seen_unready = seen_unready or not ready
                    if seen_unready and ready and _answers(probe, photos["coffee"], pipeline):
                        break
                    time.sleep(0.02)
                recovered_s = time.monotonic() - killed_at
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert seen_unready, "the server stayed ready while a model was dead"
        assert recovered_s < RECOVERY_S
        assert slowest_s[0] < DEADLINE_S + 1.0
        assert server.restarts == {victim: 1}


def test_nothing_is_left_of_a_server_that_is_killed_at_work(repository: Path, photos: dict[str, bytes]) -> None:
    with Server(repository, http_port=0, grpc_port=0, metrics_port=0, models=["classify_fused"]) as server:
        processes = psutil.Process(server.pid).children(recursive=True)
        with Client(server.grpc_url, timeout_s=DEADLINE_S, retries=0) as client:
            items = client.classify_many([photos["coffee"]] * 400, pipeline="classify_fused", in_flight=16)
            for _ in range(50):
                next(items)
            os.kill(server.pid, signal.SIGKILL)
            assert any(item.error is not None for item in items)
        _, alive = psutil.wait_procs(processes, timeout=10)
        assert not alive
        with pytest.raises(TritonDied, match="SIGKILL"):
            server.wait(timeout_s=10)


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
