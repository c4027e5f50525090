"""The examples train, export and serve, and find every prediction again on Triton."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from PIL import Image

from onestream.serving.engine.stamp import read_stamp
from onestream.serving.pipeline import Pipeline

ROOT = Path(__file__).parents[3]


def trained(example: str, name: str, out: Path, *options: str) -> tuple[str, Any]:
    """What an example prints, and its network, which carries the definition of its pipeline."""
    folder = ROOT / "examples" / example
    command = [sys.executable, str(folder / "train.py"), "--out", str(out), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=890)
    assert done.returncode == 0, done.stdout + done.stderr
    assert Image.open(out / "predictions.png").width > 1000
    network = onnx.load(str(out / f"{name}.onnx"))
    stamped = {entry.key: entry.value for entry in network.metadata_props}
    assert read_stamp(stamped, where="the file") == Pipeline.from_file(folder / f"{name}.yaml").preprocess
    return done.stdout, network


@pytest.mark.slow
@pytest.mark.needs_triton
def test_served_predictions_are_those_of_the_training_loop(tmp_path: Path) -> None:
    printed, _ = trained("train_classifier", "digits", tmp_path, "--epochs", "1", "--images", "400")
    assert "the same prediction for 80 of 80 images" in printed
    accuracies = [line.partition("accuracy ")[2] for line in printed.splitlines() if "accuracy" in line]
    assert len(accuracies) == 2
    assert accuracies[0] == accuracies[1]
    served = tmp_path / "model_repository" / "digits_fused" / "definition.json"
    assert json.loads(served.read_text())["operations"][2]["size"] == [64, 64]


@pytest.mark.night
@pytest.mark.needs_triton
def test_objects_of_the_served_detector_are_those_of_the_training_loop(tmp_path: Path) -> None:
    printed, exported = trained("train_detector", "shapes", tmp_path, "--epochs", "3", "--images", "100")
    assert "the same objects in 20 of 20 pictures" in printed
    found = re.findall(r"(\d+) of (\d+) objects found, (\d+) finds are none", printed)
    assert len(found) == 2
    assert found[0] == found[1]
    assert int(found[0][0]) > 0
    (output,) = exported.graph.output
    # 3 classes; 16 x 16 and 8 x 8 cells of a picture of 128 pixels.
    assert [side.dim_value or side.dim_param for side in output.type.tensor_type.shape.dim] == ["batch", 7, 320]
