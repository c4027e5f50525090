"""The commands of docs/rollout.md are the program's; ``test_rollout.py`` compares what it shows with a rollout."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from onestream.cli.main import app

ROOT = Path(__file__).parents[2]
COMMANDS = re.findall(r"^onestream .*$", (ROOT / "docs" / "rollout.md").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("line", COMMANDS)
def test_the_commands_are_accepted(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    _, name, *arguments = shlex.split(line)
    command = typer.main.get_command(app).commands[name]
    # Reads the arguments as the command does, and runs nothing.
    assert command.make_context(name, arguments).params
