"""The commands of docs/cascades.md run: a cascade of two networks of one's own, from its file to its answer."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import detectors
import numpy as np
import pytest
from networks import strongest_channel
from PIL import Image
from shared_server import Served, SharedServer
from typer.testing import CliRunner

from onestream.cli.main import app

TEXT = (Path(__file__).parents[2] / "docs" / "cascades.md").read_text(encoding="utf-8")
CELLS = 80
"""Of 8 pixels: the page's detector takes 640 by 640."""


def write_networks(folder: Path) -> dict[str, Path]:
    networks = {"find": folder / "detector.onnx", "grade": folder / "classifier.onnx"}
    detectors.level_detector(networks["find"], cells=CELLS)
    strongest_channel(networks["grade"], side=128)
    return networks


def write_documented(folder: Path, *, name: str = "documented") -> dict[str, Path]:
    """The page's pipeline; another test serves another one of its name."""
    (shown,) = re.findall(r"^```yaml\n# things.yaml\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
    (folder / f"{name}.yaml").write_text(shown)
    return write_networks(folder)


MODELS = ("documented", "documented_find_model", "documented_grade_model")
pytestmark = [
    pytest.mark.needs_triton,
    pytest.mark.slow,
    pytest.mark.serves(Served("documented", write_documented, MODELS)),
]


def run(line: str, *more: str) -> str:
    """What a command of the page prints."""
    words = shlex.split(line)
    assert words[0] == "onestream"
    ended = CliRunner().invoke(app, [*words[1:], *more])
    assert ended.exit_code == 0, ended.output
    return ended.stdout


def test_the_page_takes_two_networks_of_one_s_own_to_an_answer(
    server: SharedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (commands,) = re.findall(r"^```bash\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
    build, serve, predict = commands.splitlines()
    write_documented(tmp_path, name="things")
    assert "things_find_model, things_grade_model, things_fused" in run(build)
    assert serve == "onestream serve"
    # A cell is 24 pixels wide in it, so that it is above the page's min_side.
    pixels = np.zeros((1920, 1920, 3), np.uint8)
    pixels[300:900, 600:1080] = (255, 0, 0)
    Image.fromarray(pixels).save("photo.png")
    predict = predict.replace("--pipeline things", "--pipeline documented")
    (line,) = run(predict, "--json", "--url", server.grpc_address).splitlines()
    answer = json.loads(line)
    assert answer["image_size"] == [1920, 1920]
    assert answer["left_out"] == 0
    assert set(answer["labels"]) == {"good"}
    assert len(answer["boxes"]) == len(answer["find_scores"]) == len(answer["labels"]) == 100
