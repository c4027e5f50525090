"""Sinks of rows: lines on the terminal, or a file by way of a journal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import typer

from onestream.cli.bulk.journal import Journal
from onestream.cli.bulk.outputs import ErrorsFile, write_whole
from onestream.cli.bulk.rows import Row


class Sink(Protocol):
    """Takes the rows of a run."""

    def earlier(self) -> Iterable[Row]:
        """The rows that earlier runs wrote. Ask before rows are added."""

    def add(self, row: Row) -> None:
        """Take one row more."""

    def finish(self) -> None:
        """There are no more rows."""

    def close(self) -> None:
        """Let go of files, after ``finish`` or without it."""

    @property
    def kept(self) -> str:
        """A sentence about the rows that a stopped run keeps."""

    @property
    def results(self) -> str:
        """A sentence about the place of the finished results."""


class Terminal:
    """A line for each image, as soon as it is known: for a look, and for pipes."""

    kept = results = ""

    def __init__(self, top: int) -> None:
        self._top = top
        typer.echo(f"{'score':>5}  {'ms':>7}  {'label':<24}  image")

    def earlier(self) -> Iterable[Row]:
        """Nothing is kept."""
        return ()

    def add(self, row: Row) -> None:
        """Print the row; of the second label on without the image's name."""
        name = _printable(f"{row.path} {row.key}".rstrip())
        if row.error is not None:
            typer.echo(f"{'–':>5}  {'–':>7}  {row.error:<24}  {name}: {_printable(row.reason or '')}")
            return
        for rank, label in enumerate(row.labels[: self._top]):
            time, name = (f"{row.latency_ms:.1f}", name) if rank == 0 else ("", "")
            typer.echo(f"{label.score:5.3f}  {time:>7}  {_printable(label.label):<24}  {name}".rstrip())

    def finish(self) -> None:
        """All is said."""

    def close(self) -> None:
        """Nothing is open."""


class OutputFile:
    """``OUT``, and beside it ``OUT.journal`` until it is complete, and ``OUT.errors.csv`` where an image failed."""

    def __init__(self, path: Path, about: dict[str, Any], *, top: int, anew: bool) -> None:
        """Open or begin the journal of a run ``about`` these values; ``anew`` drops what earlier runs have written.

        Raises JournalError where the journal is of another run or in use, FileExistsError where ``path`` is there and
        no journal; OSError.
        """
        self._path, self._top = path, top
        journal = path.with_name(path.name + ".journal")
        if path.exists() and not journal.exists() and not anew:
            raise FileExistsError(f"{path} is there already; --overwrite begins anew")
        with ExitStack() as stack:
            self._journal = stack.enter_context(Journal(journal, about, anew=anew))
            self._errors = ErrorsFile(path.with_name(path.name + ".errors.csv"))
            stack.callback(self._errors.close)
            self._open = stack.pop_all()

    @property
    def kept(self) -> str:
        """The same command goes on."""
        return f"; {self._journal.path} has what is done, and the same command goes on from there"

    @property
    def results(self) -> str:
        """The file, and that of the errors if there is one."""
        errors = f" (errors: {self._errors.path})" if self._errors.path.exists() else ""
        return f" → {self._path}{errors}"

    def earlier(self) -> Iterator[Row]:
        """The rows of the journal. The file of errors is made of them anew."""
        for row in self._journal.recover():
            self._note(row)
            yield row

    def add(self, row: Row) -> None:
        """Write the row; it outlives this process from here on."""
        self._journal.add(row)
        self._note(row)

    def finish(self) -> None:
        """Let the rows take the place of the output, if there are any, and remove the journal."""
        if next(iter(self._journal), None) is not None:
            write_whole(self._path, self._journal, self._top)
        self._journal.remove()

    def close(self) -> None:
        """Close the journal, which stays, and the file of errors."""
        self._open.close()

    def _note(self, row: Row) -> None:
        if row.error is not None:
            self._errors.add(row)


def _printable(text: str) -> str:
    """The text without what could command a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)
