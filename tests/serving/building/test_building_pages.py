"""What pages of the build show is accepted as it stands there: commands that take long, and pipelines of detectors."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner
from ultralytics_files import square_finder

from onestream.cli.main import app
from onestream.postprocess.kinds.detection import Detection
from onestream.serving.pipeline import Pipeline

ROOT = Path(__file__).parents[3]


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("line", re.findall(r"^onestream .*$", page("quantization") + page("tune"), re.MULTILINE))
def test_the_commands_are_accepted(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    _, name, *arguments = shlex.split(line, comments=True)
    command = typer.main.get_command(app).get_command(None, name)
    if name == "bench":
        name, *arguments = arguments
        command = command.commands[name]
    # Reads the arguments as the command does, and runs nothing.
    assert command.make_context(name, arguments).params


DETECTION = page("kinds").partition("\n## Detection\n")[2].partition("\n## ")[0]
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```", DETECTION, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_page_shows_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("yolo11n.onnx").write_bytes(square_finder(size_hw=(640, 640)).SerializeToString())
    printed = CliRunner().invoke(app, ["import", "yolo11n.onnx"])
    assert printed.stdout == EXAMPLES[0]


@pytest.mark.slow
@pytest.mark.parametrize("text", EXAMPLES[1:], ids=lambda text: re.findall(r"family: (\w+)", text)[0])
def test_every_example_is_a_pipeline(text: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    pipeline = Pipeline.from_file(file)
    assert isinstance(pipeline.postprocess, Detection)
    # A served network has one size.
    assert None not in pipeline.preprocess.output_spec.size_hw
