"""``onestream.ray.predict`` on Ray Datasets: photos that are classified, and what a detector finds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pages import blocks
from ray_clusters import ROOT

pytest.importorskip("ray")

pytestmark = [pytest.mark.slow]


def test_the_program_of_the_page_labels_photos(repository: Path) -> None:
    del repository
    (program,) = blocks("bulk.md", "python")
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
