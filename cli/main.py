"""``onestream``: one command with a subcommand for each thing a user does."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from importlib import import_module
from typing import Any

import typer

from onestream.cli.exit_codes import EXIT_PIPE_CLOSED
from onestream.cli.options import Command, Family

_MOVED = {"demo-page": "demo page", "token": "proxy token", "tune": "bench tune"}


_COMMANDS = {
    "build": "build:build",
    "serve": "serve.command:serve",
    "rollout": "rollout.command:rollout",
    "predict": "predict:predict",
    "bulk": "bulk.command:bulk",
    "stream": "stream.command:stream",
    "gateway": "gateway.command:gateway",
    "top": "top.command:top",
    "doctor": "doctor:doctor",
    "parity": "parity:parity",
    "augment": "augment:augment",
    "import": "import_command:import_preprocessing",
    "bench": "bench.command:bench",
    "demo": "demo:demo",
    "models": "models:models",
    "proxy": "proxy:proxy",
}
"""Where each command is, a function or a family of them, in the order of ``--help``."""


class _Commands(Family):
    """The commands, each imported when it is called for; one that has moved is refused with its new name."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands: Any = dict.fromkeys(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        if cmd_name not in self.commands:
            return None
        module, _, name = _COMMANDS[cmd_name].partition(":")
        found = getattr(import_module(f"onestream.cli.{module}"), name)
        if not isinstance(found, typer.Typer):
            alone = typer.Typer(add_completion=False)
            alone.command(cmd_name, cls=Command)(found)
            return typer.main.get_command(alone)
        for one in found.registered_commands:
            one.cls = Command
        family = typer.main.get_group(found)
        family.name = cmd_name
        return family

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in _MOVED:
            ctx.fail(f"`onestream {args[0]}` is now `onestream {_MOVED[args[0]]}`")
        return super().resolve_command(ctx, args)


app = typer.Typer(cls=_Commands, no_args_is_help=True, add_completion=False)


@app.callback()
def _root() -> None:
    """Serve vision models on NVIDIA Triton with one preprocessing definition for training and serving."""


class _Output(io.FileIO):
    """Standard output. Where its reader is gone, as with ``| head``, writing ends the command without a message.

    Here, since no command can tell this error from that of another file or of a connection.
    """

    def write(self, data: Any) -> int:
        """Write what is buffered. Raises SystemExit where the reader has closed the pipe."""
        try:
            return super().write(data)
        except BrokenPipeError:
            # What is still buffered goes nowhere when Python ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            raise SystemExit(EXIT_PIPE_CLOSED) from None


def main() -> None:
    """Entry point of the console script."""
    if isinstance(out := sys.stdout, io.TextIOWrapper):
        raw = _Output(out.fileno(), "w", closefd=False)
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(raw), encoding=out.encoding, errors=out.errors, line_buffering=out.line_buffering
        )
        sys.stdout.reconfigure(write_through=out.write_through)
    try:
        app()
    finally:
        # The last flush of Python itself would report the closed pipe. A full disk it may report.
        with contextlib.suppress(OSError):
            if sys.stdout:
                sys.stdout.flush()
