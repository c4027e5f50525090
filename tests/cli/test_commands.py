"""The commands: few enough to be read at once; one that has moved says where it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from terminal_runs import before_no_reader
from typer.testing import CliRunner

from onestream.cli.exit_codes import needs_extras
from onestream.cli.main import app
from onestream.cli.options import server_url
from onestream.client import DEFAULT_URL
from onestream.preprocess import BackendMissing


def said(*arguments: str) -> str:
    """What a command says that is refused."""
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
    assert result.exit_code == 2, result.output
    return result.output


def under(command: Any, *words: str) -> Iterator[tuple[str, ...]]:
    yield words
    for name, one in getattr(command, "commands", {}).items():
        yield from under(one, *words, name)


@pytest.mark.parametrize("words", [*under(typer.main.get_command(app))], ids=" ".join)
def test_help_names_values_by_nouns_and_the_list_of_commands_is_short(words: tuple[str, ...]) -> None:
    assert len(typer.main.get_command(app).commands) <= 16
    shown = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "200"}).output
    assert "Show this message and exit." in shown
    assert not re.findall(r"<[\w |\[\],]+>", shown)


def test_a_value_is_shown_by_its_unit_its_type_or_its_name() -> None:
    shown = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200"}).output
    for line in (
        r"--repository +PATH +",
        r"--device +auto\|cpu\|gpu +",
        r"--public +\w",
        r"--grpc-port +N \[0<=x<=65535\] ",
        r"--startup-timeout-s +SECONDS \[x>=1",
    ):
        assert re.search(line, shown), shown
    # The usage has the options that must be given.
    assert "bench tune --images PATH [OPTIONS]" in CliRunner().invoke(app, ["bench", "tune", "--help"]).output
    assert "proxy [OPTIONS] [COMMAND]" in CliRunner().invoke(app, ["proxy", "--help"]).output


@pytest.mark.parametrize(("old", "new"), [("demo-page", "demo page"), ("token", "proxy token"), ("tune", "bench tune")])
def test_an_old_spelling_is_refused_with_the_new_one(old: str, new: str) -> None:
    assert f"`onestream {old}` is now `onestream {new}`" in said(old, "--help")
    assert CliRunner().invoke(app, [*new.split(), "--help"]).exit_code == 0
    assert "onestream demo --photo cat.jpg" in said("demo", "cat.jpg")


def test_the_environment_names_the_server_unless_an_option_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert server_url(None) == DEFAULT_URL
    monkeypatch.setenv("ONESTREAM_URL", "vision:8001")
    assert server_url(None) == "vision:8001"
    assert server_url("other:8001") == "other:8001"


def test_what_is_not_installed_is_said_with_the_extras_of_the_whole_command(capsys: pytest.CaptureFixture[str]) -> None:
    missing = ModuleNotFoundError("No module named 'av'", name="av")
    of_a_backend = BackendMissing("it needs PyAV")
    of_a_backend.__cause__ = missing
    for error in (missing, of_a_backend):
        with pytest.raises(typer.Exit), needs_extras("cpu", "demo"):
            raise error
        assert "av is not installed. Run: pip install -e '.[cpu,demo]' in" in capsys.readouterr().err
    with pytest.raises(BackendMissing), needs_extras("cpu"):
        raise BackendMissing("no GPU")


def test_a_short_output_that_nobody_reads_ends_it_quietly_too(tmp_path: Path) -> None:
    assert before_no_reader("proxy", "token", "me", f"--file={tmp_path / 'tokens.conf'}") == (141, "")
