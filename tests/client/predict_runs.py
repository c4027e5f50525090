"""``onestream predict`` on a server that exists only as an object."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from client_fakes import FakeTransport
from PIL import Image
from typer.testing import CliRunner, Result

import onestream.cli.predict as command
from onestream.client import Client, Tensors

_app = typer.Typer()
_app.command()(command.predict)


def connect_to(monkeypatch: pytest.MonkeyPatch, answer: Callable[[str, bytes], Tensors]) -> FakeTransport:
    """Let the command ask a server that answers so."""
    transport = FakeTransport(answer)

    def connect(*arguments: Any, **options: Any) -> Client:
        transport.is_closed = False
        return Client(*arguments, transport=transport, **options)

    monkeypatch.setattr(command, "Client", connect)
    return transport


def predict(*arguments: object) -> Result:
    """The command with these arguments."""
    return CliRunner().invoke(_app, [str(argument) for argument in arguments], catch_exceptions=False)


GRAY = 90
SIZE = (200, 100)


def photo(path: Path, size: tuple[int, int] = SIZE, **options: Any) -> None:
    """A picture of one gray at this path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (GRAY, GRAY, GRAY)).save(path, **options)


def cells(shown: str) -> list[list[str]]:
    """The header and the rows of a table that the command printed."""
    header = next(line for line in shown.splitlines() if "label" in line)
    rows = [line.strip("│").split("│") for line in shown.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in row] for row in (header.strip("┃").split("┃"), *rows)]
