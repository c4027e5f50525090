"""``onestream serve``: runs Triton over a model repository until it is told to stop."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from onestream.exits import EXIT_CANNOT_START, EXIT_FAILED, fail

_LOAD_EVENT = re.compile(r"\"(?P<what>successfully loaded|loading:|failed to load) ?'?(?P<model>[\w.-]+?)(?::\d+)?'?\"")
_BEYOND_THIS_MACHINE = (
    "error: --host {host} lets other machines reach Triton itself, which has no tokens, no TLS and no limit on "
    "what is sent; leave it on 127.0.0.1 with --public and start `onestream proxy` before it (docs/public.md), or say "
    "--insecure-bind where the network itself is private"
)


class DeviceOption(str, Enum):
    """Which configurations the models are loaded with."""

    auto = "auto"
    cpu = "cpu"
    gpu = "gpu"


def serve(
    repository: Annotated[Path, typer.Option(help="Folder of models.")] = Path("model_repository"),
    host: Annotated[
        str, typer.Option(help="Address to bind; the default is reachable from this machine only.")
    ] = "127.0.0.1",
    public: Annotated[
        bool, typer.Option("--public", help="Others call through `onestream proxy`: close shared memory to callers.")
    ] = False,
    insecure_bind: Annotated[
        bool, typer.Option("--insecure-bind", help="Allow a --host beyond this machine, without a proxy before it.")
    ] = False,
    http_port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free port.")] = 8000,
    grpc_port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free port.")] = 8001,
    metrics_port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free port.")] = 8002,
    device: Annotated[
        DeviceOption, typer.Option(help="auto: gpu where a driver and a Triton with GPU backends are present.")
    ] = DeviceOption.auto,
    model: Annotated[
        list[str] | None, typer.Option(help="Load only this model and what it needs; may be repeated.")
    ] = None,
    triton: Annotated[Path | None, typer.Option(help="A tritonserver to run, instead of searching one.")] = None,
    log_file: Annotated[
        Path | None, typer.Option(help="File for Triton's own log.  [default: in ~/.cache/onestream]")
    ] = None,
    startup_timeout_s: Annotated[float, typer.Option(min=1, help="Seconds until all models must be ready.")] = 120.0,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show Triton's own log too.")] = False,
) -> None:
    """Run Triton over a model repository until Ctrl-C or SIGTERM, and restart model processes that die.

    Exits with 0 when told to stop, 1 when Triton ends by itself, 2 when the server cannot be started.
    """
    try:
        from serving.ports import is_loopback
        from serving.server import Server
        from serving.server_errors import ServerError
    except ImportError as error:
        fail(
            f"cannot serve: {error.name or error} is not installed. Run: pip install 'onestream[cpu]'",
            EXIT_CANNOT_START,
        )
    if not (insecure_bind or is_loopback(host)):
        fail(_BEYOND_THIS_MACHINE.format(host=host), EXIT_CANNOT_START)
    try:
        server = Server(
            repository,
            host=host,
            http_port=http_port,
            grpc_port=grpc_port,
            metrics_port=metrics_port,
            device=device.value,
            models=model or None,
            public=public,
            triton=triton,
            log_path=log_file or _default_log_path(http_port),
            startup_timeout_s=startup_timeout_s,
            on_event=_say,
            on_log=_say if verbose else _Progress(),
        )
    except ValueError as error:
        fail(f"error: {error}", EXIT_CANNOT_START)

    def stop(_signal: int, _frame: FrameType | None) -> None:
        server.request_stop()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    _say(f"starting Triton with the models of {repository}")
    try:
        server.start()
    except ServerError as error:
        fail(f"error: {error}", EXIT_CANNOT_START)
    if server.is_running:
        print(
            f"ready: {server.http_url} {server.grpc_url} {server.metrics_url} "
            f"models: {', '.join(server.models)} ({server.device}; log: {server.log_path})",
            flush=True,
        )
    try:
        server.wait()
    except ServerError as error:
        fail(f"error: {error}", EXIT_FAILED)
    _say("stopped")


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")  # one write, since lines come from several threads
    sys.stderr.flush()


class _Progress:
    """Says from Triton's log which models are loading and loaded, until each was said once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, log_line: str) -> None:
        event = _LOAD_EVENT.search(log_line)
        if event is None:
            return
        what = {"loading:": "loading", "successfully loaded": "loaded"}.get(event["what"], "failed")
        line = f"  {what} {event['model']}"
        if line not in self._said:
            self._said.add(line)
            _say(line)


def _default_log_path(http_port: int) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "onestream"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        folder = Path(tempfile.mkdtemp(prefix="onestream-log-"))
    return folder / (f"triton-{http_port}.log" if http_port else f"triton-{os.getpid()}.log")
