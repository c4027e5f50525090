"""Reads Triton's log as records: lines that belong together become one.

Triton 2.51 writes ``I1121 23:31:43.123456 4711 server.cc:345] "message"``: level, month and day, time in UTC, process,
place in the source, and the message as a JSON string. Tables follow their line unquoted and end with an empty one. Its
OpenTelemetry library writes ``[Error] File: place message``. What models print comes between, as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Literal

Level = Literal["info", "warning", "error", "fatal"]

_LEVELS: dict[str, Level] = {"I": "info", "W": "warning", "E": "error", "F": "fatal"}
_LINE = re.compile(
    r"(?P<level>[IWEF])(?P<date>\d{4}) (?P<time>\d\d:\d\d:\d\d\.\d{6}) \d+ (?P<place>[\w.+-]+:\d+)\] ?(?P<message>.*)"
)
_TRACER_LINE = re.compile(r"\[(?P<level>Error|Warning)\] File: \S*?(?P<place>[\w.+-]+:\d+) ?(?P<message>.*)")
_FROM_A_MODEL = re.compile(r"(?P<model>[\w.-]+): (?:request (?P<request_id>\S+): )?(?P<message>.*)", re.DOTALL)
_REQUEST = re.compile(r"\[request id: (?!<id_unknown>)(?P<request_id>[^\]]+)\] ")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """One thing that the log says.

    Attributes:
        time: when, in UTC.
        level: how bad it is; *info* for what is printed without a level.
        source: *triton*, or the name of the model that wrote it.
        message: the text, which may have several lines.
        request_id: the request that it is about; None where it names none.
        place: file and line of the source that wrote it; None for what is printed without.
    """

    time: datetime
    level: Level
    source: str
    message: str
    request_id: str | None = None
    place: str | None = None


class LogReader:
    """Lines to records, in their order.

    Args:
        is_model: whether a model has this name.
        now: the present, in UTC: the log's lines lack the year, and printed ones any time.
    """

    def __init__(
        self, *, is_model: Callable[[str], bool], now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)
    ) -> None:
        self._is_model, self._now = is_model, now
        self._table: LogRecord | None = None
        self._rows: list[str] = []

    def read(self, line: str) -> Iterator[LogRecord]:
        """The records that are complete with this line, which has no line end."""
        found = _LINE.fullmatch(line)
        if self._table is not None:
            if found is None and line:
                self._rows.append(line)
                return
            yield from self.rest()
        if found is not None and not found["message"]:
            self._table = self._record(found)
        elif found is not None:
            yield self._record(found)
        elif line.strip():
            yield self._printed(line)

    def rest(self) -> Iterator[LogRecord]:
        """The record that is still open at the end of the log."""
        if self._table is not None:
            record, rows = self._table, self._rows
            self._table, self._rows = None, []
            yield replace(record, message="\n".join(rows))

    def _record(self, found: re.Match[str]) -> LogRecord:
        message, source, request_id = _unquoted(found["message"]), "triton", None
        said = _FROM_A_MODEL.fullmatch(message)
        if said is not None and (said["request_id"] or self._is_model(said["model"])):
            source, request_id, message = said["model"], said["request_id"], said["message"]
        elif asked := _REQUEST.search(message):
            request_id = asked["request_id"]
        return LogRecord(
            time=self._time(found["date"], found["time"]),
            level=_LEVELS[found["level"]],
            source=source,
            message=message,
            request_id=request_id,
            place=found["place"],
        )

    def _printed(self, line: str) -> LogRecord:
        said = _TRACER_LINE.fullmatch(line)
        if said is None:
            return LogRecord(time=self._now(), level="info", source="triton", message=line)
        level: Level = "error" if said["level"] == "Error" else "warning"
        return LogRecord(time=self._now(), level=level, source="triton", message=said["message"], place=said["place"])

    def _time(self, date: str, time: str) -> datetime:
        """The moment in the latest year that does not lie in the future; now for what is no moment."""
        now = self._now()
        for year in (now.year + 1, now.year, now.year - 1):
            try:
                moment = datetime.strptime(f"{year}{date} {time}", "%Y%m%d %H:%M:%S.%f").replace(tzinfo=timezone.utc)
            except ValueError:
                continue
            # Clocks may be set back a little while a server runs.
            if moment <= now + timedelta(days=1):
                return moment
        return now


def _unquoted(message: str) -> str:
    if message.startswith('"') and message.endswith('"'):
        try:
            text = json.loads(message)
        except ValueError:
            return message
        return str(text)
    return message
