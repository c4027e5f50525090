"""Small models that the server tests load, and requests to them. A model answers ``y = x + 1``."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patience import PATIENCE_S, wait_until
from shared_server import SharedServer

from onestream.serving.server.server import Server
from onestream.serving.server.triton.model_processes import ModelProcess, find_model_processes, read_stat

FREE_PORTS = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}

_MODEL = """\
import os, threading, time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        {initialize}

    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            {execute}
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x + 1)]))
        return responses
"""

_CONFIG = """\
name: "{name}"
{kind}
max_batch_size: 8
input [{{ name: "x" data_type: TYPE_FP32 dims: [1] }}]
output [{{ name: "y" data_type: TYPE_FP32 dims: [1] }}]
"""


def write_model(
    repository: Path, name: str, *, initialize: str = "pass", execute: str = "pass", instances: int = 1
) -> Path:
    """Write a model that runs these statements when it loads and for every request; return its folder."""
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(_MODEL.format(initialize=initialize, execute=execute))
    group = f"instance_group [{{ kind: KIND_CPU count: {instances} }}]\ndynamic_batching {{}}\n"
    (folder / "config.pbtxt").write_text(_CONFIG.format(name=name, kind='backend: "python"') + group)
    return folder


def write_ensemble(repository: Path, name: str, steps: list[str]) -> None:
    (repository / name / "1").mkdir(parents=True)
    tensors = ["x", *(f"after_{step}" for step in steps[:-1]), "y"]
    parts = [
        f'{{ model_name: "{step}" model_version: -1 '
        f'input_map {{ key: "x" value: "{before}" }} output_map {{ key: "y" value: "{after}" }} }}'
        for step, before, after in zip(steps, tensors[:-1], tensors[1:], strict=True)
    ]
    scheduling = f"ensemble_scheduling {{ step [{', '.join(parts)}] }}\n"
    (repository / name / "config.pbtxt").write_text(_CONFIG.format(name=name, kind='platform: "ensemble"') + scheduling)


def write_plus_one_and_two(repository: Path) -> None:
    """Write a model, and an ensemble of it alone."""
    write_model(repository, "plus_one")
    write_ensemble(repository, "plus_two", ["plus_one"])


def of_no_gpu(model_folder: Path) -> None:
    """Let only the configuration of a machine without a GPU name a backend that there is."""
    config = model_folder / "config.pbtxt"
    (model_folder / "configs").mkdir()
    (model_folder / "configs" / "cpu.pbtxt").write_text(config.read_text())
    config.write_text(config.read_text().replace('"python"', '"no_such_backend"'))


def write_stub(model_folder: Path, script: str) -> None:
    """Make Triton start this shell script as the model's process. ``$@`` are the arguments of the real one."""
    stub = model_folder / "triton_python_backend_stub"
    # Triton first runs a stub without arguments, and expects it to exit with 1.
    stub.write_text(f"#!/bin/bash\n[ $# -eq 0 ] && exit 1\n{script}\n")
    stub.chmod(0o755)


@contextmanager
def running(repository: Path, **options: Any) -> Iterator[Server]:
    """A server on free ports, killed at the end: for tests that are not about stopping, which takes 2 s."""
    # A start takes long where the machine is busy; the one that never comes fails after this.
    server = Server(repository, **FREE_PORTS, **{"startup_timeout_s": 600.0, **options})
    server.start()
    try:
        yield server
    finally:
        server.request_stop()
        server.request_stop()
        server.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How a request ended: its HTTP status, what came back, and when (``time.monotonic``)."""

    status: int
    body: str
    began: float
    ended: float


def http_request(
    server: Server | SharedServer, method: str, path: str, body: object = None, *, timeout_s: float = 10.0
) -> Answer:
    """Send a request over a connection of its own. Raises TimeoutError when no answer comes in time."""
    began = time.monotonic()
    host, port = server.http_address.rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port), timeout=timeout_s)
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        response = connection.getresponse()
        text = response.read().decode()
    finally:
        connection.close()
    return Answer(status=response.status, body=text, began=began, ended=time.monotonic())


def infer(server: Server | SharedServer, model: str, x: float = 1.0, *, timeout_s: float = 10.0) -> Answer:
    tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [x]}
    return http_request(server, "POST", f"/v2/models/{model}/infer", {"inputs": [tensor]}, timeout_s=timeout_s)


def output(answer: Answer) -> float:
    assert answer.status == 200, answer.body
    return float(json.loads(answer.body)["outputs"][0]["data"][0])


def is_ready(server: Server | SharedServer, model: str | None = None) -> bool:
    path = "/v2/health/ready" if model is None else f"/v2/models/{model}/ready"
    return http_request(server, "GET", path).status == 200


def is_gone(pid: int) -> bool:
    stat = read_stat(pid)
    return stat is None or stat.is_zombie


def processes_of(server: Server, model: str) -> list[ModelProcess]:
    return [process for process in find_model_processes(server.pid).running if process.model == model]


def kill_one(server: Server, model: str) -> ModelProcess:
    process = processes_of(server, model)[0]
    os.kill(process.pid, signal.SIGKILL)
    return process


class Load:
    """Clients that ask a model again and again, each with a deadline. A context manager."""

    def __init__(self, server: Server, model: str) -> None:
        self._server, self._model = server, model
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(4)]
        self.answers: list[Answer] = []
        self.late: list[str] = []

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        wait_until(lambda: len(self.answers) >= len(self._threads))
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        while not self._stopping.is_set():
            try:
                answer = infer(self._server, self._model, timeout_s=PATIENCE_S)
            except (OSError, http.client.HTTPException) as error:
                self.late.append(repr(error))
                continue
            self.answers.append(answer)
            if answer.status != 200:
                time.sleep(0.05)
