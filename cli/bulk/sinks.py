"""Sinks of rows: lines on the terminal, or a file by way of a journal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import typer

from onestream.cli.bulk.journal import Journal
from onestream.cli.bulk.outputs import ErrorsFile, Unwritable, check_takes, write_whole
from onestream.cli.bulk.rows import Row
from onestream.cli.messages import lines, printable
from onestream.client import Result


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
        self._begun = False

    def earlier(self) -> Iterable[Row]:
        """Nothing is kept."""
        return ()

    def add(self, row: Row) -> None:
        """Print the row; of the second class or object on without the image's name."""
        if not self._begun:
            what, where = ("label", "") if row.result is None else row.result.titles
            _print_line("score", "ms", what, where, "image")
            self._begun = True
        name = printable(f"{row.path} {row.key}".rstrip())
        if row.result is None:
            _print_line("–", "–", row.error or "", "", f"{name}: {printable(row.reason or '')}")
            return
        time = f"{row.result.latency_ms:.1f}"
        for line in lines(row.result, self._top):
            score = "–" if line.score is None else f"{line.score:.3f}"
            _print_line(score, time, printable(line.what), line.where, name)
            time = name = ""

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
        self._kind: type[Result] | None = None
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
            self._check(row)
            self._note(row)
            yield row

    def add(self, row: Row) -> None:
        """Write the row; it outlives this process from here on. Raises Unwritable for a result of the wrong kind."""
        self._check(row)
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

    def _check(self, row: Row) -> None:
        """All results have to be of one kind, and one that the output takes."""
        if row.result is None:
            return
        if self._kind is None:
            try:
                check_takes(self._path, row.result)
            except Unwritable:
                # It holds nothing that a run of another pipeline, or into another file, could use.
                self._journal.remove()
                raise
            self._kind = type(row.result)
        elif type(row.result) is not self._kind:
            raise Unwritable(f"the pipeline answers {type(row.result).__name__}, and did {self._kind.__name__} before")

    def _note(self, row: Row) -> None:
        if row.error is not None:
            self._errors.add(row)


def _print_line(score: str, time: str, what: str, where: str, name: str) -> None:
    columns = [f"{score:>5}", f"{time:>7}", f"{what:<24}", *([f"{where:<22}"] if where else []), name]
    typer.echo("  ".join(columns).rstrip())
