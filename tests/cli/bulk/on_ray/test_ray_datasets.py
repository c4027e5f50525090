"""``onestream.ray.predict`` on Ray Datasets, and workers that have GPUs: host memory of machines that declare them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from bulk_fakes import rows
from pages import blocks
from ray_clusters import PHOTOS, ROOT, BulkOnRay, add_node
from ray_hooks import Hooks, open_host_memory

from onestream.postprocess.kinds.classification import top_k
from onestream.preprocess import compile
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.pipeline import Pipeline

pytest.importorskip("ray")

import ray

import onestream.ray

pytestmark = [pytest.mark.slow]


@contextmanager
def machine_with_gpus(nodes: Any, folder: Path, *, gpus: int, workers: int) -> Iterator[Hooks]:
    """A machine with so many GPUs of host memory, whose workers say which of them Ray showed them."""
    hooks = Hooks(folder, open_host_memory, workers=workers)
    with add_node(nodes, cpus=4, gpus=gpus, OPENBLAS_NUM_THREADS="1", **hooks.variables):
        yield hooks


def check_by_reference(found: list[dict[str, Any]], repository: Path) -> None:
    """The GPU's pixels are the reference's in every bit; the network's sums depend on the size of a batch."""
    pipeline = Pipeline.from_file(ROOT / "pipelines" / "classify.yaml")
    pixels = compile(pipeline.preprocess.pixels(), limits=pipeline.limits).run([photo.read_bytes() for photo in PHOTOS])
    network = OnnxRuntimeEngine(repository / "classify_fused" / "1" / "model.onnx", threads=1)
    scores, class_ids = top_k(network.run({"pixels": np.stack(pixels)})["logits"], 1)
    assert [row["path"] for row in found] == [str(photo) for photo in PHOTOS]
    assert [row["class_id"] for row in found] == class_ids[:, 0].tolist()
    assert [row["score"] for row in found] == pytest.approx(scores[:, 0].tolist(), abs=1e-5)


def test_workers_share_a_machine_s_gpus(nodes: Any, bulk_on_ray: BulkOnRay, repository: Path, tmp_path: Path) -> None:
    """Two on each of two GPUs, all at once, and none more; a run on CPUs is another run."""
    command = [*PHOTOS, "--to", tmp_path / "out", "--files-per-part", 1, "--repository", repository]
    with machine_with_gpus(nodes, tmp_path, gpus=2, workers=4) as hooks:
        done = bulk_on_ray(*command, "--gpus-per-worker", 0.5)
    assert done.exit_code == 0, done.stderr
    assert hooks.said() == ["0", "0", "1", "1"]
    check_by_reference(rows(tmp_path / "out"), repository)
    (tmp_path / "out" / "_SUCCESS").unlink()
    other = bulk_on_ray(*command)
    assert other.exit_code == 2
    assert "belongs to another run: {'device': 'gpu'}, now {'device': 'cpu'}" in other.stderr


@pytest.mark.usefixtures("bulk_on_ray")
def test_a_dataset_s_rows_are_made_on_a_gpu(nodes: Any, repository: Path, tmp_path: Path) -> None:
    pictures = ray.data.read_binary_files([str(photo) for photo in PHOTOS], include_paths=True)
    with machine_with_gpus(nodes, tmp_path, gpus=1, workers=1) as hooks:
        said = onestream.ray.predict(pictures, "classify", repository=repository, gpus_per_worker=1, workers=1)
        found = said.drop_columns(["bytes", "latency_ms"]).take_all()
    assert hooks.said() == ["0"]
    check_by_reference(sorted(found, key=lambda row: str(row["path"])), repository)


def test_the_program_of_the_page_labels_photos(repository: Path) -> None:
    del repository
    (program,) = blocks("bulk.md", "python")
    # Not in the cluster of the other tests.
    environment = {**os.environ, "RAY_ADDRESS": "local"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    labels = dict(re.findall(r"^(\S+)\.jpg (.+) [\d.]+$", done.stdout, flags=re.MULTILINE))
    assert len(labels) == 6
    assert labels["coffee"] == "espresso"


@pytest.mark.usefixtures("bulk_on_ray")
def test_rows_keep_their_columns_and_get_those_of_bulk(repository: Path) -> None:
    photos = [photo.read_bytes() for photo in PHOTOS]
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
