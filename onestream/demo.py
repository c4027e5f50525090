"""``onestream demo``: the whole way once, with real photos, over both protocols."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from client import Classification, Client, OnestreamError
from onestream.exits import EXIT_CANNOT_START, EXIT_FAILED, fail

PIPELINE_FILE = Path("pipelines/classify.yaml")
PHOTOS = Path("examples/photos")


def demo(
    photos: Annotated[
        list[Path] | None, typer.Argument(help="Photos; the ones of examples/photos if left out.")
    ] = None,
    *,
    repository: Annotated[Path, typer.Option(help="Folder of the model repository.")] = Path("model_repository"),
) -> None:
    """Build the default pipeline, start a server, classify photos over gRPC and HTTP, and stop the server.

    For each photo it prints the five best classes with their scores, and the milliseconds that each step took by
    Triton's own statistics. Exits with 1 where a photo failed, 2 where the server could not be started.
    """
    files = photos or sorted(PHOTOS.glob("*.jpg"))
    if not files or not PIPELINE_FILE.exists():
        fail(f"run the demo in the project's folder: {PIPELINE_FILE} and {PHOTOS} are needed", EXIT_CANNOT_START)
    try:
        from preprocess import PreprocessError
        from serving.build import build
        from serving.errors import ServingError
        from serving.server import Server
    except ImportError as error:
        fail(f"{error.name or error} is not installed. Run: pip install 'onestream[cpu]'", EXIT_CANNOT_START)
    out, log = Console(), Console(stderr=True)
    with ExitStack() as stack:
        try:
            with log.status("building the model") as status:
                built = build(PIPELINE_FILE, folder=repository, progress=lambda text: status.update(text))
            log.print(f"model repository: {repository}, {len(built.written)} files written")
            with log.status("starting Triton"):
                server = stack.enter_context(Server(repository, http_port=0, grpc_port=0, metrics_port=0))
        except (ServingError, PreprocessError) as error:
            fail(str(error), EXIT_CANNOT_START)
        log.print(f"Triton is ready: gRPC {server.grpc_url}, HTTP {server.http_url}")
        with Client(server.grpc_url) as grpc, Client(server.http_url) as http:
            for file in files:
                try:
                    out.print(_table(file.name, _classify_both_ways(grpc, file), _classify_both_ways(http, file)), "")
                except OnestreamError as error:
                    fail(f"{file.name}: {error}", EXIT_FAILED)
    log.print("Triton is stopped")
    out.print("\nServe it yourself: [bold]make serve[/bold], then: [bold].venv/bin/onestream classify YOUR.jpg[/bold]")


@dataclass(frozen=True, slots=True)
class _Answer:
    """One photo's classes, and milliseconds by step: what Triton measured, then what the client saw."""

    classification: Classification
    milliseconds: dict[str, float]


def _classify_both_ways(client: Client, file: Path) -> _Answer:
    """Ask the ensemble and the fused form; they must agree."""
    before = client.statistics("classify")
    result = client.classify(file)
    spent = client.statistics("classify") - before
    fused = client.classify(file, pipeline="classify_fused")
    if fused.labels != result.labels:
        fail(f"{file.name}: classify says {result.top}, classify_fused says {fused.top}", EXIT_FAILED)
    milliseconds = {step.model.removeprefix("classify_"): step.request_ms for step in spent.steps}
    milliseconds |= {"client: classify": result.latency_ms, "client: classify_fused": fused.latency_ms}
    return _Answer(result, milliseconds)


def _table(title: str, grpc: _Answer, http: _Answer) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", show_edge=False, pad_edge=False)
    table.add_column("class", min_width=20)
    table.add_column("score", justify="right", style="cyan")
    table.add_column("step", min_width=22)
    table.add_column("gRPC ms", justify="right", style="cyan")
    table.add_column("HTTP ms", justify="right", style="cyan")
    steps = ((name, f"{ms:.1f}", f"{http.milliseconds[name]:.1f}") for name, ms in grpc.milliseconds.items())
    labels = ((label.label, f"{label.score:.3f}") for label in grpc.classification.labels)
    for label, step in zip_longest(labels, steps):
        table.add_row(*(label or ("", "")), *(step or ("", "", "")))

    return table
