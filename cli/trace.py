"""``onestream trace``: where the time of a request went, from a trace file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from onestream.cli.exit_codes import EXIT_CANNOT_START, EXIT_FAILED, fail
from onestream.measure.trace_file import BadTraceFile, Step, TracedRequest, read_traces


def trace(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `onestream serve --trace FILE` writes.")],
    request_id: Annotated[
        str | None,
        typer.Argument(metavar="[REQUEST_ID]", help="The request, or its trace's id.  [default: the slowest]"),
    ] = None,
    slowest: Annotated[int, typer.Option(min=1, help="Without a request: how many to show.")] = 3,
) -> None:
    """Show the steps of a request, or of the slowest ones: how long each waited in its queue and computed.

    Exits with 0, 1 when no such request was traced, 2 when the file cannot be read.
    """
    try:
        traces = read_traces(file)
    except BadTraceFile as error:
        fail(str(error), EXIT_CANNOT_START)
    if request_id is None:
        chosen = sorted(traces.requests, key=lambda one: one.total_ms, reverse=True)[:slowest]
    else:
        chosen = [one for one in traces.requests if request_id in (one.request_id, one.trace_id)]
    if not chosen:
        wanted = "no request" if request_id is None else f"no request {request_id!r}"
        fail(f"{wanted} among the {len(traces.requests)} traced in {file}", EXIT_FAILED)
    Console().print(table_of(chosen))
    if traces.unreadable:
        typer.echo(f"lines left out, since they are no traces: {traces.unreadable}", err=True)


def table_of(requests: list[TracedRequest]) -> Table:
    """One section for each request, its steps as a tree; times in milliseconds."""
    table = Table(
        Column("request and its steps", overflow="fold"),
        *(Column(name, justify="right", no_wrap=True) for name in ("start", "queue", "compute", "total")),
        caption="milliseconds",
    )
    for request in requests:
        arrived = datetime.fromtimestamp(request.start_ns / 1e9, timezone.utc)
        name = Text(_shown(request.request_id) or "without an id", style="bold")
        name.append(f"  {arrived:%H:%M:%S.%f}Z", style="dim")
        table.add_row(name, "", "", "", _ms(request.total_ms))
        for line, same in _lines(request.steps, ""):
            total_ms = max(step.start_ms + step.total_ms for step in same) - same[0].start_ms
            queue_ms, compute_ms = _mean(step.queue_ms for step in same), _mean(step.compute_ms for step in same)
            table.add_row(Text(line), _ms(same[0].start_ms), _ms(queue_ms), _ms(compute_ms), _ms(total_ms))
        table.add_section()
    return table


def _lines(steps: Sequence[Step], indent: str) -> Iterator[tuple[str, list[Step]]]:
    """The steps as the lines of a tree, from above to below; those of one model after the other are one line."""
    groups = [list(group) for _, group in groupby(steps, key=lambda step: step.model)]
    for number, same in enumerate(groups, 1):
        last = number == len(groups)
        times = f" ×{len(same)}" if len(same) > 1 else ""
        yield f"{indent}{'└─' if last else '├─'} {_shown(same[0].model)}{times}", same
        called = [step for one in same for step in one.steps]
        yield from _lines(called, indent + ("   " if last else "│  "))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _shown(text: str) -> str:
    """Text of a client, without what would control the terminal."""
    return "".join(character if character.isprintable() else "�" for character in text)
