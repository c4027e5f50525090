"""The commands of docs/quantization.md and docs/tune.md, which take long, are accepted as they stand there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from onestream.cli.main import app

ROOT = Path(__file__).parents[3]
PAGES = "".join((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("quantization", "tune"))


@pytest.mark.parametrize("line", re.findall(r"^onestream .*$", PAGES, re.MULTILINE))
def test_the_commands_are_accepted(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    _, name, *arguments = shlex.split(line, comments=True)
    command = typer.main.get_command(app).get_command(None, name)
    if name == "bench":
        name, *arguments = arguments
        command = command.commands[name]
    # Reads the arguments as the command does, and runs nothing.
    assert command.make_context(name, arguments).params
