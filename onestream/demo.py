"""``onestream demo``: the whole way once, with real photos, over both protocols."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from onestream.exits import EXIT_CANNOT_START, EXIT_FAILED, fail

PIPELINE_FILE = Path("pipelines/classify.yaml")
PHOTOS = Path("examples/photos")


def demo(
    photos: Annotated[list[Path] | None, typer.Argument(help="Photos; the ones of examples/photos if left out.")] = None,
    *,
    repository: Annotated[Path, typer.Option(help="Folder of the model repository.")] = Path("model_repository"),
) -> None:
    """Build the default pipeline, start a server, classify photos over gRPC and HTTP, and stop the server.

    For each photo it prints the five best classes with their scores, and the milliseconds that each step took, as
    Triton's own statistics tell. Exits with 1 where a photo failed, 2 where the server could not be started.
    """
    files = photos or sorted(PHOTOS.glob("*.jpg"))
    if not files or not PIPELINE_FILE.exists():
        fail(f"run the demo in the project's folder: {PIPELINE_FILE} and {PHOTOS} are needed", EXIT_CANNOT_START)
    try:
        from client import Client, OnestreamError
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
        failures = 0
        for protocol, url in (("gRPC", server.grpc_url), ("HTTP", server.http_url)):
            with Client(url) as client:
                for file in files:
                    try:
                        out.print(_classified(client, file, protocol))
                    except OnestreamError as error:
                        failures += 1
                        out.print(f"[red]{file.name} over {protocol}: {error}[/red]")
    log.print("Triton is stopped")
    if failures:
        fail(f"{failures} requests failed", EXIT_FAILED)
    out.print("\nServe it yourself: [bold]make serve[/bold], then: [bold].venv/bin/onestream classify YOUR.jpg[/bold]")


def _classified(client: object, file: Path, protocol: str) -> Table:
    """One photo's answer and the milliseconds of its steps."""
    from client import Client

    assert isinstance(client, Client)
    before = client.statistics("classify")
    result = client.classify(file)
    spent = client.statistics("classify") - before
    fused_before = client.statistics("classify_fused")
    fused = client.classify(file, pipeline="classify_fused")
    fused_spent = client.statistics("classify_fused") - fused_before

    table = Table(title=f"{file.name} over {protocol}", title_justify="left", title_style="bold", show_edge=False)
    for column, style in (("class", ""), ("score", "cyan"), ("step", ""), ("ms", "cyan")):
        table.add_column(column, justify="right" if style else "left", style=style, min_width=6)
    steps = [(step.model.removeprefix("classify_"), step.request_ms) for step in spent.steps]
    times = [*steps, ("request, as the client saw it", result.latency_ms), ("the same in classify_fused", fused.latency_ms)]
    for row in range(max(len(times), len(result.labels))):
        label = result.labels[row] if row < len(result.labels) else None
        name, ms = times[row] if row < len(times) else ("", None)
        table.add_row(
            label.label if label else "",
            f"{label.score:.3f}" if label else "",
            name,
            f"{ms:.1f}" if ms is not None else "",
        )
    assert fused.labels == result.labels, "the two forms of a pipeline must agree"
    assert fused_spent.success.count == 1
    return table
