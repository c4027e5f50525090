"""``onestream``: one command with a subcommand for each thing a user does."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any

import typer

from onestream.cli.augment import augment
from onestream.cli.bench.command import bench
from onestream.cli.build import build
from onestream.cli.bulk.command import bulk
from onestream.cli.demo import demo
from onestream.cli.doctor import doctor
from onestream.cli.exit_codes import EXIT_PIPE_CLOSED
from onestream.cli.gateway.command import gateway
from onestream.cli.import_command import import_preprocessing
from onestream.cli.models import models
from onestream.cli.options import Command, Family
from onestream.cli.parity import parity
from onestream.cli.predict import predict
from onestream.cli.proxy import proxy
from onestream.cli.rollout.command import rollout
from onestream.cli.serve.command import serve
from onestream.cli.stream.command import stream
from onestream.cli.top.command import top

_MOVED = {"demo-page": "demo page", "token": "proxy token", "tune": "bench tune"}


class _Commands(Family):
    """The commands; one that has moved is refused with its new name."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in _MOVED:
            ctx.fail(f"`onestream {args[0]}` is now `onestream {_MOVED[args[0]]}`")
        return super().resolve_command(ctx, args)


app = typer.Typer(cls=_Commands, no_args_is_help=True, add_completion=False)
for command in (build, serve, rollout, predict, bulk, stream, gateway, top, doctor, parity, augment):
    app.command(cls=Command)(command)
app.command("import", cls=Command)(import_preprocessing)
for name, family in (("bench", bench), ("demo", demo), ("models", models), ("proxy", proxy)):
    for one in family.registered_commands:
        one.cls = Command
    app.add_typer(family, name=name)


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
