"""``onestream``: one command with a subcommand for each thing a user does."""

from __future__ import annotations

import importlib
from typing import Any

import click
import typer
from typer.core import TyperGroup

_COMMANDS = {
    "build": "Write the model repository of a pipeline.",
    "serve": "Start Triton on a model repository, and keep its models alive.",
    "classify": "Classify images on a running server.",
    "demo": "Build, serve and classify a few photos, then stop.",
    "doctor": "Tell what this machine has and lacks, and the command that fixes each.",
}


class _LazyCommands(TyperGroup):
    """Imports a subcommand's module when it is called: help stays quick, and a missing extra hurts one command only."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> Any:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        function = getattr(importlib.import_module(f"onestream.{cmd_name}"), cmd_name)
        app = typer.Typer(add_completion=False)
        app.command(name=cmd_name)(function)
        return typer.main.get_command(app)


app = typer.Typer(cls=_LazyCommands, no_args_is_help=True, add_completion=False, help=__doc__)


@app.callback()
def _root() -> None:
    """Serve vision models on NVIDIA Triton with one preprocessing definition for training and serving."""


def main() -> None:
    """Entry point of the console script."""
    app()
