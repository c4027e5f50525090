"""Exit codes of the commands."""

from __future__ import annotations

from typing import NoReturn

import typer

EXIT_FAILED = 1
EXIT_CANNOT_START = 2
EXIT_INTERRUPTED = 130
EXIT_PIPE_CLOSED = 141
"""As of a program that SIGPIPE ends: 128 + 13."""


def fail(message: str, code: int) -> NoReturn:
    """Print one line on stderr and end the command."""
    typer.secho(message, fg=typer.colors.RED, err=True)
    raise typer.Exit(code)
