"""The example trains, exports, builds, serves, and finds every prediction again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from PIL import Image

from onestream.serving.building.stamp import read_stamp
from onestream.serving.pipeline import Pipeline

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "train_classifier"


@pytest.mark.slow
@pytest.mark.needs_triton
def test_served_predictions_are_those_of_the_training_loop(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE / "train.py"), "--out", str(tmp_path), "--epochs", "1", "--images", "400"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the same prediction for 80 of 80 images" in done.stdout
    accuracies = [line.partition("accuracy ")[2] for line in done.stdout.splitlines() if "accuracy" in line]
    assert len(accuracies) == 2
    assert accuracies[0] == accuracies[1]
    assert Image.open(tmp_path / "predictions.png").width > 1000
    stamped = {entry.key: entry.value for entry in onnx.load(str(tmp_path / "digits.onnx")).metadata_props}
    assert read_stamp(stamped, where="the file") == Pipeline.from_file(EXAMPLE / "digits.yaml").preprocess
    served = tmp_path / "model_repository" / "digits_fused" / "definition.json"
    assert json.loads(served.read_text())["operations"][2]["size"] == [64, 64]
