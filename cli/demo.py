"""``onestream demo``: the whole way once, with real photos over both protocols, objects in them, and a video."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from onestream.cli.demo_page.command import demo_page
from onestream.cli.exit_codes import EXIT_CANNOT_START, EXIT_FAILED, fail, needs_extras
from onestream.cli.options import Family
from onestream.cli.predict import print_table
from onestream.cli.stream.board import Board
from onestream.client import Classification, Client, OnestreamError

if TYPE_CHECKING:
    from onestream.serving.server.server import Server

PIPELINE_FILE = Path("pipelines/classify.yaml")
PHOTOS = Path("examples/photos")
DETECT_FILE, TABLE = Path("pipelines/detect.yaml"), PHOTOS / "coffee.jpg"
MATTE_FILE, PERSON = Path("pipelines/matte.yaml"), PHOTOS / "astronaut.jpg"
FOLDER = Path("runs/demo")
_FRAMES = 90
_JPEG_QUALITY = 92


class _Demo(Family):
    """The demo, which takes its photos by an option."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands:
            ctx.fail(f"there is no command {args[0]}; a photo is given so: onestream demo --photo {args[0]}")
        return super().resolve_command(ctx, args)


demo = typer.Typer(cls=_Demo)
demo.command("page")(demo_page)


@demo.callback(invoke_without_command=True)
def _demo(
    context: typer.Context,
    photos: Annotated[
        list[Path] | None,
        typer.Option("--photo", help="Photo; may be repeated.  \\[default: those of examples/photos]"),
    ] = None,
    *,
    repository: Annotated[Path, typer.Option(help="Folder of the model repository.")] = Path("model_repository"),
) -> None:
    """Build the default pipelines, start a server, classify photos over gRPC and HTTP, and stop the server.

    For each photo it prints the five best classes with their scores, and the milliseconds that each step took by
    Triton's own statistics. Then objects are found in the photos, and drawn on one of them; and a 1080p video of a
    person is streamed, and what comes back has its background blurred. Both stay in runs/demo. Exits with 1 where
    anything failed, 2 where a server could not be started.
    """
    if context.invoked_subcommand is not None:
        return
    files = photos or sorted(PHOTOS.glob("*.jpg"))
    if not files or not PIPELINE_FILE.exists():
        fail(f"run the demo in the project's folder: {PIPELINE_FILE} and {PHOTOS} are needed", EXIT_CANNOT_START)
    out, log = Console(), Console(stderr=True)
    with ExitStack() as stack:
        server = _serve(stack, log, [PIPELINE_FILE], repository, None)
        with Client(server.grpc_url) as grpc, Client(server.http_url) as http:
            for file in files:
                try:
                    out.print(_table(file.name, _classify_both_ways(grpc, file), _classify_both_ways(http, file)), "")
                except OnestreamError as error:
                    fail(f"{file.name}: {error}", EXIT_FAILED)
    log.print("Triton is stopped")
    FOLDER.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        pipelines, models = [DETECT_FILE], ["detect_fused"]
        if photos is None:
            pipelines, models = [*pipelines, MATTE_FILE], [*models, "matte_video", "matte_model"]
        # A repository of its own: these pipelines are not among those that the project serves by default.
        server = _serve(stack, log, pipelines, FOLDER / "model_repository", models)
        client = stack.enter_context(Client(server.grpc_url))
        _detect(client, files, out)
        if photos is None:
            _stream(client, out, log)
    log.print("Triton is stopped")
    out.print("\nServe it yourself: [bold]make serve[/bold], then: [bold].venv/bin/onestream predict YOUR.jpg[/bold]")
    out.print(f"Objects, too: before that [bold].venv/bin/onestream build {DETECT_FILE}[/bold], then --pipeline detect")


def _serve(
    stack: ExitStack, log: Console, pipeline_files: Sequence[Path], repository: Path, models: Sequence[str] | None
) -> Server:
    """Build pipelines and serve them, or some of their models, until the stack is closed."""
    with needs_extras("cpu"):
        from onestream.preprocess import PreprocessError
        from onestream.serving.building.build import build
        from onestream.serving.errors import ServingError
        from onestream.serving.server.server import Server
    try:
        with log.status("building the models") as status:
            built = [
                build(file, folder=repository, progress=lambda text: status.update(Text(text)))
                for file in pipeline_files
            ]
        log.print(f"model repository: {repository}, {sum(len(one.written) for one in built)} files written")
        with log.status("starting Triton"):
            server = stack.enter_context(Server(repository, http_port=0, grpc_port=0, metrics_port=0, models=models))
    except (ServingError, PreprocessError) as error:
        fail(str(error), EXIT_CANNOT_START)
    log.print(f"Triton is ready: gRPC {server.grpc_url}, HTTP {server.http_url}")
    return server


def _detect(client: Client, files: Sequence[Path], out: Console) -> None:
    """The objects in the photos as a table, and one of the photos with their boxes."""
    from PIL import Image

    items = list(client.predict_many(files, pipeline="detect_fused", in_flight=1))
    failures = print_table(items, 1)
    if failures:
        fail(f"{failures} of {len(files)} images failed", EXIT_FAILED)
    photo, result = TABLE if TABLE in files else files[0], FOLDER / "detect.jpg"
    found = items[files.index(photo)].unwrap()
    with Image.open(photo) as image:
        found.draw(image).save(result, quality=_JPEG_QUALITY)
    out.print(f"The objects drawn on {photo.name}: [bold]{result}[/bold]\n")


def _stream(client: Client, out: Console, log: Console) -> None:
    """A person's video in, the same over a blurred background out, encoded by the server."""
    from PIL import Image

    from onestream.client.video import VideoWriter
    from onestream.measure.panning import write_panning

    source, result = FOLDER / "person.mp4", FOLDER / "matte.mp4"
    if not source.exists():
        with log.status("making a video of a photo"), Image.open(PERSON) as photo:
            write_panning(source, photo, frames=_FRAMES)
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
