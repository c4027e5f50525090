"""Every process of a server, and the server's own command, killed and stopped under load.

In each round one process gets SIGKILL, or SIGSTOP and two seconds later SIGCONT. Recorded are the time until every
pipeline answers again, how requests failed meanwhile, and what was left: processes, regions in /dev/shm, run folders.
"""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av
import numpy as np

from onestream.client import CannotConnect, Client, OnestreamError
from onestream.serving.building.warmup import warmup_photo
from onestream.serving.server.triton.model_processes import ModelProcess, find_model_processes, read_stat
from onestream.serving.server.triton.orphan_cleanup import SHM_FOLDER
from onestream.serving.server.triton.ports import free_port

MODELS = ("classify_preprocess", "classify_model", "classify_postprocess", "classify_fused", "classify_video")
VICTIMS = (*MODELS, "tritonserver", "guard", "serve")
SIGNALS = (signal.SIGKILL, signal.SIGSTOP)
PIPELINES = ("classify", "classify_fused")

_STOPPED_S = 2.0
_REQUEST_TIMEOUT_S = 10.0
_GIVE_UP_S = 120.0
_CLEAN_WITHIN_S = 15.0  # replaced processes may finish their requests for 10 s
_POLL_S = 0.02
# Callers wait a little before they ask again, and so does the probe: on a small machine they take what a start needs.
_AGAIN_S = 0.2
_QUIET_S = 1.0
# A gRPC channel that lost its server fails calls at once until it tries to connect again: 0.2 s later, up to a fifth
# more (client/_transports/grpc_calls.py), and the time that connecting takes. Nothing is tried again here (retries=0).
_RECONNECTED_S = 0.5
_FRAMES = 48


@dataclass(slots=True)
class Round:
    """One process that was killed or stopped. ``served_again_s`` is None where that did not happen in two minutes."""

    victim: str
    signal: str
    served_again_s: float | None = None
    failed: dict[str, int] = field(default_factory=dict)
    orphans: int = 0
    regions_left: int = 0
    folders_left: int = 0


@dataclass(frozen=True, slots=True)
class _Request:
    began: float
    ended: float
    error: str | None
    is_typed: bool = True


def measure(
    *,
    rounds: int,
    seed: int,
    progress: Callable[[str], None],
    repository: Path = Path("model_repository"),
    victims: tuple[tuple[str, signal.Signals], ...] | None = None,
) -> dict[str, object]:
    """Run ``onestream serve`` and hurt one of its processes in each round.

    Args:
        rounds: how many, >= 1; each victim and signal comes before one comes again.
        seed: of their order.
        progress: receives a line for each round.
        repository: folder with the models of the pipeline ``classify``.
        victims: which processes get which signal; None for all of ``VICTIMS`` with all of ``SIGNALS``.

    Returns:
        ``rounds`` (what each one saw), the slowest recovery, counts of requests, of failures by their type, of
        failures without a type (``untyped``), of requests that failed though they ended before or began after
        (``hurt``), the longest request, and what was left.
    """
    order = _order(victims or tuple((victim, number) for victim in VICTIMS for number in SIGNALS), rounds, seed)
    seen: list[Round] = []
    hurt: list[str] = []
    all_requests: list[_Request] = []
    with tempfile.TemporaryDirectory() as folder:
        served = _Served(repository, Path(folder))
        with served, _Load(served) as load:
            for number, (victim, how) in enumerate(order, 1):
                time.sleep(_QUIET_S)
                load.take()
                one = Round(victim, how.name)
                began = time.monotonic()
                recovered = _hurt(served, one, how)
                _look_for_leftovers(served, one)
                time.sleep(_QUIET_S)
                requests = load.take()
                all_requests += requests
                one.failed = dict(Counter(request.error for request in requests if request.error))
                hurt += [r.error for r in requests if r.error and _is_hurt(r, began, recovered)]
                seen.append(one)
                progress(f"round {number} of {len(order)}: {one}")
    result: dict[str, object] = {
        "rounds": [{name: getattr(one, name) for name in Round.__slots__} for one in seen],
        "slowest_recovery_s": max(_GIVE_UP_S if r.served_again_s is None else r.served_again_s for r in seen),
        "requests": len(all_requests),
        "failed": dict(Counter(r.error for r in all_requests if r.error)),
        "untyped": dict(Counter(r.error for r in all_requests if not r.is_typed)),
        "hurt": dict(Counter(hurt)),
        "longest_request_s": max((r.ended - r.began for r in all_requests), default=0.0),
    }
    for left in ("orphans", "regions_left", "folders_left"):
        result[left] = sum(getattr(one, left) for one in seen)
    return result


def _is_hurt(failed: _Request, began: float, recovered: float) -> bool:
    """Whether a request failed that had nothing to do with the victim: it ended before, or it began after."""
    if failed.error == CannotConnect.__name__:
        recovered += _RECONNECTED_S
    return failed.ended < began or failed.began > recovered


def _order(victims: tuple[tuple[str, signal.Signals], ...], rounds: int, seed: int) -> list[tuple[str, signal.Signals]]:
    draw = random.Random(seed)
    order: list[tuple[str, signal.Signals]] = []
    while len(order) < rounds:
        order += draw.sample(victims, len(victims))
    return order[:rounds]


def _hurt(served: _Served, one: Round, how: signal.Signals) -> float:
    """Send the signal, and wait until everything answers without the victim. Returns when it did."""
    pid = served.pid_of(one.victim)
    identity = _identity(pid)
    before = served.processes()
    began = time.monotonic()
    os.kill(pid, how)
    is_served_again = False
    continued = how is signal.SIGKILL
    if one.victim == "serve" and how is signal.SIGKILL:
        served.process.wait()
        one.orphans = _still_running(before)
        served.start()
    while time.monotonic() - began < _GIVE_UP_S:
        if not continued and time.monotonic() - began > _STOPPED_S:
            if _identity(pid) == identity:
                os.kill(pid, signal.SIGCONT)
            continued = True
        # Who lost nothing by a stop goes on after it; every other victim must be gone.
        is_over = continued if one.victim in ("serve", "guard") else _identity(pid) != identity
        if is_over and served.answers():
            is_served_again = True
            break
        time.sleep(_AGAIN_S)
    ended = time.monotonic()
    if not continued:
        time.sleep(max(0.0, began + _STOPPED_S - ended))
        if _identity(pid) == identity:
            os.kill(pid, signal.SIGCONT)
    one.served_again_s = round(ended - began, 2) if is_served_again else None
    return ended


def _still_running(processes: set[tuple[int, int]]) -> int:
    """Count those that still run after a while; each is known by its id and its start."""
    deadline = time.monotonic() + _CLEAN_WITHIN_S
    while (left := sum(_identity(pid) == (pid, start) for pid, start in processes)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return left


def _look_for_leftovers(served: _Served, one: Round) -> None:
    deadline = time.monotonic() + _CLEAN_WITHIN_S
    while True:
        orphans, regions, folders = served.leftovers()
        if not (orphans or regions or folders) or time.monotonic() > deadline:
            one.orphans += orphans
            one.regions_left, one.folders_left = regions, folders
            return
        time.sleep(_AGAIN_S)


def _identity(pid: int) -> tuple[int, int] | None:
    """Id and start of a process that has not ended."""
    stat = read_stat(pid)
    return None if stat is None or stat.is_zombie else (pid, stat.start_ticks)


def _children(pid: int) -> list[int]:
    stats = (read_stat(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())
    return [stat.pid for stat in stats if stat is not None and stat.parent_pid == pid and not stat.is_zombie]


class _Served:
    """``onestream serve`` in a process of its own, on ports that stay the same. A context manager."""

    def __init__(self, repository: Path, folder: Path) -> None:
        ports: list[int] = []
        for _ in range(3):
            ports.append(free_port("127.0.0.1", but=set(ports)))
        self.http, self.grpc = f"http://127.0.0.1:{ports[0]}", f"grpc://127.0.0.1:{ports[1]}"
        services = zip(("http", "grpc", "metrics"), ports, strict=True)
        self._command = [sys.executable, "-m", "onestream", "serve", f"--repository={repository}", "--device=cpu"]
        self._command += [f"--{service}-port={port}" for service, port in services]
        self._command += [f"--log-file={folder / 'triton.log'}"]
        self._events = folder / "events.log"
        self._owners: list[str] = []
        self._photo = warmup_photo()
        self.process: subprocess.Popen[bytes]

    def start(self) -> None:
        """Start the command."""
        with self._events.open("ab") as events:
            self.process = subprocess.Popen(self._command, stdout=events, stderr=events, stdin=subprocess.DEVNULL)
        stat = read_stat(self.process.pid)
        assert stat is not None
        self._owners.append(f"-{stat.pid}-{stat.start_ticks}-")

    def __enter__(self) -> _Served:
        self.start()
        deadline = time.monotonic() + _GIVE_UP_S
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"onestream serve did not start:\n{self._events.read_text()}")
            time.sleep(_POLL_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def pid_of(self, victim: str) -> int:
        """The id of a process by its kind; of a model that has several, one."""
        if victim == "serve":
            return self.process.pid
        (guard,) = _children(self.process.pid)
        (triton,) = _children(guard)
        if victim in ("guard", "tritonserver"):
            return guard if victim == "guard" else triton
        return next(process.pid for process in self._models(triton) if process.model == victim)

    def processes(self) -> set[tuple[int, int]]:
        """The guard, tritonserver and the model processes as they are now."""
        guards = _children(self.process.pid)
        tritons = [pid for guard in guards for pid in _children(guard)]
        models = [process.pid for triton in tritons for process in self._models(triton)]
        return {identity for pid in (*guards, *tritons, *models) if (identity := _identity(pid))}

    def answers(self) -> bool:
        """Whether it is ready and both forms of the pipeline answer, over both protocols."""
        try:
            for url in (self.http, self.grpc):
                with Client(url, timeout_s=_REQUEST_TIMEOUT_S, retries=0) as client:
                    if not client.is_ready():
                        return False
                    for pipeline in PIPELINES:
                        client.classify(self._photo, pipeline=pipeline)
        except OnestreamError:
            return False
        return True

    def leftovers(self) -> tuple[int, int, int]:
        """How many processes, regions and folders there are that no running process of the server uses."""
        current = self.processes()
        models = [p for pid, _ in current for p in self._models(pid)]
        used = {process.region for process in models}
        regions = [path.name for path in SHM_FOLDER.glob("onestream-*") if self._is_ours(path.name)]
        folders = [path for path in Path(tempfile.gettempdir()).glob("onestream-*") if self._is_ours(path.name)]
        orphans = [
            stat.pid
            for entry in os.listdir("/proc")
            if entry.isdigit() and (stat := read_stat(int(entry))) and not stat.is_zombie
            if self._is_ours(_command_line(stat.pid)) and _identity(stat.pid) not in current
            if stat.pid != self.process.pid
        ]
        return len(orphans), len([name for name in regions if name not in used]), max(0, len(folders) - 1)

    def _is_ours(self, text: str) -> bool:
        return "onestream-" in text and any(owner in text for owner in self._owners)

    def _models(self, triton: int) -> tuple[ModelProcess, ...]:
        return find_model_processes(triton).running


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


class _Load:
    """Clients that ask without end: pictures over both protocols, and a video stream. A context manager."""

    def __init__(self, served: _Served) -> None:
        self._stopping = threading.Event()
        self._requests: list[_Request] = []
        self._lock = threading.Lock()
        photo, clip = warmup_photo(), _clip()
        asks = [self._picture(url, pipeline, photo) for url in (served.http, served.grpc) for pipeline in PIPELINES]
        asks.append(self._stream(served.grpc, clip))
        self._threads = [threading.Thread(target=self._ask, args=(ask,)) for ask in asks]

    def __enter__(self) -> _Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def take(self) -> list[_Request]:
        """The requests that ended since the last time."""
        with self._lock:
            taken, self._requests = self._requests, []
        return taken

    def _ask(self, ask: Callable[[], None]) -> None:
        while not self._stopping.is_set():
            began, error, is_typed = time.monotonic(), None, True
            try:
                ask()
            except OnestreamError as failure:
                error = type(failure).__name__
            except Exception as failure:  # what callers are not told to expect is what this looks for
                error, is_typed = f"{type(failure).__name__}: {failure}", False
            with self._lock:
                self._requests.append(_Request(began, time.monotonic(), error, is_typed))
            if error:
                time.sleep(_AGAIN_S)

    def _picture(self, url: str, pipeline: str, photo: bytes) -> Callable[[], None]:
        client = Client(url, timeout_s=_REQUEST_TIMEOUT_S, retries=0)

        def classify() -> None:
            client.classify(photo, pipeline=pipeline)

        return classify

    def _stream(self, url: str, clip: bytes) -> Callable[[], None]:
        client = Client(url, timeout_s=_REQUEST_TIMEOUT_S, retries=0)

        def play() -> None:
            with client.stream(clip) as frames:
                for _ in frames:
                    pass

        return play


def _clip() -> bytes:
    """A short video of noise, small enough to leave the server time for pictures."""
    noise = np.random.default_rng(0)
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream: Any = container.add_stream("libx264", rate=24)
        stream.width, stream.height, stream.pix_fmt = 160, 120, "yuv420p"
        for _ in range(_FRAMES):
            picture = noise.integers(0, 256, (120, 160, 3), np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))
    return file.getvalue()
