"""``onestream classify``: image files in, a table or JSON lines out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Column, Table
from rich.text import Text

from onestream.cli.all_option import TRIES_ALL, AllOption
from onestream.cli.exit_codes import EXIT_CANNOT_START, EXIT_FAILED, EXIT_INTERRUPTED, fail
from onestream.cli.messages import short_path, table_console, without_name
from onestream.cli.token_option import TokenOption
from onestream.client import DEFAULT_URL, BadImage, Classification, Client, Item, OnestreamError
from onestream.measure.image_files import ImageNames, expand


def classify(
    files: Annotated[
        list[str], typer.Argument(metavar="FILES", help="Images, directories of images, or patterns like '*.jpg'.")
    ],
    *,
    url: Annotated[
        str, typer.Option(help="The server: host:port or grpc://… for gRPC, http://… for HTTP.")
    ] = DEFAULT_URL,
    token: TokenOption = None,
    pipeline: Annotated[str, typer.Option(help="The served pipeline, such as classify_fused.")] = "classify",
    every_file: AllOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per image, also for errors.")] = False,
    top: Annotated[int, typer.Option(min=1, help="How many labels to show for each image.")] = 1,
    in_flight: Annotated[int, typer.Option(min=1, help="How many images to send at once.")] = 8,
    timeout_s: Annotated[float, typer.Option(min=0.001, help="Seconds that one image may take.")] = 10.0,
    shared_memory: Annotated[
        bool, typer.Option("--shared-memory", help="Hand images over in shared memory (server on this machine).")
    ] = False,
) -> None:
    """Classify images on a running server.

    Exits with 0 when all went well, 1 when an image failed (the others are still shown), 2 when nothing
    could be sent.
    """
    names = ImageNames(every_file=every_file, way_out=TRIES_ALL)
    paths = expand(files, names)
    if not paths:
        fail(names.none_in(files), EXIT_CANNOT_START)
    try:
        client = Client(url, token=token, timeout_s=timeout_s, shared_memory=shared_memory)
    except ValueError as error:
        fail(str(error), EXIT_CANNOT_START)
    try:
        with client:
            # Asks the server about the pipeline, so a wrong address or name ends here, not once per image.
            client.max_body_bytes(pipeline)
            items = client.classify_many(paths, pipeline=pipeline, in_flight=in_flight)
            if sys.stderr.isatty() and not (as_json and sys.stdout.isatty()):
                items = _with_progress(items, len(paths))
            failures = print_json(items, top) if as_json else print_table(items, top)
    except OnestreamError as error:
        fail(str(error), EXIT_CANNOT_START)
    except KeyboardInterrupt:
        fail("interrupted", EXIT_INTERRUPTED)
    if names.passed_over:
        typer.echo(names.passed_over, err=True)
    if failures:
        fail(f"{failures} of {len(paths)} images failed", EXIT_FAILED)


def _with_progress(items: Iterable[Item[Classification]], total: int) -> Iterator[Item[Classification]]:
    console = Console(stderr=True)
    # Rich would otherwise take over stdout, which belongs to the results.
    with Progress(console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as progress:
        yield from progress.track(items, total=total, description="Classifying")


def print_json(items: Iterable[Item[Classification]], top: int) -> int:
    """One JSON object a line, as soon as each is known; the number of images that failed."""
    failures = 0
    for item in items:
        failures += item.error is not None
        typer.echo(json.dumps(_to_dict(item, top)))
    return failures


def _to_dict(item: Item[Classification], top: int) -> dict[str, Any]:
    if item.error is None:
        fields = item.unwrap().to_dict()
        return {"source": str(item.source), **fields, "labels": fields["labels"][:top]}
    error: dict[str, Any] = {"type": type(item.error).__name__, "message": str(item.error)}
    if isinstance(item.error, BadImage):
        error |= {"code": item.error.code, "reason": item.error.reason}
    return {"source": str(item.source), "request_id": item.error.request_id, "error": error}


def print_table(items: Iterable[Item[Classification]], top: int) -> int:
    """A table of all images at the end; the number of images that failed."""
    table = Table(
        Column("image", no_wrap=True),
        Column("label", overflow="fold"),
        Column("score", justify="right", no_wrap=True),
        Column("ms", justify="right", no_wrap=True),
    )
    console = table_console()
    failures = 0
    for item in items:
        name = short_path(str(item.source), console)
        if item.error is not None:
            failures += 1
            table.add_row(name, Text(without_name(item.error), style="red"))
            continue
        result = item.unwrap()
        for rank, label in enumerate(result.labels[:top]):
            table.add_row(
                name if rank == 0 else "",
                Text(label.label),
                f"{label.score:.3f}",
                f"{result.latency_ms:.1f}" if rank == 0 else "",
            )
    console.print(table)
    return failures
