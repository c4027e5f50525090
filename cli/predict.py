"""``onestream predict``: image files in, a table, text or JSON lines out, and pictures with what was found."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Column, Table
from rich.text import Text

from onestream.cli.drawn_files import CannotDraw, DrawnFiles
from onestream.cli.exit_codes import EXIT_CANNOT_START, EXIT_FAILED, EXIT_INTERRUPTED, fail
from onestream.cli.messages import lines, printable, short_path, table_console, without_name
from onestream.cli.options import (
    TRIES_ALL,
    AllOption,
    InputOption,
    PagesOption,
    ParameterOption,
    SharedMemoryOption,
    TimeoutOption,
    TokenOption,
    UrlOption,
    read_inputs,
    read_parameters,
    server_url,
)
from onestream.client import BadImage, Client, Item, OnestreamError, Result
from onestream.client.pages import Page, every_page
from onestream.measure.image_files import ImageNames, expand


def predict(
    images: Annotated[
        list[str], typer.Argument(metavar="IMAGES", help="Images, directories of images, or patterns like '*.jpg'.")
    ],
    *,
    url: UrlOption = None,
    token: TokenOption = None,
    pipeline: Annotated[str, typer.Option(help="The served pipeline, such as detect or classify_fused.")] = "classify",
    every_file: AllOption = False,
    pages: PagesOption = "first",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per image, also for errors.")] = False,
    draw: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write the pictures into this folder, with what was found drawn on them."),
    ] = None,
    top: Annotated[
        int, typer.Option(min=1, help="How many classes to show for each image; objects and text are shown all.")
    ] = 1,
    parameter: ParameterOption = None,
    network_input: InputOption = None,
    in_flight: Annotated[int, typer.Option(min=1, help="How many images to send at once.")] = 8,
    timeout_s: TimeoutOption = None,
    shared_memory: SharedMemoryOption = False,
) -> None:
    """Show what a pipeline on a running server says about images: their classes, the objects or the text in them.

    Exits with 0 when all went well, 1 when an image failed (the others are still shown), 2 when nothing
    could be sent or drawn.
    """
    names = ImageNames(every_file=every_file, way_out=TRIES_ALL)
    paths = expand(images, names)
    if not paths:
        fail(names.none_in(images), EXIT_CANNOT_START)
    if draw is not None and pages == "all":
        fail("--draw draws on whole files, of which it takes the first page; leave --pages all out", EXIT_CANNOT_START)
    try:
        parameters, inputs = read_parameters(parameter), read_inputs(network_input)
        drawn = None if draw is None else DrawnFiles(draw, paths)
        client = Client(server_url(url), token=token, timeout_s=timeout_s, shared_memory=shared_memory)
    except ValueError as error:
        fail(str(error), EXIT_CANNOT_START)
    try:
        with client:
            # Asks the server about the pipeline, so a wrong address or name ends here, not once per image.
            max_bytes = client.max_body_bytes(pipeline)
            sources = every_page(paths, max_bytes=max_bytes) if pages == "all" else paths
            items = client.predict_many(
                sources, pipeline=pipeline, in_flight=in_flight, inputs=inputs, parameters=parameters
            )
            if drawn is not None:
                items = map(drawn.write, items)
            if sys.stderr.isatty() and not (as_json and sys.stdout.isatty()):
                items = _with_progress(items, len(paths) if pages == "first" else None)
            failures = print_json(items, top) if as_json else print_for_people(items, top, several=len(paths) > 1)
    except (OnestreamError, CannotDraw) as error:
        fail(str(error), EXIT_CANNOT_START)
    except KeyboardInterrupt:
        fail("interrupted", EXIT_INTERRUPTED)
    if names.passed_over:
        typer.echo(names.passed_over, err=True)
    if failures:
        of = f" of {len(paths)}" if pages == "first" else ""
        fail(f"{failures}{of} images failed", EXIT_FAILED)


def _with_progress(items: Iterable[Item[Result]], total: int | None) -> Iterator[Item[Result]]:
    console = Console(stderr=True)
    # Rich would otherwise take over stdout, which belongs to the results.
    with Progress(console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as progress:
        yield from progress.track(items, total=total, description="Predicting")


def print_json(items: Iterable[Item[Result]], top: int) -> int:
    """One JSON object a line, as soon as each is known; the number of images that failed."""
    failures = 0
    for item in items:
        failures += item.error is not None
        typer.echo(json.dumps(_to_dict(item, top)))
    return failures


def _to_dict(item: Item[Result], top: int) -> dict[str, Any]:
    path: dict[str, Any] = {"path": str(item.source)}
    if isinstance(item.source, Page):
        path = {"path": item.source.path, "page": item.source.number}
    if item.error is None:
        return path | item.unwrap().best(top).to_dict()
    error: dict[str, Any] = {"type": type(item.error).__name__, "message": str(item.error)}
    if isinstance(item.error, BadImage):
        error |= {"code": item.error.code, "reason": item.error.reason}
    return {**path, "request_id": item.error.request_id, "error": error}


def print_for_people(items: Iterable[Item[Result]], top: int, *, several: bool) -> int:
    """Text as it was read, anything else as a table; the number of images that failed."""
    left = iter(items)
    first: list[Item[Result]] = []
    for item in left:
        first.append(item)
        if item.result is not None:
            break
    everything = chain(first, left)
    shown = first[-1].result if first else None
    if shown is not None and shown.prints_texts:
        return print_texts(everything, several=several)
    return print_table(everything, top)


def print_texts(items: Iterable[Item[Result]], *, several: bool) -> int:
    """The text of all images at the end, each below its path where there are ``several``.

    The number of images that failed; standard error says why they did, and which have no text.
    """
    texts: list[str] = []
    notes: list[str] = []
    failures = 0
    for item in items:
        path = printable(str(item.source))
        if item.error is not None:
            failures += 1
            notes.append(_failed(item))
            continue
        result = item.unwrap()
        found = [line.what for line in result.summary()]
        if several:
            texts += ["", path] if texts else [path]
        texts += map(printable, found)
        notes += [f"{path}: {note}" for note in ("" if found else result.nothing, result.note) if note]
    for line in texts:
        typer.echo(line)
    for note in notes:
        typer.echo(note, err=True)
    return failures


def _failed(item: Item[Result]) -> str:
    """Which image failed and why."""
    return f"{printable(str(item.source))}: {printable(without_name(item.error))}"


def print_table(items: Iterable[Item[Result]], top: int) -> int:
    """A table of all answers at the end; the number of images that failed. Standard error says why they did."""
    console = table_console()
    rows: list[tuple[Text | str, ...]] = []
    failures, what, where = 0, "label", ""
    notes: list[str] = []
    for item in items:
        if item.error is not None:
            failures += 1
            notes.append(_failed(item))
            continue
        name: Text | str = short_path(str(item.source), console)
        result = item.unwrap()
        what, where = result.titles
        if result.note:
            notes.append(f"{printable(str(item.source))}: {result.note}")
        time = f"{result.latency_ms:.1f}"
        for line in lines(result, top):
            score = "" if line.score is None else f"{line.score:.3f}"
            rows.append((name, Text(line.what), score, Text(line.where), time))
            name = time = ""
    columns = [
        Column("image", no_wrap=True),
        Column(what, overflow="fold"),
        Column("score", justify="right", no_wrap=True),
        Column(where, overflow="fold"),
        Column("ms", justify="right", no_wrap=True),
    ]
    shown = [index for index, column in enumerate(columns) if column.header]
    table = Table(*(columns[index] for index in shown))
    for row in rows:
        table.add_row(*(row[index] for index in shown))
    if rows:
        console.print(table)
    for note in notes:
        typer.echo(note, err=True)
    return failures
