"""The commands of docs/import.md run, and what it shows is what they print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from lazily import Lazily
from networks import mean_color
from typer.testing import CliRunner
from ultralytics_files import square_finder

from onestream.cli.main import app
from onestream.serving.pipeline import Pipeline

TEXT = (Path(__file__).parents[3] / "docs" / "import.md").read_text(encoding="utf-8")
OWN = """
from torchvision import transforms
my_transform = transforms.Compose([transforms.Resize(40), transforms.CenterCrop(32), transforms.ToTensor()])
"""


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the page takes for granted."""
    monkeypatch.chdir(tmp_path)
    Lazily("transformers").CLIPImageProcessorPil().save_pretrained(tmp_path / "clip")
    (tmp_path / "my_module.py").write_text(OWN)
    (tmp_path / "yolo11n.onnx").write_bytes(square_finder().SerializeToString())
    (tmp_path / "resnet50.onnx").write_bytes(mean_color((1, 3, 224, 224)).SerializeToString())
    return tmp_path


def test_the_commands_run_and_print_what_is_shown(folder: Path) -> None:
    lines = block("bash").splitlines()
    assert len(lines) == 7
    for line in lines:
        command, *to = (part.strip() for part in line.partition("#")[0].split(">"))
        result = CliRunner().invoke(app, shlex.split(command)[1:])
        assert result.exit_code == 0, result.output
        for name in to:
            (folder / name).write_text(result.stdout)
            Pipeline.from_file(folder / name)
    assert (folder / "model_repository" / "resnet50" / "config.pbtxt").exists()
    # The first line has torchvision's version.
    assert (folder / "resnet50.yaml").read_text().splitlines()[1:] == block("yaml").splitlines()[1:]


def test_the_python_block_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (folder / "clip").is_dir()
    exec(block("python"), {})
    assert capsys.readouterr().out.endswith(" (3, 640, 640) 235\n")
