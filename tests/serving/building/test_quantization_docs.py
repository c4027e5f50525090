"""The commands of docs/quantization.md: what they say is what happens."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from onestream.cli.main import app
from onestream.serving.building.quantization.price import Quantization

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "quantization.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("line", re.findall(r"^onestream .*$", PAGE, re.MULTILINE))
def test_the_commands_are_accepted(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    _, name, *arguments = shlex.split(line)
    command = typer.main.get_command(app).commands[name]
    # Reads the arguments as the command does, and runs nothing.
    assert command.make_context(name, arguments).params


def test_every_field_of_the_certificate_is_told() -> None:
    table = PAGE.partition("## What the certificate says")[2].partition("## ")[0]
    told = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    assert told == set(Quantization.model_fields) - {"precision"}
    inside = set(re.findall(r"`(\w+)`", table))
    for field in ("settings", "agreement"):
        assert set(Quantization.model_fields[field].annotation.model_fields) <= inside
