"""The commands of docs/parity.md run, and its example is today's output."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from clip_files import write_video
from typer.testing import CliRunner

from onestream.cli.main import app
from onestream.serving.server.server import Server

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "parity.md").read_text(encoding="utf-8")


@pytest.mark.needs_triton
def test_the_commands_run_and_the_example_is_their_output(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    block, _video = blocks()
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
    shown, now = judged_rows(TEXT), judged_rows(printed[2])
    assert len(shown) == 5
    assert shown == now


@pytest.mark.needs_triton
def test_the_commands_for_video_run(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    clip = write_video(tmp_path / "clip.mp4", "libx264", count=10)
    _photos, block = blocks()
    found = []
    for line in block.splitlines():
        line = line.replace("127.0.0.1:8001", server.grpc_address).replace("clip.mp4", str(clip))
        result = CliRunner().invoke(app, shlex.split(line, comments=True)[1:], env={"COLUMNS": "80"})
        assert result.exit_code == 0, result.output
        found.append(result.stdout)
    assert ["classify_video" in text for text in found] == [False, True]
    assert "loader: pyav (cpu)" in found[0]


def blocks() -> list[str]:
    return re.findall(r"^```bash\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)


def judged_rows(text: str) -> list[tuple[str, str, str]]:
    """The words of each row that says *within*: four stages of DALI and the server's one."""
    return [
        line.split() for line in text.splitlines() if re.match(r"  (decode|resize|crop|normalize) .*within *$", line)
    ]
