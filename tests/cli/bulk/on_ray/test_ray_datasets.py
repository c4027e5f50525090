"""``onestream.ray.predict`` on Ray Datasets: photos that are classified, and what a detector finds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import detectors
import pyarrow as pa
import pytest
import yaml
from builds import build
from pages import blocks
from PIL import Image
from ray_clusters import ROOT

pytest.importorskip("ray")

pytestmark = [pytest.mark.slow]


def test_the_program_of_the_page_labels_photos(repository: Path) -> None:
    del repository
    (program,) = blocks("scale.md", "python")
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        # Not in the cluster of the other tests.
        env={**os.environ, "RAY_ADDRESS": "local"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    labels = dict(re.findall(r"^(\S+)\.jpg (.+) [\d.]+$", done.stdout, flags=re.MULTILINE))
    assert len(labels) == 6
    assert labels["coffee"] == "espresso"


@pytest.mark.usefixtures("bulk_on_ray")
def test_rows_keep_their_columns_and_get_those_of_bulk(repository: Path) -> None:
    import ray

    import onestream.ray

    photos = [photo.read_bytes() for photo in sorted((ROOT / "examples" / "photos").glob("*.jpg"))]
    images = pa.array([*photos, b"no picture", None, photos[0][:2000]], pa.binary())
    data = ray.data.from_arrow(pa.table({"image": images, "label": range(len(images))}))
    options: dict[str, Any] = {"column": "image", "repository": repository, "workers": 1}
    with pytest.raises(Exception, match="has a column 'label' already; give a prefix"):
        onestream.ray.predict(data, "classify", **options).take_all()
    said = onestream.ray.predict(data, "classify", **options, prefix="said_", top=2)
    found = sorted(said.drop_columns(["image", "said_latency_ms"]).take_all(), key=lambda row: int(row["label"]))
    assert [row["label"] for row in found] == list(range(9))
    assert [row["said_error"] for row in found] == [None] * 6 + ["unsupported_format", "unreadable_input", "corrupt"]
    assert set(found[0]) == {
        *("label", "said_error", "said_reason"),
        *("said_label", "said_class_id", "said_score", "said_label_2", "said_class_id_2", "said_score_2"),
    }
    assert "espresso" in [row["said_label"] for row in found]


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


@pytest.mark.usefixtures("bulk_on_ray")
def test_a_dataset_gets_the_boxes_of_each_picture(finder: Path, pictures: list[Path]) -> None:
    import ray

    import onestream.ray

    images = pa.array([picture.read_bytes() for picture in pictures], pa.binary())
    data = ray.data.from_arrow(pa.table({"bytes": images, "number": range(len(images))}))
    said = onestream.ray.predict(data, "finder", repository=finder, workers=1).drop_columns(["bytes", "latency_ms"])
    red, black, text = sorted(map(plain, said.take_all()), key=lambda row: int(row["number"]))
    boxes = [[8, 16, 16, 24], [8, 24, 16, 32], [16, 16, 24, 24], [16, 24, 24, 32]]
    assert sorted(map(list, red["boxes"])) == boxes
    # Means of float32, which round.
    assert red["scores"] == pytest.approx([1, 1, 1, 1], abs=1e-6)
    assert (red["class_ids"], red["image_size"], red["error"]) == ([0, 0, 0, 0], [64, 64], None)
    assert len(red["labels"]) == 4
    assert (black["boxes"], black["image_size"], black["error"]) == ([], [64, 64], None)
    assert (text["boxes"], text["image_size"], text["error"]) == (None, None, "unsupported_format")


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose arrays are lists."""
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in row.items()}
