"""The journal of a run: a line for each image that is done, so that the next run continues a killed one.

A line is complete or it is not there: what follows the last complete line is what a kill cut off, and is dropped. The
first line says what the run is about.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from onestream.cli.bulk.rows import Row


class JournalError(Exception):
    """The journal belongs to another run, is in use by one, or lost what was written to it."""


class Journal:
    """An open journal, locked against other processes. Recover its rows to their end before others are added."""

    def __init__(self, path: Path, about: Mapping[str, Any], *, anew: bool = False) -> None:
        """Open or begin the journal at ``path`` of a run ``about`` these JSON values; ``anew`` drops what is in it.

        Raises JournalError where another process has it open or it is about something else; OSError.
        """
        self.path = path
        self._file = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise JournalError(f"another process writes {path}") from None
        if anew:
            self._file.truncate(0)
        try:
            self._begin(dict(about))
        except BaseException:
            self._file.close()
            raise

    def __iter__(self) -> Iterator[Row]:
        """Every row so far. Raises JournalError for a line that holds none."""
        self._file.seek(self._rows_at)
        for number, line in enumerate(self._file, 1):
            try:
                yield Row.from_journal(line)
            except ValueError as error:
                raise JournalError(f"{self.path} is damaged at row {number}: {error}") from None

    def recover(self) -> Iterator[Row]:
        """The rows of earlier runs. An incomplete line ends them, and is removed with all that follows."""
        at = self._rows_at
        self._file.seek(at)
        for line in self._file:
            try:
                if not line.endswith(b"\n"):
                    raise ValueError("cut off")
                row = Row.from_journal(line)
            except ValueError:
                self._file.truncate(at)
                return
            at += len(line)
            yield row

    def add(self, row: Row) -> None:
        """Write a row; it outlives this process from here on."""
        self._file.write(row.to_journal().encode() + b"\n")
        self._file.flush()

    def remove(self) -> None:
        """Delete the file, after its rows have got to where they belong."""
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _begin(self, about: dict[str, Any]) -> None:
        self._file.seek(0)
        first = self._file.readline()
        if not first.endswith(b"\n"):
            # Empty, or killed before it was begun.
            self._file.truncate(0)
            first = json.dumps(about).encode() + b"\n"
            self._file.write(first)
            self._file.flush()
        try:
            begun = json.loads(first)
        except ValueError:
            raise JournalError(f"{self.path} is no journal; expected one of onestream bulk") from None
        check_same_run(self.path, begun, about)
        self._rows_at = len(first)


def check_same_run(path: Path | str, begun: Any, about: Mapping[str, Any]) -> None:
    """Raise JournalError, which names ``path``, where a run that was ``begun`` is about something else."""
    if begun != about:
        changed = [name for name in about if not isinstance(begun, dict) or begun.get(name) != about[name]]
        seen = {name: begun.get(name) for name in changed} if isinstance(begun, dict) else begun
        now = {name: about[name] for name in changed}
        raise JournalError(f"{path} belongs to another run: {seen}, now {now}")


def replace_durably(temporary: Path, final: Path) -> None:
    """Let ``temporary`` take the place of ``final`` at once, also where the machine loses power afterwards."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, final)
    folder = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
