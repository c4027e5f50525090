"""Workers of Ray that have GPUs: machines that only declare them, with host memory in the place of each."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray_clusters import ROOT, add_node, cluster, rows, run
from ray_hooks import Hooks

from onestream.postprocess import top_k
from onestream.preprocess import compile
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.pipeline import Pipeline

pytest.importorskip("ray")

PHOTOS = sorted((ROOT / "examples" / "photos").glob("*.jpg"))

PREDICT = """
import json
import sys
import ray
import onestream.ray

ray.init(sys.argv[1], log_to_driver=False)
photos = ray.data.read_binary_files(sys.argv[3:], include_paths=True)
said = onestream.ray.predict(photos, "classify", repository=sys.argv[2], gpus_per_worker=1, workers=1)
for row in said.drop_columns(["bytes", "latency_ms"]).take_all():
    print(json.dumps(row))
"""

pytestmark = [pytest.mark.slow]


@contextmanager
def machines_with_gpus(folder: Path, *, gpus: tuple[int, ...], workers: int) -> Iterator[tuple[Any, Hooks]]:
    """A cluster of machines with so many GPUs of host memory, whose workers say which of them Ray showed them."""
    hooks = Hooks(folder, "ray_on_host_gpu", workers=workers)
    with cluster(nodes=0) as made:
        for count in gpus:
            add_node(made, cpus=4, gpus=count, OPENBLAS_NUM_THREADS="1", **hooks.variables)
        yield made, hooks


def check_by_reference(found: list[dict[str, Any]], repository: Path) -> None:
    """The GPU's pixels are the reference's in every bit; the network's sums depend on the size of a batch."""
    pipeline = Pipeline.from_file(ROOT / "pipelines" / "classify.yaml")
    pixels = compile(pipeline.preprocess.pixels(), limits=pipeline.limits).run([photo.read_bytes() for photo in PHOTOS])
    network = OnnxRuntimeEngine(repository / "classify_fused" / "1" / "model.onnx", threads=1)
    scores, class_ids = top_k(network.run(np.stack(pixels))["logits"], 1)
    assert [row["path"] for row in found] == [str(photo) for photo in PHOTOS]
    assert [row["class_id"] for row in found] == class_ids[:, 0].tolist()
    assert [row["score"] for row in found] == pytest.approx(scores[:, 0].tolist(), abs=1e-5)


def test_workers_share_the_gpus_that_machines_have(repository: Path, tmp_path: Path) -> None:
    """Two on each of three GPUs, all at once, and none more; a run on CPUs is another run."""
    with machines_with_gpus(tmp_path, gpus=(1, 2), workers=6) as (made, hooks):
        options = ["--ray-address", made.address, "--repository", repository, "--gpus-per-worker", 0.5]
        done = run(*PHOTOS, "--to", tmp_path / "out", "--files-per-part", 1, *options)
        assert done.returncode == 0, done.stderr
    assert hooks.said() == ["0", "0", "0", "0", "1", "1"]
    check_by_reference(rows(tmp_path / "out"), repository)
    (tmp_path / "out" / "_SUCCESS").unlink()
    other = run(*PHOTOS, "--to", tmp_path / "out", "--files-per-part", 1, "--ray", "--repository", repository)
    assert other.returncode == 2
    assert "belongs to another run: {'device': 'gpu'}, now {'device': 'cpu'}" in other.stderr


def test_a_dataset_s_rows_are_made_on_a_gpu(repository: Path, tmp_path: Path) -> None:
    with machines_with_gpus(tmp_path, gpus=(1,), workers=1) as (made, hooks):
        command = [sys.executable, "-c", PREDICT, made.address, repository, *PHOTOS]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
    assert hooks.said() == ["0"]
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    check_by_reference(sorted(found, key=lambda row: str(row["path"])), repository)


def test_a_cluster_without_gpus_is_refused_at_once(repository: Path, tmp_path: Path) -> None:
    with cluster(nodes=1) as made:
        options = ["--ray-address", made.address, "--repository", repository, "--gpus-per-worker", 1]
        done = run(*PHOTOS, "--to", tmp_path / "out", *options)
        program = [sys.executable, "-c", PREDICT, made.address, repository, PHOTOS[0]]
        predicted = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 2
    expected = "no machine of the cluster has the 1 CPU and 1 GPU that a worker was to reserve; there are "
    assert expected in done.stderr
    assert "1 with 1 CPU and 0 GPU" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
    assert predicted.returncode == 1
    assert f"NoRoom: {expected}" in predicted.stderr
