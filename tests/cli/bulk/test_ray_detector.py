"""A detector on Ray: its boxes are in the rows of ``onestream bulk --ray`` and of ``onestream.ray.predict``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import detectors
import pytest
import yaml
from PIL import Image
from ray_clusters import ROOT, rows, run

from onestream.serving.building.build import build

pytest.importorskip("ray")

pytestmark = [pytest.mark.slow]

PREDICT = """
import json
import sys
import pyarrow as pa
import ray
import onestream.ray

ray.init("local", num_cpus=1, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)
pictures = pa.array([open(name, "rb").read() for name in sys.argv[2:]], pa.binary())
data = ray.data.from_arrow(pa.table({"bytes": pictures, "number": range(len(pictures))}))
found = onestream.ray.predict(data, "finder", repository=sys.argv[1]).drop_columns(["bytes", "latency_ms"])
for row in sorted(found.take_all(), key=lambda row: row["number"]):
    print(json.dumps(row, default=lambda values: values.tolist()))
"""


@pytest.fixture(scope="module")
def finder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a detector of red cells of 8x8 pixels."""
    folder = tmp_path_factory.mktemp("finder")
    (folder / "finder.yaml").write_text(yaml.safe_dump(detectors.pipeline("finder", score_threshold=0.5)))
    detectors.level_detector(folder / "finder.onnx")
    build(folder / "finder.yaml", folder=folder / "models", onnx_file=folder / "finder.onnx")
    return folder / "models"


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    """One with four red cells, one with none, and one that is no picture."""
    red = Image.new("RGB", (64, 64))
    red.paste((255, 0, 0), (8, 16, 24, 32))
    red.save(tmp_path / "red.png")
    Image.new("RGB", (64, 64)).save(tmp_path / "black.png")
    (tmp_path / "text.png").write_bytes(b"no picture")
    return [tmp_path / name for name in ("red.png", "black.png", "text.png")]


def check_found(found: list[dict[str, Any]]) -> None:
    red, black, text = found
    boxes = [[8, 16, 16, 24], [8, 24, 16, 32], [16, 16, 24, 24], [16, 24, 24, 32]]
    assert sorted(map(list, red["boxes"])) == boxes
    # Means of float32, which round.
    assert red["scores"] == pytest.approx([1, 1, 1, 1], abs=1e-6)
    assert (red["class_ids"], red["image_size"], red["error"]) == ([0, 0, 0, 0], [64, 64], None)
    assert len(red["labels"]) == 4
    assert (black["boxes"], black["image_size"], black["error"]) == ([], [64, 64], None)
    assert (text["boxes"], text["image_size"], text["error"]) == (None, None, "unsupported_format")


def test_bulk_writes_the_boxes_of_each_picture(finder: Path, pictures: list[Path], tmp_path: Path) -> None:
    options = ["--to", tmp_path / "out", "--ray", "--pipeline", "finder", "--repository", finder]
    done = run(*pictures, *options, "--files-per-part", 1)
    assert done.returncode == 1, done.stderr
    assert "3 images, 1 failed" in done.stderr
    found = rows(tmp_path / "out")
    assert [row["path"] for row in found] == list(map(str, pictures))
    check_found(found)


def test_a_dataset_gets_the_boxes_of_each_picture(finder: Path, pictures: list[Path]) -> None:
    program = [sys.executable, "-c", PREDICT, str(finder), *map(str, pictures)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    check_found([json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")])
