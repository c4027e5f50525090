"""The commands of docs/rollout.md run, and print what it shows."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from onestream.cli.main import app
from onestream.serving.server.server import Server

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "rollout.md").read_text(encoding="utf-8")


@pytest.mark.needs_triton
@pytest.mark.slow
def test_the_commands_run(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pipelines", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    later = shutil.ignore_patterns("classify_v[0-9]*", "versions.json", ".rollout.sock")
    shutil.copytree(repository, tmp_path / "model_repository", ignore=later)
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"^```bash\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
    build, *rollouts = block.splitlines()
    assert len(rollouts) == 2
    result = CliRunner().invoke(app, shlex.split(build)[1:])
    assert result.exit_code == 0, result.output
    printed = []
    with Server("model_repository", http_port=0, grpc_port=0, metrics_port=0) as server:
        for line in rollouts:
            arguments = [*shlex.split(line)[1:], f"--url={server.grpc_address}", "--watch-s=1"]
            result = CliRunner().invoke(app, arguments, env={"COLUMNS": "100"})
            assert result.exit_code == 0, result.output
            printed.append(result.stdout)
    (shown,) = re.findall(r"^```text\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
    assert without_seconds(printed[0]) == without_seconds(shown)


def without_seconds(text: str) -> list[str]:
    """The lines' words, without those that say how long something took."""
    return [re.sub(r"[\d.]+ s\b", "", " ".join(line.split())) for line in text.splitlines()]
