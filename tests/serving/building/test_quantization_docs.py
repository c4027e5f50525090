"""The commands of docs/quantization.md: what they say is what happens. Those of docs/tune.md take as long."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.photos import photo_set
from onestream.cli.main import app
from onestream.serving.server.server import Server

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "quantization.md").read_text(encoding="utf-8")


TUNE = (ROOT / "docs" / "tune.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("line", re.findall(r"^onestream .*$", PAGE + TUNE, re.MULTILINE))
def test_the_commands_are_accepted(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    _, name, *arguments = shlex.split(line, comments=True)
    command = typer.main.get_command(app).commands[name]
    # Reads the arguments as the command does, and runs nothing.
    assert command.make_context(name, arguments).params


@pytest.mark.night
@pytest.mark.needs_triton
def test_the_first_three_commands_serve_int8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with a newcomer's photos; the server is ours, with free ports."""
    for name in ("pipelines", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    photo_set("500x375", folder=tmp_path / "set", sources=None)
    (tmp_path / "photos").symlink_to(tmp_path / "set" / "500x375")
    monkeypatch.chdir(tmp_path)
    build, serve, predict = (shlex.split(line)[1:] for line in re.findall(r"^onestream .*$", PAGE, re.MULTILINE)[:3])
    ended = CliRunner().invoke(app, build)
    assert ended.exit_code == 0, ended.output
    # The page shows what it prints, but for the figures of the machine.
    shown = re.search(r"^classify in int8: .*$", PAGE, re.MULTILINE)
    printed = re.search(r"^classify in int8: .*$", ended.output, re.MULTILINE)
    assert shown is not None
    assert printed is not None
    figures = r"\d[\d.]*|, so float32 is better here|\(.*\)"
    assert re.sub(figures, "", printed[0]) == re.sub(figures, "", shown[0])
    assert (tmp_path / "agreement.png").stat().st_size > 0
    models = [serve[index + 1] for index, word in enumerate(serve) if word == "--model"]
    with Server(Path("model_repository"), http_port=0, grpc_port=0, metrics_port=0, models=models) as server:
        ended = CliRunner().invoke(app, [*predict, f"--url={server.grpc_url}"])
    assert ended.exit_code == 0, ended.output
    assert "espresso" in ended.output
