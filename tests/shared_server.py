"""One real server for all tests that only send requests, shared by the workers of pytest-xdist.

A test module names the pipelines that it needs, by default ``classify``, and takes the fixture ``server``::

    THINGS = Served("things", write_things)
    pytestmark = [pytest.mark.needs_triton, pytest.mark.serves(THINGS, built_in("detect"))]

The server has the pipelines of all tests that were selected, each with one process a model. Where these are many, a
pipeline is loaded while a module that names it is tested, and *standing* ones all the time. It allows shared memory,
and has a cache for the models that say so.
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
import threading
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from suite_cost import SERVER_CPU_S, count

if TYPE_CHECKING:
    from onestream.serving.server.server import Server

ROOT = Path(__file__).parents[1]
SUITE_PID = "ONESTREAM_TESTS_PID"
"""Environment variable: the process that runs the suite, whose workers inherit it."""
_START_S, _LOAD_S = 600.0, 180.0
_TRIES, _AGAIN_S = 12, 10.0
"""Of a load, while Triton is started again."""
_ALL_AT_ONCE = 16
"""So many pipelines are loaded at the start; of more, which would take 10 GB, the standing ones."""
_STATE, _MODELS, _SOCKET = "shared-server.json", "shared-models.json", "shared-server.socket"
Networks = Path | Mapping[str, Path] | None
"""The network of a pipeline, those of a cascade by stage, or None for the built-in ones."""


@dataclass(frozen=True)
class Served:
    """A pipeline of the shared server.

    ``write`` writes NAME.yaml, and the networks that it returns, into a folder; or folders of ready models, without a
    pipeline file. ``models`` are the names to load, by default all of them. A ``standing`` one is loaded all the time:
    for fixtures that live longer than a module.
    """

    name: str
    write: Callable[[Path], Networks]
    models: tuple[str, ...] = ()
    standing: bool = False


def built_in(
    name: str,
    *,
    of: str = "",
    models: tuple[str, ...] = (),
    standing: bool = False,
    max_queue_size: int = 0,
    **fields: Any,
) -> Served:
    """A pipeline of ``pipelines/`` with one process a model and these fields in the place of its own.

    ``of`` is the pipeline that it is in the project, where it has another name here. A field that is None is left out.
    Queues have no bound by default, which a pipeline with one process has not either.
    """

    def write(folder: Path) -> None:
        content = yaml.safe_load((ROOT / "pipelines" / f"{of or name}.yaml").read_text(encoding="utf-8"))
        # What waits in a bounded queue may wait for longer than in production: the machine is busy with other tests.
        bound = {"max_queue_size": max_queue_size, "max_queue_ms": 60_000} if max_queue_size else {}
        content["serving"] = {**content.get("serving", {}), "cpu_instances": 1, **bound}
        kept = {key: value for key, value in (content | fields).items() if value is not None}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(kept, sort_keys=False))

    return Served(name, write, models, standing)


CLASSIFY = built_in("classify", standing=True, max_queue_size=64)
DRAWN = built_in(
    "drawn", of="detect", models=("drawn_video", "drawn_model"), video={"output": {"crf": 6}, "results": 4}
)
"""Draws boxes, in a quality at which colours can be compared."""
MATTE = built_in("matte", video={"output": {"preset": "ultrafast", "crf": 8, "keyframe_s": 0.5}, "results": 4})
"""Composes video in a quality at which pictures can be compared."""


READ = built_in(
    "read", serving={"cpu_instances": 1, "max_queue_ms": 20_000, "gpu": {"engine": "onnxruntime", "max_batch_size": 5}}
)
"""``test_cascade_stream`` runs it as on a GPU."""


@dataclass(frozen=True)
class SharedServer:
    """Where the server is, with the names of ``onestream.serving.server.server.Server``; ``owner`` is its process."""

    repository: Path
    http_address: str
    grpc_address: str
    metrics_url: str
    log_path: Path
    models: tuple[str, ...]
    owner: int

    @property
    def pid(self) -> int:
        """The tritonserver that runs now: one that ends is started again."""
        import psutil  # a machine with a GPU may lack it

        children = psutil.Process(self.owner).children(recursive=True)
        return next(child.pid for child in children if child.name() == "tritonserver")

    @property
    def http_url(self) -> str:
        return f"http://{self.http_address}"

    @property
    def grpc_url(self) -> str:
        return f"grpc://{self.grpc_address}"

    def pipeline_file(self, name: str) -> Path:
        """The file that a pipeline was built from."""
        return self.repository.parent / "sources" / name / f"{name}.yaml"

    def metric(self, series: str) -> float:
        return metric(self.metrics_url, series)


def metric(url: str, series: str) -> float:
    """The sum of the series whose names and labels begin so, of what a server exported last."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(series))


def pipelines_of(items: Iterable[pytest.Item]) -> list[Served]:
    """The pipelines that the selected tests need. Raises where two of one name differ."""
    found: dict[str, Served] = {}
    for item in items:
        for served in _named(item):
            known = found.setdefault(served.name, served)
            if known is served:
                continue
            if _content(known) != _content(served):
                raise pytest.UsageError(f"two pipelines of the shared server are named {served.name}")
            # No names mean all models.
            models = tuple(dict.fromkeys((*known.models, *served.models))) if known.models and served.models else ()
            found[served.name] = replace(known, models=models, standing=known.standing or served.standing)
    return list(found.values())


def names_by_module(items: Iterable[pytest.Item]) -> dict[Path, set[str]]:
    """The names of the pipelines that each module's tests need."""
    found: dict[Path, set[str]] = defaultdict(set)
    for item in items:
        found[item.path] |= {served.name for served in _named(item)}
    return found


def _named(item: pytest.Item) -> list[Served]:
    named = [served for marker in item.iter_markers("serves") for served in marker.args]
    return named or ([CLASSIFY] if "shared_triton" in getattr(item, "fixturenames", ()) else [])


def _content(served: Served) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        served.write(Path(folder))
        return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def connect(folder: Path, pipelines: Sequence[Served]) -> SharedServer:
    """The server whose state is kept in a folder of the suite; started by the first caller."""
    from builds import locked

    state = folder / _STATE
    with locked(folder / "shared-server.lock"):
        if not state.exists():
            count("server starts")
            repository, models = _repository(folder / "shared-repository", pipelines)
            (folder / _MODELS).write_text(json.dumps(models))
            at_start = [served.name for served in pipelines if served.standing or len(pipelines) <= _ALL_AT_ONCE]
            names = [model for name in at_start for model in models[name]]
            command = [sys.executable, __file__, str(repository), str(folder), *names]
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


@contextmanager
def loaded(folder: Path, names: Iterable[str]) -> Iterator[None]:
    """Have the models of pipelines loaded on the server that was connected to."""
    of_pipelines: dict[str, list[str]] = json.loads((folder / _MODELS).read_text())
    models = [model for name in names for model in of_pipelines[name]]
    with Client(str(folder / _SOCKET)) as connection:
        connection.send(models)
        failure = connection.recv()
        assert not failure, failure
        yield


class _Loader:
    """Keeps models loaded while a caller that requested them is connected."""

    def __init__(self, server: Server, standing: Iterable[str], address: Path) -> None:
        self._server = server
        self._users = Counter(standing)
        self._lock = threading.Lock()
        self._listener = Listener(str(address), "AF_UNIX")
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            threading.Thread(target=self._serve, args=(self._listener.accept(),), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        models: list[str] = connection.recv()
        with self._lock:
            self._users.update(models)
            failure = self._load_what_is_used()
        connection.send(failure)
        with contextlib.suppress(EOFError, OSError):
            connection.recv()  # until the other end is closed
        with self._lock:
            for model in reversed(models):
                self._users[model] -= 1
                if not self._users[model]:
                    with contextlib.suppress(Exception):
                        self._server.control.unload(model)

    def _load_what_is_used(self) -> str:
        """Why a model does not load, or nothing.

        A tritonserver that ended in the meantime, as its Python backend may end it on a very busy machine, was started
        again without what modules had loaded.
        """
        failure, began = "", time.monotonic()
        for _ in range(_TRIES):
            try:
                states = self._server.control.model_states()
                for model in +self._users:
                    if model not in states or states[model].state != "READY":
                        failure, began = f"{model} does not load", time.monotonic()
                        self._server.control.load(model, timeout_s=_LOAD_S)
                return ""
            except Exception as error:
                failure = f"{failure}: {error}"
                if time.monotonic() - began > _LOAD_S:
                    # Seldom it waits for a model for ever: it is started again.
                    began = time.monotonic()
                    os.kill(self._server.pid, signal.SIGKILL)
                time.sleep(_AGAIN_S)
        return failure


def _repository(folder: Path, pipelines: Iterable[Served]) -> tuple[Path, dict[str, list[str]]]:
    """Build the pipelines; returns the repository and the models to load, by pipeline."""
    from builds import build

    models: dict[str, list[str]] = {}
    for served in pipelines:
        source = folder / "sources" / served.name
        source.mkdir(parents=True)
        networks = served.write(source)
        if not (source / f"{served.name}.yaml").exists():
            ready = [path for path in source.iterdir() if path.is_dir()]
            for path in ready:
                shutil.copytree(path, folder / "models" / path.name)
            models[served.name] = [*(served.models or [path.name for path in ready])]
            continue
        options: dict[str, Any] = {}
        if networks is not None:
            options["onnx_file" if isinstance(networks, Path) else "onnx_files"] = networks
        built = build(source / f"{served.name}.yaml", folder=folder / "models", **options)
        models[served.name] = [*(served.models or built.models)]
    return folder / "models", models


def stop(folder: Path) -> None:
    """End the server of a suite, where there is one; print what happened to it, such as a restart."""
    state = folder / _STATE
    if state.exists():
        owner = json.loads(state.read_text())["owner"]
        count(SERVER_CPU_S, round(_cpu_s(owner)))
        os.kill(owner, signal.SIGTERM)
        while _runs(owner):
            time.sleep(0.05)
        if events := (folder / "shared-server.log").read_text(errors="replace"):
            print(f"\nthe shared server said:\n{events}", file=sys.stderr)


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

    # No test kills its models, so it need not check a hundred of them 20 times a second.
    serving._POLL_S = 0.5
    repository, folder, *models = sys.argv[1:]
    suite = int(os.environ[SUITE_PID])
    server = serving.Server(
        repository,
        http_port=0,
        grpc_port=0,
        metrics_port=0,
        device="cpu",
        models=models or None,
        shared_memory=True,
        flags=["--cache-config=local,size=4194304"],
        startup_timeout_s=_START_S,
        on_event=lambda line: print(line, flush=True),
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
            "models": server.models,
            "owner": os.getpid(),
        }
        _Loader(server, models, Path(folder) / _SOCKET)
        partial = Path(folder) / "shared-server.tmp"
        partial.write_text(json.dumps(content))
        os.replace(partial, Path(folder) / _STATE)
        while not server.wait(1.0):
            if not _runs(suite):
                end()


if __name__ == "__main__":
    main()
