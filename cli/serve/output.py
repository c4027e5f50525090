"""Prints for ``onestream serve``: text for people, or one JSON object a line for what collects logs."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
import threading
from collections.abc import Iterable
from datetime import datetime, timezone
from logging.handlers import QueueHandler
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import typer

from onestream.wire.refusals import SAID_ONCE

if TYPE_CHECKING:
    from onestream.serving.server.log_records import LogRecord
    from onestream.serving.server.server import Server

MOST_WAITING = 10_000
"""Lines that wait for a slow reader; those that come on top are dropped."""

_LAST_LINES_S = 2.0


class LineWriter(QueueHandler):
    """Writes records as lines from a thread of its own, in their order. Any thread may call it.

    A reader that stops reading costs lines, which are counted; one that goes away costs all that follow.

    Args:
        stream: where the lines go.
        formatter: makes a line of a record.
    """

    def __init__(self, stream: TextIO, formatter: logging.Formatter) -> None:
        self._waiting: SimpleQueue[logging.LogRecord | None] = SimpleQueue()
        super().__init__(self._waiting)
        self.setFormatter(formatter)
        self._stream = stream
        self._left_out = 0
        self._thread = threading.Thread(target=self._run, name="line-writer", daemon=True)
        self._thread.start()

    def enqueue(self, record: logging.LogRecord) -> None:
        """Have a record written, or dropped where too many wait; returns at once."""
        if self._waiting.qsize() >= MOST_WAITING:
            self._left_out += 1
        else:
            self._put(record)

    def finish(self, last: logging.LogRecord | None = None) -> None:
        """Write a last record, which is never dropped, after all that wait; gives a stuck reader 2 seconds."""
        self.acquire()
        self._put(None if last is None else self.prepare(last))
        self._waiting.put(None)
        self.release()
        self._thread.join(_LAST_LINES_S)

    def _put(self, record: logging.LogRecord | None) -> None:
        if self._left_out:
            dropped = f"{self._left_out} lines were dropped here: they were not read in time"
            self._waiting.put(self.prepare(own_record("warning", dropped)))
            self._left_out = 0
        if record is not None:
            self._waiting.put(record)

    def _run(self) -> None:
        for record in iter(self._waiting.get, None):
            with contextlib.suppress(OSError):  # its reader is gone
                self._write(f"{record.msg}\n")

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


class _Text(logging.Formatter):
    """The message, of an error in red on a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        if record.levelname != "error":
            return str(record.msg)
        line = f"error: {record.msg}"
        return typer.style(line, fg=typer.colors.RED) if sys.stderr.isatty() else line


class _Json(logging.Formatter):
    """One JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, timezone.utc)
        time = moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
        fields = {"time": time, "level": record.levelname, "source": record.name, "message": record.msg}
        return json.dumps(fields | record.__dict__["fields"])


def own_record(level: str, message: str, **fields: Any) -> logging.LogRecord:
    """What onestream itself says, with further fields for JSON."""
    return logging.makeLogRecord({"name": "onestream", "levelname": level, "msg": message, "fields": fields})


_LOAD_EVENT = re.compile(r"\"(?P<what>successfully loaded|loading:|failed to load) ?'?(?P<model>[\w.-]+?)(?::\d+)?'?\"")

_NOTICE = re.compile(rf"\] \"(?P<text>.*{re.escape(SAID_ONCE)})\"$")


class Output:
    """Prints a server's events and Triton's log. Any thread may call it; it waits for no reader before the end."""

    def __init__(self, formatter: logging.Formatter) -> None:
        self._stdout = LineWriter(sys.stdout, formatter)
        self._stderr = LineWriter(sys.stderr, formatter)

    def event(self, line: str) -> None:
        """Print what onestream says, on stderr."""
        self._stderr.handle(own_record("info", line))

    def log_line(self, line: str) -> None:
        """Print a line of Triton's log."""
        raise NotImplementedError

    def ready(self, server: Server) -> None:
        """Print the addresses on stdout: the server answers."""
        addresses = {"http_url": server.http_url, "grpc_url": server.grpc_url, "metrics_url": server.metrics_url}
        line = (
            f"ready: {' '.join(addresses.values())} models: {', '.join(server.models)} "
            + (f"without: {', '.join(sorted(server.failures))} " if server.failures else "")
            + f"({server.device}; log: {server.log_path})"
        )
        self._stdout.handle(own_record("info", line, **addresses, models=server.models, failures=server.failures))

    def stopped(self) -> None:
        """Print on stderr that the server was told to stop, and did."""
        self._end(own_record("info", "stopped"))

    def failed(self, message: str, code: int) -> NoReturn:
        """End the command with its last line, on stderr."""
        self._end(own_record("error", message))
        raise typer.Exit(code)

    def _end(self, last: logging.LogRecord) -> None:
        self._stdout.finish()
        self._stderr.finish(last)


class TextOutput(Output):
    """Lines for people: events, and of Triton's log all, or only which models are loading and loaded and what is passed
    over in pictures.
    """

    def __init__(self, *, verbose: bool) -> None:
        super().__init__(_Text())
        self._verbose = verbose
        self._said: set[str] = set()

    def log_line(self, line: str) -> None:
        """Print the line, or what it says about a model's loading and what is passed over, until that was said once."""
        if self._verbose:
            self.event(line)
        elif (said := _told(line)) and said not in self._said:
            self._said.add(said)
            self.event(said)


class JsonOutput(Output):
    """One JSON object a line: events, and all of Triton's log.

    Args:
        repository: folder of models, by whose names a model's lines are known from Triton's own.
    """

    def __init__(self, repository: Path) -> None:
        from onestream.serving.server.log_records import LogReader

        super().__init__(_Json())
        self._reader = LogReader(is_model=lambda name: (repository / name).is_dir())

    def log_line(self, line: str) -> None:
        """Print the records that are complete with this line."""
        self._print(self._reader.read(line))

    def _end(self, last: logging.LogRecord) -> None:
        self._print(self._reader.rest())
        super()._end(last)

    def _print(self, records: Iterable[LogRecord]) -> None:
        for record in records:
            fields = {name: value for name in ("request_id", "place") if (value := getattr(record, name)) is not None}
            about = {"name": record.source, "levelname": record.level, "created": record.time.timestamp()}
            self._stderr.handle(logging.makeLogRecord({**about, "msg": record.message, "fields": fields}))


def _told(line: str) -> str:
    """A line of Triton's log for people; empty where it is not for them."""
    if notice := _NOTICE.search(line.rstrip()):
        return f"  {notice['text']}"
    event = _LOAD_EVENT.search(line)
    if event is None:
        return ""
    what = {"loading:": "loading", "successfully loaded": "loaded"}.get(event["what"], "failed")
    return f"  {what} {event['model']}"
