"""The README's commands do what it says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from onestream.cli.main import app
from onestream.preprocess import Definition
from onestream.serving.pipeline import Pipeline
from onestream.serving.server.server import Server

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def at(server: Server, text: str) -> str:
    """The text with a test server's addresses."""
    return text.replace("127.0.0.1:8001", server.grpc_address).replace("127.0.0.1:8000", server.http_address)


@pytest.mark.needs_triton
def test_python_blocks_run(server: Server) -> None:
    found = blocks("python")
    assert len(found) == 2
    printed = []
    for block in found:
        command = [sys.executable, "-c", at(server, block)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert printed[0].startswith("espresso 0.95")
    assert "1 unsupported_format" in printed[0]
    assert printed[1].startswith("(4, 3, 224, 224) [")


@pytest.mark.slow
def test_python_blocks_of_the_training_page_run() -> None:
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    found = re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    assert len(found) == 5
    printed = []
    for block in found:
        done = subprocess.run([sys.executable, "-c", block], cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert printed[0].endswith("2 batches, exactly what serving computes\n")
    assert printed[1].startswith("('cat', 'cup', 'spoon') (17, 47, 50)\n(2, 3, 128, 128) [[")
    assert printed[1].endswith(
        "(300, 451) [[0.0, 0.0, 401.0, 300.0]]\n(400, 600) [[173.0, 17.0, 413.0, 310.0], [325.0, 66.0, 425.0, 327.0]]\n"
    )
    assert len(printed[2].splitlines()) == 2
    assert all(0 <= float(line) <= 1 for line in printed[2].splitlines())
    assert printed[3] == "(2, 3, 48, 224) [('all is one', 224, 28), ('hello', 120, 15)]\n"
    assert printed[4] == "torch.Size([3, 224, 224])\n"


@pytest.mark.needs_triton
def test_predict_lines_run(server: Server) -> None:
    for arguments in (["examples/photos"], ["--json", "examples/photos/cat.jpg"]):
        command = [sys.executable, "-m", "onestream", "predict", "--url", server.grpc_address, *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert "cat" in done.stdout


def test_the_definition_shown_is_the_one_served() -> None:
    (shown,) = blocks("yaml")
    served = Pipeline.from_file(ROOT / "pipelines" / "classify.yaml")
    assert Definition.model_validate(yaml.safe_load(shown)["preprocess"]) == served.preprocess


def test_commands_exist_with_their_options() -> None:
    """Of every line with ``onestream``: the command, its options and the files of the package that it names."""
    lines = [line for block in (*blocks("bash"), *blocks("text")) for line in block.splitlines()]
    commands = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("onestream ")]
    assert len(commands) > 8
    for name, *arguments in commands:
        help_text = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).stdout
        for argument in arguments:
            if argument.startswith("-"):
                assert re.search(rf"(?<![\w-]){re.escape(argument)}(?![\w-])", help_text), (name, argument)
            if argument.startswith(("examples/", "pipelines/")):
                assert (ROOT / argument).exists(), argument


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = " ".join(re.findall(r"(?:^|`)make ([a-z -]+)", README, flags=re.MULTILINE)).split()
    assert {"demo", "test", "install", "build"} <= set(targets)
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
