"""``onestream serve``: runs Triton over a model repository until it is told to stop."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal

import typer

from onestream.cli.exit_codes import EXIT_CANNOT_START, EXIT_FAILED, needs_extras
from onestream.cli.options import DeviceChoice, HostOption, is_loopback
from onestream.cli.serve.output import JsonOutput, Output, TextOutput

_BEYOND_THIS_MACHINE = (
    "--host {host} lets other machines reach Triton itself, which has no tokens, no TLS and no limit on "
    "what is sent; leave it on 127.0.0.1 with --public and start `onestream proxy` before it (docs/security.md), or "
    "say --insecure-bind where the network itself is private"
)


def serve(
    flags: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- FLAGS]", help="Flags of tritonserver's own, such as --cache-config=local,size=1048576."
        ),
    ] = None,
    *,
    repository: Annotated[Path, typer.Option(help="Folder of models.")] = Path("model_repository"),
    host: HostOption = "127.0.0.1",
    public: Annotated[
        bool,
        typer.Option("--public", help="Others call through `onestream proxy`: refuse what is for this machine only."),
    ] = False,
    shared_memory: Annotated[
        bool,
        typer.Option(
            "--shared-memory",
            help="Let callers on this machine hand images over in shared memory: through Triton they can then read and "
            "write every region that this user may.",
        ),
    ] = False,
    insecure_bind: Annotated[
        bool, typer.Option("--insecure-bind", help="Allow a --host beyond this machine, without a proxy before it.")
    ] = False,
    http_port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free port.")] = 8000,
    grpc_port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free port.")] = 8001,
    metrics_port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free port.")] = 8002,
    device: Annotated[
        DeviceChoice, typer.Option(help="auto: gpu where a driver and a Triton with GPU backends are present.")
    ] = "auto",
    model: Annotated[
        list[str] | None, typer.Option(help="Load only this model and what it needs; may be repeated.")
    ] = None,
    triton: Annotated[Path | None, typer.Option(help="A tritonserver to run, instead of searching one.")] = None,
    log_file: Annotated[
        Path | None, typer.Option(help="File for Triton's own log.  \\[default: in ~/.cache/onestream]")
    ] = None,
    startup_timeout_s: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="Seconds until all models must be ready.  \\[default: 120 or 10 a model, the greater, and up to ten "
            "times that on a busy machine]",
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show Triton's own log too.")] = False,
    log_format: Annotated[
        Literal["text", "json"], typer.Option(help="json: one object a line, of Triton's own log too.")
    ] = "text",
    trace: Annotated[
        str | None,
        typer.Option(metavar="URL", help="OTLP collector of the requests' traces, such as http://HOST:4318/v1/traces."),
    ] = None,
    trace_rate: Annotated[
        int | None, typer.Option(min=1, help="Trace one of so many requests.  \\[default: 1, which is every one]")
    ] = None,
) -> None:
    """Run Triton over a model repository until Ctrl-C or SIGTERM; restart it and model processes that die or hang.

    Even on 127.0.0.1 every program and account of this machine reaches Triton, and so do web pages that a browser on it
    opens: some requests end the embedded Triton (docs/security.md, Known vulnerabilities of Triton).

    A model that does not load is named and left out, and the server is not ready; the others are served. Exits with 0
    when told to stop, 1 when Triton ends again and again, 2 when the server cannot be started or no model loads.
    """
    output: Output = JsonOutput(repository) if log_format == "json" else TextOutput(verbose=verbose)
    with needs_extras("cpu"):
        from onestream.serving.server.errors import ServerError
        from onestream.serving.server.server import Server
    if not (insecure_bind or is_loopback(host)):
        output.failed(_BEYOND_THIS_MACHINE.format(host=host), EXIT_CANNOT_START)
    if trace_rate is not None and trace is None:
        output.failed("--trace-rate needs --trace, the address of the collector", EXIT_CANNOT_START)
    if public and shared_memory:
        output.failed(
            "--shared-memory and --public exclude each other: with both, callers from other machines could make Triton "
            "read and write this user's shared memory",
            EXIT_CANNOT_START,
        )
    try:
        server = Server(
            repository,
            host=host,
            http_port=http_port,
            grpc_port=grpc_port,
            metrics_port=metrics_port,
            device=device,
            models=model or None,
            require_all=False,
            shared_memory=shared_memory,
            triton=triton,
            log_path=log_file or _default_log_path(http_port),
            flags=flags or (),
            trace=trace,
            trace_rate=trace_rate or 1,
            startup_timeout_s=startup_timeout_s,
            on_event=output.event,
            on_log=output.log_line,
        )
    except ValueError as error:
        output.failed(str(error), EXIT_CANNOT_START)

    def stop(_signal: int, _frame: FrameType | None) -> None:
        server.request_stop()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    output.event(f"starting Triton with the models of {repository}")
    try:
        server.start()
    except ServerError as error:
        output.failed(str(error), EXIT_CANNOT_START)
    if server.is_running:
        output.ready(server)
    try:
        server.wait()
    except ServerError as error:
        output.failed(str(error), EXIT_FAILED)
    output.stopped()


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
