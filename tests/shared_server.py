"""One real server for all tests that only send requests, shared by the workers of pytest-xdist.

A test module names the pipelines that it needs, by default ``classify``, and takes the fixture ``server``::

    THINGS = Served("things", write_things)
    pytestmark = [pytest.mark.needs_triton, pytest.mark.serves(THINGS, built_in("detect"))]

The server has the pipelines of all tests that were selected, each with one process a model. It allows shared memory.
Tests that kill or restart a server, change its repository or need other options start one of their own and say why.

As a program this file runs the server, for as long as the process that runs the suite.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from suite_cost import SERVER_CPU_S, count

ROOT = Path(__file__).parents[1]
SUITE_PID = "ONESTREAM_TESTS_PID"
"""Environment variable: the process that runs the suite, whose workers inherit it."""
_START_S = 600.0
Networks = Path | Mapping[str, Path] | None
"""The network of a pipeline, those of a cascade by stage, or None for the built-in ones."""


@dataclass(frozen=True)
class Served:
    """A pipeline of the shared server.

    ``write`` writes NAME.yaml, and the networks that it returns, into a folder; or folders of ready models, without a
    pipeline file. ``models`` are the names to load, by default all of them.
    """

    name: str
    write: Callable[[Path], Networks]
    models: tuple[str, ...] = ()


def built_in(name: str, *, models: tuple[str, ...] = (), **fields: Any) -> Served:
    """A pipeline of ``pipelines/`` with one process a model and these fields in the place of its own."""

    def write(folder: Path) -> None:
        content = yaml.safe_load((ROOT / "pipelines" / f"{name}.yaml").read_text(encoding="utf-8"))
        content["serving"] = {**content.get("serving", {}), "cpu_instances": 1}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content | fields, sort_keys=False))

    return Served(name, write, models)


CLASSIFY = built_in("classify")


@dataclass(frozen=True)
class SharedServer:
    """Where the server is, with the names of ``onestream.serving.server.server.Server``; ``owner`` is its process."""

    repository: Path
    http_address: str
    grpc_address: str
    metrics_url: str
    log_path: Path
    pid: int
    models: tuple[str, ...]
    owner: int

    @property
    def http_url(self) -> str:
        return f"http://{self.http_address}"

    @property
    def grpc_url(self) -> str:
        return f"grpc://{self.grpc_address}"

    def pipeline_file(self, name: str) -> Path:
        """The file that a pipeline was built from."""
        return self.repository.parent / "sources" / name / f"{name}.yaml"


def pipelines_of(items: Iterable[pytest.Item]) -> list[Served]:
    """The pipelines that the selected tests need. Raises where two of one name differ."""
    found: dict[str, Served] = {}
    for item in items:
        takes_server = "server" in getattr(item, "fixturenames", ())
        for named in [marker.args for marker in item.iter_markers("serves")] or ([(CLASSIFY,)] if takes_server else []):
            for served in named:
                known = found.setdefault(served.name, served)
                if known is not served and _content(known) != _content(served):
                    raise pytest.UsageError(f"two pipelines of the shared server are named {served.name}")
    return list(found.values())


def _content(served: Served) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        served.write(Path(folder))
        return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def connect(folder: Path, pipelines: Iterable[Served]) -> SharedServer:
    """The server whose state is kept in a folder of the suite; started by the first caller."""
    from builds import locked

    state = folder / "shared-server.json"
    with locked(folder / "shared-server.lock"):
        if not state.exists():
            count("server starts")
            repository, models = _repository(folder / "shared-repository", pipelines)
            command = [sys.executable, __file__, str(repository), str(state), *models]
            # NumPy's BLAS spins where several threads of a model call it on few cores.
            environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
            with (folder / "shared-server.log").open("wb") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)
            deadline = time.monotonic() + _START_S
            while not state.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"no shared server: {(folder / 'shared-server.log').read_text()[-3000:]}")
                time.sleep(0.05)
    content = json.loads(state.read_text())
    folders = {name: Path(content[name]) for name in ("repository", "log_path")}
    return SharedServer(**{**content, **folders, "models": tuple(content["models"])})


def _repository(folder: Path, pipelines: Iterable[Served]) -> tuple[Path, list[str]]:
    """Build the pipelines; returns the repository and the models to load."""
    from builds import build

    models: list[str] = []
    for served in pipelines:
        source = folder / "sources" / served.name
        source.mkdir(parents=True)
        networks = served.write(source)
        if not (source / f"{served.name}.yaml").exists():
            ready = [path for path in source.iterdir() if path.is_dir()]
            for path in ready:
                shutil.copytree(path, folder / "models" / path.name)
            models += served.models or [path.name for path in ready]
            continue
        options: dict[str, Any] = {}
        if networks is not None:
            options["onnx_file" if isinstance(networks, Path) else "onnx_files"] = networks
        built = build(source / f"{served.name}.yaml", folder=folder / "models", **options)
        models += served.models or built.models
    return folder / "models", models


def stop(folder: Path) -> None:
    """End the server of a suite, where there is one."""
    state = folder / "shared-server.json"
    if state.exists():
        owner = json.loads(state.read_text())["owner"]
        count(SERVER_CPU_S, round(_cpu_s(owner)))
        os.kill(owner, signal.SIGTERM)
        while _runs(owner):
            time.sleep(0.05)


def _cpu_s(owner: int) -> float:
    """What the server and its processes used so far."""
    total = 0.0
    import psutil  # a machine with a GPU may lack it

    for process in (psutil.Process(owner), *psutil.Process(owner).children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total


def _runs(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def main() -> None:
    """Serve until the suite ends."""
    from onestream.serving.server import server as serving

    # Nobody kills its models: it need not look after a hundred of them 20 times a second.
    serving._POLL_S = 0.5
    repository, state, *models = sys.argv[1:]
    suite = int(os.environ[SUITE_PID])
    server = serving.Server(
        repository,
        http_port=0,
        grpc_port=0,
        metrics_port=0,
        device="cpu",
        models=models or None,
        shared_memory=True,
        startup_timeout_s=_START_S,
    )

    def end(*_: object) -> None:
        """Kill it: no test is about its stop."""
        server.request_stop()
        server.request_stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    with server:
        content = {
            "repository": repository,
            "http_address": server.http_address,
            "grpc_address": server.grpc_address,
            "metrics_url": server.metrics_url,
            "log_path": str(server.log_path),
            "pid": server.pid,
            "models": server.models,
            "owner": os.getpid(),
        }
        partial = Path(state).with_suffix(".tmp")
        partial.write_text(json.dumps(content))
        os.replace(partial, state)
        while not server.wait(1.0):
            if not _runs(suite):
                end()


if __name__ == "__main__":
    main()
