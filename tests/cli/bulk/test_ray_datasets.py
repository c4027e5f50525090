"""``onestream.ray.predict`` on Ray Datasets: the program of docs/scale.md, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ray_clusters import ROOT

pytest.importorskip("ray")

pytestmark = [pytest.mark.slow]

PAGE = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")

BESIDE_BULK = """
import json
import sys
import pyarrow as pa
import ray
import onestream.ray

ray.init("local", num_cpus=1, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)
photos = [open(name, "rb").read() for name in sys.argv[2:]]
images = pa.array([*photos, b"no picture", None, photos[0][:2000]], pa.binary())
data = ray.data.from_arrow(pa.table({"image": images, "label": range(len(images))}))
try:
    onestream.ray.predict(data, "classify", column="image", repository=sys.argv[1]).take_all()
except Exception as error:
    print("already" if "has a column 'label' already; give a prefix" in str(error) else error, file=sys.stderr)
said = onestream.ray.predict(data, "classify", column="image", repository=sys.argv[1], prefix="said_", top=2)
for row in sorted(said.drop_columns(["image", "said_latency_ms"]).take_all(), key=lambda row: row["label"]):
    print(json.dumps(row))
"""


def run_program(program: str, *arguments: object, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240)


def test_the_program_of_the_page_labels_photos(repository: Path) -> None:
    del repository
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    done = run_program(program)
    assert done.returncode == 0, done.stderr
    labels = dict(re.findall(r"^(\S+)\.jpg (.+) [\d.]+$", done.stdout, flags=re.MULTILINE))
    assert len(labels) == 6
    assert labels["coffee"] == "espresso"


def test_rows_keep_their_columns_and_get_those_of_bulk(repository: Path) -> None:
    photos = sorted((ROOT / "examples" / "photos").glob("*.jpg"))
    done = run_program(BESIDE_BULK, repository, *photos)
    assert done.returncode == 0, done.stderr
    assert "already" in done.stderr

    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [row["label"] for row in rows] == list(range(9))
    assert [row["said_error"] for row in rows] == [None] * 6 + ["unsupported_format", "unreadable_input", "corrupt"]
    assert set(rows[0]) == {
        *("label", "said_error", "said_reason"),
        *("said_label", "said_class_id", "said_score", "said_label_2", "said_class_id_2", "said_score_2"),
    }
    assert "espresso" in [row["said_label"] for row in rows]


def test_a_file_that_is_not_what_was_built_is_refused(repository: Path, tmp_path: Path) -> None:
    from onestream.cli.bulk.ray.sent_model import built_model
    from onestream.preprocess import StampMismatch
    from onestream.serving.errors import BadPipeline

    changed = tmp_path / "classify.yaml"
    shutil.copy(ROOT / "pipelines" / "classify.yaml", changed)
    assert built_model(changed, repository) == repository / "classify_fused"
    assert built_model("classify", repository) == built_model("classify_fused", repository)
    changed.write_text(changed.read_text().replace("size: 256", "size: 255"))
    with pytest.raises(StampMismatch, match="first difference"):
        built_model(changed, repository)
    with pytest.raises(BadPipeline, match="has no other_fused; build it with onestream build"):
        built_model("other", repository)
    with pytest.raises(BadPipeline, match="classify is not built in"):
        built_model(ROOT / "pipelines" / "classify.yaml", tmp_path)
