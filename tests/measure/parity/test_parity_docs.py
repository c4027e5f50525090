"""The commands of docs/parity.md run, and its example is today's output."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from builds import build
from clip_files import write_video
from typer.testing import CliRunner

from onestream.cli.main import app
from onestream.serving.server.server import Server

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "parity.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.needs_triton
def test_the_commands_run_and_the_example_is_their_output(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    block = blocks()[0]
    lines = [line for line in block.splitlines() if "--serve" not in line]
    assert len(lines) == 3
    printed = []
    for line in lines:
        line = line.replace("127.0.0.1:8001", server.grpc_address).replace("parity.json", str(tmp_path / "parity.json"))
        arguments = shlex.split(line, comments=True)[1:]
        result = CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})
        assert result.exit_code == 0, result.output
        printed.append(result.stdout)
    assert (tmp_path / "parity.json").exists()
    # Figures of the network move with ONNX Runtime's version and machine, those of pixels do not.
    shown, now = judged_rows(TEXT[: TEXT.index(blocks()[1])]), judged_rows(printed[2])
    assert len(shown) == 5
    assert shown == now


@pytest.mark.slow
@pytest.mark.needs_triton
def test_the_commands_for_video_run(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    clip = write_video(tmp_path / "clip.mp4", "libx264", count=10)
    block = blocks()[2]
    found = []
    for line in block.splitlines():
        line = line.replace("127.0.0.1:8001", server.grpc_address).replace("clip.mp4", str(clip))
        result = CliRunner().invoke(app, shlex.split(line, comments=True)[1:], env={"COLUMNS": "80"})
        assert result.exit_code == 0, result.output
        found.append(result.stdout)
    assert ["classify_video" in text for text in found] == [False, True]
    assert "loader: pyav (cpu)" in found[0]


@pytest.mark.slow
def test_the_example_of_boxes_is_the_commands_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    build(ROOT / "pipelines" / "nanodet.yaml", folder=tmp_path)
    (line,) = blocks()[1].splitlines()
    words = [*shlex.split(line)[1:], "--repository", str(tmp_path)]
    photos = sorted(map(str, Path().glob("examples/photos/*.jpg")))
    arguments = [one for word in words for one in (photos if word == "examples/photos/*.jpg" else [word])]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    shown = TEXT[TEXT.index(line) : TEXT.index("## Cascades")]
    for found in (judged_rows, what_became_of_objects, counts_of_boxes):
        assert found(shown) == found(result.stdout) != []


@pytest.mark.slow
def test_the_example_of_a_cascade_is_the_commands_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    printed = ""
    for line in blocks()[3].splitlines():
        arguments = [*shlex.split(line)[1:], "--repository", str(tmp_path)]
        result = CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})
        assert result.exit_code == 0, result.output
        printed = result.stdout
    shown = TEXT[TEXT.index("sort_classify, definition") : TEXT.index("| region | what is cut")]
    now = printed[printed.index("sort_classify, definition") :]
    for found in (judged_rows, what_became_of_regions, counts_of_regions):
        assert found(shown) == found(now) != []


def what_became_of_regions(text: str) -> list[tuple[str, ...]]:
    return re.findall(r": (\w+\.jpg(?:, region \d+)?): ([a-z ]+?) → ([a-z ]+?)$", text, re.MULTILINE)


def counts_of_regions(text: str) -> list[tuple[str, ...]]:
    return re.findall(r"^  (regions lost|regions added|other answer) +(\d+)", text, re.MULTILINE)


def what_became_of_objects(text: str) -> list[tuple[str, ...]]:
    """Photo and classes; scores move with ONNX Runtime's version and machine."""
    return re.findall(r": (\w+\.jpg): ([a-z ]+?)(?: [\d.]+)? → ([a-z ]+?)(?: [\d.]+)?$", text, re.MULTILINE)


def counts_of_boxes(text: str) -> list[tuple[str, ...]]:
    return re.findall(r"^  boxes (lost|added) +(\d+)", text, re.MULTILINE)


def blocks() -> list[str]:
    return re.findall(r"^```bash\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)


def judged_rows(text: str) -> list[list[str]]:
    """The words of each row that says *within*: four stages of DALI, and where a server is asked its one."""
    return [
        line.split()
        for line in text.splitlines()
        if re.match(r"  (decode|region|resize|crop|normalize) .*within *$", line)
    ]
