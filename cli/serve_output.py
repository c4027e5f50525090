"""Prints for ``onestream serve``: text for people, or one JSON object a line for what collects logs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import typer

from onestream.wire.refusals import SAID_ONCE

if TYPE_CHECKING:
    from onestream.serving.server.log_records import LogRecord
    from onestream.serving.server.server import Server

MOST_WAITING = 10_000
"""Lines that wait for a slow reader; those that come on top are dropped."""

_LAST_LINES_S = 2.0


class LineWriter:
    """Writes lines from a thread of its own, in their order. Any thread may call it.

    A reader that stops reading costs lines, which are counted; one that goes away costs all that follow.

    Args:
        stream: where the lines go.
        dropped: makes the line that stands in place of so many dropped ones.
    """

    def __init__(self, stream: TextIO, *, dropped: Callable[[int], str]) -> None:
        self._stream, self._dropped = stream, dropped
        self._waiting: deque[str] = deque()
        self._left_out = 0
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="line-writer", daemon=True)
        self._thread.start()

    def say(self, line: str) -> None:
        """Have a line written, or dropped where too many wait; returns at once."""
        with self._changed:
            if len(self._waiting) >= MOST_WAITING:
                self._left_out += 1
            else:
                self._append(line)

    def close(self, last: str | None = None) -> None:
        """Write a last line, which is never dropped, after all that wait; gives a stuck reader 2 seconds."""
        with self._changed:
            self._append(last)
            self._closed = True
            self._changed.notify()
        self._thread.join(_LAST_LINES_S)

    def _append(self, line: str | None) -> None:
        if self._left_out:
            self._waiting.append(self._dropped(self._left_out))
            self._left_out = 0
        if line is not None:
            self._waiting.append(line)
        self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                line = self._waiting.popleft()
            with contextlib.suppress(OSError):  # nobody reads any more
                self._write(f"{line}\n")

    def _write(self, text: str) -> None:
        try:
            number = self._stream.fileno()
        except OSError:  # a stream in memory
            self._stream.write(text)
            self._stream.flush()
            return
        # Not through the stream: Python aborts when it ends while a thread is stuck in one.
        left = text.encode(self._stream.encoding, "backslashreplace")
        while left:
            left = left[os.write(number, left) :]


_LOAD_EVENT = re.compile(r"\"(?P<what>successfully loaded|loading:|failed to load) ?'?(?P<model>[\w.-]+?)(?::\d+)?'?\"")

_NOTICE = re.compile(rf"\] \"(?P<text>.*{re.escape(SAID_ONCE)})\"$")


class Output(ABC):
    """Prints a server's events and Triton's log. Any thread may call it; it waits for no reader before the end."""

    def __init__(self) -> None:
        self._stdout = LineWriter(sys.stdout, dropped=self._dropped)
        self._stderr = LineWriter(sys.stderr, dropped=self._dropped)

    @abstractmethod
    def event(self, line: str) -> None:
        """Something that onestream says."""

    @abstractmethod
    def log_line(self, line: str) -> None:
        """A line of Triton's log."""

    @abstractmethod
    def ready(self, server: Server) -> None:
        """The server answers."""

    @abstractmethod
    def stopped(self) -> None:
        """The server was told to stop, and did."""

    @abstractmethod
    def failed(self, message: str, code: int) -> NoReturn:
        """End the command with its last line."""

    @abstractmethod
    def _dropped(self, count: int) -> str:
        """The line in place of those that nobody read in time."""

    def _end(self, line: str) -> None:
        self._stdout.close()
        self._stderr.close(line)


class TextOutput(Output):
    """Lines for people: events, and of Triton's log all, or only which models are loading and loaded and what is passed
    over in pictures.
    """

    def __init__(self, *, verbose: bool) -> None:
        super().__init__()
        self._verbose = verbose
        self._said: set[str] = set()

    def event(self, line: str) -> None:
        """Print it on stderr."""
        self._stderr.say(line)

    def log_line(self, line: str) -> None:
        """Print the line, or what it says about a model's loading and what is passed over, until that was said once."""
        if self._verbose:
            self.event(line)
            return
        said = _told(line)
        if said and said not in self._said:
            self._said.add(said)
            self.event(said)

    def ready(self, server: Server) -> None:
        """Print the addresses on stdout."""
        self._stdout.say(_ready_line(server))

    def stopped(self) -> None:
        """Print it on stderr."""
        self._end("stopped")

    def failed(self, message: str, code: int) -> NoReturn:
        """End the command with a line on stderr."""
        line = f"error: {message}"
        self._end(typer.style(line, fg=typer.colors.RED) if sys.stderr.isatty() else line)
        raise typer.Exit(code)

    def _dropped(self, count: int) -> str:
        return _dropped_message(count)


class JsonOutput(Output):
    """One JSON object a line: events, and all of Triton's log.

    Args:
        repository: folder of models, whose names tell a model's lines from Triton's own.
    """

    def __init__(self, repository: Path) -> None:
        from onestream.serving.server.log_records import LogReader

        super().__init__()
        self._reader = LogReader(is_model=lambda name: (repository / name).is_dir())

    def event(self, line: str) -> None:
        """Print it on stderr."""
        self._stderr.say(_own_line("info", line))

    def log_line(self, line: str) -> None:
        """Print the records that are complete with this line."""
        self._write_records(self._reader.read(line))

    def ready(self, server: Server) -> None:
        """Print the addresses on stdout."""
        addresses = {"http_url": server.http_url, "grpc_url": server.grpc_url, "metrics_url": server.metrics_url}
        models = {"models": server.models, "failures": server.failures}
        self._stdout.say(_own_line("info", _ready_line(server), **addresses, **models))

    def stopped(self) -> None:
        """Print it on stderr, after what is left of the log."""
        self._write_records(self._reader.rest())
        self._end(_own_line("info", "stopped"))

    def failed(self, message: str, code: int) -> NoReturn:
        """End the command with a line on stderr, after what is left of the log."""
        self._write_records(self._reader.rest())
        self._end(_own_line("error", message))
        raise typer.Exit(code)

    def _dropped(self, count: int) -> str:
        return _own_line("warning", _dropped_message(count))

    def _write_records(self, records: Iterable[LogRecord]) -> None:
        for record in records:
            self._stderr.say(json.dumps(_fields(record)))


def _own_line(level: str, message: str, **more: Any) -> str:
    now = _rfc3339(datetime.now(timezone.utc))
    return json.dumps({"time": now, "level": level, "source": "onestream", "message": message, **more})


def _fields(record: LogRecord) -> dict[str, str]:
    fields = {
        "time": _rfc3339(record.time),
        "level": record.level,
        "source": record.source,
        "message": record.message,
        "request_id": record.request_id,
        "place": record.place,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _rfc3339(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _told(line: str) -> str:
    """A line of Triton's log for people; empty where it is not for them."""
    if notice := _NOTICE.search(line.rstrip()):
        return f"  {notice['text']}"
    event = _LOAD_EVENT.search(line)
    if event is None:
        return ""
    what = {"loading:": "loading", "successfully loaded": "loaded"}.get(event["what"], "failed")
    return f"  {what} {event['model']}"


def _ready_line(server: Server) -> str:
    return (
        f"ready: {server.http_url} {server.grpc_url} {server.metrics_url} "
        f"models: {', '.join(server.models)} "
        + (f"without: {', '.join(sorted(server.failures))} " if server.failures else "")
        + f"({server.device}; log: {server.log_path})"
    )


def _dropped_message(count: int) -> str:
    return f"{count} lines were dropped here: nobody read them in time"
