"""``onestream predict`` on a server that exists only as an object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import typer
from client_fakes import FakeTransport
from typer.testing import CliRunner, Result

import onestream.cli.predict as command
from onestream.client import Client
from onestream.client._transports.base import Tensors

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
