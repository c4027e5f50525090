"""``onestream top``: live rate, latency, batch sizes, queues and errors of a running server."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Annotated, Protocol
from urllib.parse import urlsplit

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from onestream.cli.exit_codes import EXIT_CANNOT_START, fail
from onestream.cli.top.reading import NoMetrics, Reading, read
from onestream.cli.top.report import Report, report
from onestream.cli.top.view import as_dict, table

_ENDS = b"qQ"


@contextmanager
def waiting() -> Iterator[Callable[[float], bool]]:
    """Yield a function that waits for seconds, and tells whether q was pressed meanwhile.

    Keys come one by one and are not shown; the terminal is as before at the end. Where standard input is no terminal,
    it only waits. SIGTERM, as from ``timeout``, becomes a KeyboardInterrupt, or the terminal would not be given back.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not sys.stdin.isatty():
        yield sleep
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        # Ctrl-C stays an interrupt.
        tty.setcbreak(descriptor)
        yield lambda seconds: _wait_for_key(descriptor, seconds)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def sleep(seconds: float) -> bool:
    """Wait where there are no keys: no q was pressed."""
    time.sleep(seconds)
    return False


def _wait_for_key(descriptor: int, seconds: float) -> bool:
    until_s = time.monotonic() + seconds
    while True:
        readable, _, _ = select.select([descriptor], [], [], max(0.0, until_s - time.monotonic()))
        if not readable:
            return False
        pressed = os.read(descriptor, 64)
        # Nothing is read where the terminal is gone.
        if not pressed or any(key in _ENDS for key in pressed):
            return True


_REDRAWS_PER_S = 4


class _Show(Protocol):
    """Shows reports."""

    def report(self, report: Report) -> None:
        """An interval is over."""

    def missing(self, reason: str) -> None:
        """There are no metrics now."""


def top(
    *,
    metrics_url: Annotated[
        str,
        typer.Option(
            envvar="ONESTREAM_METRICS_URL",
            help="Where the server's metrics are: http://HOST:PORT/metrics, or HOST:PORT.",
        ),
    ] = "http://127.0.0.1:8002/metrics",
    interval_s: Annotated[float, typer.Option(min=0.1, help="Seconds from one reading to the next.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="One interval, then end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line for each interval.")] = False,
) -> None:
    """Show what a running server does: rate, latency, queues, batches, errors, and where the time goes.

    Ends with q or Ctrl-C. A server that is not there is waited for; with --once the exit status is 2 then.
    """
    try:
        url = _address(metrics_url)
    except ValueError as error:
        fail(str(error), EXIT_CANNOT_START)
    try:
        if as_json:
            _watch(url, interval_s, _Json(), sleep, once=once)
        elif once or not sys.stdout.isatty() or Console().is_dumb_terminal:
            _watch(url, interval_s, _Printed(), sleep, once=once)
        else:
            with _screen(url) as show, waiting() as wait:
                _watch(url, interval_s, show, wait, once=False)
    except KeyboardInterrupt:
        pass


def _address(given: str) -> str:
    """The address with everything that may be left out."""
    url = given if "://" in given else f"http://{given}"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ValueError(f"--metrics-url takes http://HOST:PORT/metrics or HOST:PORT, not {given!r}")
    return url if parts.path.strip("/") else f"{url.rstrip('/')}/metrics"


def _watch(url: str, interval_s: float, show: _Show, wait: Callable[[float], bool], *, once: bool) -> None:
    """Read again and again, until ``wait`` says that it is enough, or after one interval."""
    before: Reading | None = None
    while True:
        began_s = time.monotonic()
        try:
            after = read(url)
        except NoMetrics as error:
            if once:
                fail(str(error), EXIT_CANNOT_START)
            show.missing(str(error))
            # Whatever answers next may be another server, whose counters say nothing of this interval.
            before = None
        else:
            if before is not None:
                show.report(report(before, after))
                if once:
                    return
            before = after
        if wait(max(0.0, interval_s - (time.monotonic() - began_s))):
            return


class _Json:
    """One JSON object a line, on stdout."""

    def report(self, report: Report) -> None:
        typer.echo(json.dumps({"time": _now()} | as_dict(report)))

    def missing(self, reason: str) -> None:
        typer.echo(json.dumps({"time": _now(), "error": reason}))


class _Printed:
    """One table after another on stdout; what is missing once, on stderr."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._missing: str | None = None

    def report(self, report: Report) -> None:
        self._missing = None
        self._console.print(Text(_now()), table(report), "", sep="\n")

    def missing(self, reason: str) -> None:
        if reason != self._missing:
            typer.secho(f"{reason}; trying again", fg=typer.colors.RED, err=True)
        self._missing = reason


class _Screen:
    """The last report, drawn anew several times a second, so that it fits a window that changes."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._report: RenderableType = Text("reading …")
        self._missing: str | None = None

    def report(self, report: Report) -> None:
        self._report, self._missing = table(report), None

    def missing(self, reason: str) -> None:
        self._missing = reason

    def renderable(self) -> RenderableType:
        """All that is on the screen."""
        head = Text.assemble(("onestream top", "bold"), f"  {self._url}  {datetime.now():%H:%M:%S}  q quits")
        head.no_wrap, head.overflow = True, "ellipsis"
        if self._missing is not None:
            return Group(head, Text(f"{self._missing}; trying again", style="red"))
        return Group(head, self._report)


@contextmanager
def _screen(url: str) -> Iterator[_Screen]:
    show = _Screen(url)
    with Live(get_renderable=show.renderable, screen=True, refresh_per_second=_REDRAWS_PER_S):
        yield show


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
