"""The commands of docs/cascades.md run: a cascade of two networks of one's own, from its file to its answer."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import detectors
import numpy as np
import pytest
from networks import strongest_channel
from PIL import Image

from onestream.serving.server.server import Server

pytestmark = [pytest.mark.needs_triton, pytest.mark.slow]

TEXT = (Path(__file__).parents[2] / "docs" / "cascades.md").read_text(encoding="utf-8")
CELLS = 80
"""Of 8 pixels: the page's detector takes 640 by 640."""


def run(line: str, folder: Path) -> str:
    """What a command of the page prints; it is this environment's onestream."""
    words = shlex.split(line)
    assert words[0] == "onestream"
    command = [sys.executable, "-m", "onestream", *words[1:]]
    done = subprocess.run(
        command, cwd=folder, env=dict(os.environ), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_takes_two_networks_of_one_s_own_to_an_answer(tmp_path: Path) -> None:
    (shown,) = re.findall(r"^```yaml\n# things.yaml\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
    (commands,) = re.findall(r"^```bash\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
    build, serve, predict = commands.splitlines()
    (tmp_path / "things.yaml").write_text(shown)
    detectors.level_detector(tmp_path / "detector.onnx", cells=CELLS)
    strongest_channel(tmp_path / "classifier.onnx", side=128)
    assert "things_find_model, things_grade_model, things_fused" in run(build, tmp_path)
    # A cell is 24 pixels wide in it, so that it is above the page's min_side.
    pixels = np.zeros((1920, 1920, 3), np.uint8)
    pixels[300:900, 600:1080] = (255, 0, 0)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    assert serve == "onestream serve"
    with Server(tmp_path / "model_repository", http_port=0, grpc_port=0, metrics_port=0) as server:
        (line,) = run(f"{predict} --json --url {server.grpc_address}", tmp_path).splitlines()
    answer = json.loads(line)
    assert answer["image_size"] == [1920, 1920]
    assert answer["left_out"] == 0
    assert set(answer["labels"]) == {"good"}
    assert len(answer["boxes"]) == len(answer["find_scores"]) == len(answer["labels"]) == 100
