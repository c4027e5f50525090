"""``onestream demo``: the whole way once, with real photos over both protocols, and a video."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from onestream.cli.exit_codes import EXIT_CANNOT_START, EXIT_FAILED, fail
from onestream.cli.stream_board import Board
from onestream.client import Classification, Client, OnestreamError
from onestream.wire.install import install_command

if TYPE_CHECKING:
    from onestream.serving.server.server import Server

PIPELINE_FILE = Path("pipelines/classify.yaml")
PHOTOS = Path("examples/photos")
MATTE_FILE, PERSON = Path("pipelines/matte.yaml"), PHOTOS / "astronaut.jpg"
VIDEO_FOLDER = Path("runs/demo")
_FRAMES = 90


def demo(
    photos: Annotated[
        list[Path] | None, typer.Argument(help="Photos; the ones of examples/photos if left out.")
    ] = None,
    *,
    repository: Annotated[Path, typer.Option(help="Folder of the model repository.")] = Path("model_repository"),
) -> None:
    """Build the default pipelines, start a server, classify photos over gRPC and HTTP, and stop the server.

    For each photo it prints the five best classes with their scores, and the milliseconds that each step took by
    Triton's own statistics. Then a 1080p video of a person is streamed, and what comes back has its background blurred;
    it stays in runs/demo. Exits with 1 where anything failed, 2 where a server could not be started.
    """
    files = photos or sorted(PHOTOS.glob("*.jpg"))
    if not files or not PIPELINE_FILE.exists():
        fail(f"run the demo in the project's folder: {PIPELINE_FILE} and {PHOTOS} are needed", EXIT_CANNOT_START)
    out, log = Console(), Console(stderr=True)
    with ExitStack() as stack:
        server = _serve(stack, log, PIPELINE_FILE, repository, None)
        with Client(server.grpc_url) as grpc, Client(server.http_url) as http:
            for file in files:
                try:
                    out.print(_table(file.name, _classify_both_ways(grpc, file), _classify_both_ways(http, file)), "")
                except OnestreamError as error:
                    fail(f"{file.name}: {error}", EXIT_FAILED)
    log.print("Triton is stopped")
    if photos is None:
        _stream(out, log)
    out.print("\nServe it yourself: [bold]make serve[/bold], then: [bold].venv/bin/onestream classify YOUR.jpg[/bold]")


def _serve(
    stack: ExitStack, log: Console, pipeline_file: Path, repository: Path, models: Sequence[str] | None
) -> Server:
    """Build a pipeline and serve it, or some of its models, until the stack is closed."""
    try:
        from onestream.preprocess import PreprocessError
        from onestream.serving.building.build import build
        from onestream.serving.errors import ServingError
        from onestream.serving.server.server import Server
    except ImportError as error:
        fail(f"{error.name or error} is not installed. Run: {install_command('cpu')}", EXIT_CANNOT_START)
    try:
        with log.status("building the model") as status:
            built = build(pipeline_file, folder=repository, progress=lambda text: status.update(text))
        log.print(f"model repository: {repository}, {len(built.written)} files written")
        with log.status("starting Triton"):
            server = stack.enter_context(Server(repository, http_port=0, grpc_port=0, metrics_port=0, models=models))
    except (ServingError, PreprocessError) as error:
        fail(str(error), EXIT_CANNOT_START)
    log.print(f"Triton is ready: gRPC {server.grpc_url}, HTTP {server.http_url}")
    return server


def _stream(out: Console, log: Console) -> None:
    """A person's video in, the same over a blurred background out, encoded by the server."""
    from PIL import Image

    from onestream.client.video import VideoWriter
    from onestream.measure.panning import write_panning

    VIDEO_FOLDER.mkdir(parents=True, exist_ok=True)
    source, result = VIDEO_FOLDER / "person.mp4", VIDEO_FOLDER / "matte.mp4"
    if not source.exists():
        with log.status("making a video of a photo"), Image.open(PERSON) as photo:
            write_panning(source, photo, frames=_FRAMES)
    with ExitStack() as stack:
        # A repository of its own: the pipeline is not among those that the project serves by default.
        models = ["matte_video", "matte_model"]
        server = _serve(stack, log, MATTE_FILE, VIDEO_FOLDER / "model_repository", models)
        client = stack.enter_context(Client(server.grpc_url))
        board = None
        try:
            with client.stream(source, pipeline="matte") as frames, VideoWriter(result) as video:
                board = Board([frames])
                with Live(get_renderable=lambda: board.table(log), console=log, transient=True):
                    for frame in frames:
                        video.write(frame)
                        board.add(0, frame, "")
        except OnestreamError as error:
            fail(f"{source}: {error}", EXIT_FAILED)
    log.print("Triton is stopped")
    out.print(board.table(out, final=True))
    out.print(f"The person before a blurred background, composed and encoded by the server: [bold]{result}[/bold]")


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
