"""How commands end: their exit codes, and the line that says why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from onestream.wire.install import install_command

EXIT_FAILED = 1
EXIT_CANNOT_START = 2
EXIT_INTERRUPTED = 130
EXIT_PIPE_CLOSED = 141
"""As of a program that SIGPIPE ends: 128 + 13."""


def fail(message: str, code: int) -> NoReturn:
    """Print one line on stderr and end the command."""
    typer.secho(message, fg=typer.colors.RED, err=True)
    raise typer.Exit(code)


@contextmanager
def needs_extras(*extras: str, group: str | None = None, code: int = EXIT_CANNOT_START) -> Iterator[None]:
    """End the command where an import within lacks a package, and name the extras that cover the whole command."""
    try:
        yield
    except Exception as error:
        missing = error if isinstance(error, ImportError) else error.__cause__  # of a ``BackendMissing``
        if not isinstance(missing, ImportError):
            raise
        fail(f"{missing.name or missing} is not installed. Run: {install_command(*extras, group=group)}", code)
