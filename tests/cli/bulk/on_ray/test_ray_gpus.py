"""Workers of Ray that have GPUs: machines that only declare them, with host memory in the place of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray_clusters import ROOT, BulkOnRay, add_node, rows
from ray_hooks import Hooks, open_host_memory

from onestream.postprocess.kinds.classification import top_k
from onestream.preprocess import compile
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.pipeline import Pipeline

pytest.importorskip("ray")

PHOTOS = sorted((ROOT / "examples" / "photos").glob("*.jpg"))

pytestmark = [pytest.mark.slow]

Predict = Callable[..., list[dict[str, Any]]]


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


@pytest.fixture
def predict(bulk_on_ray: BulkOnRay, repository: Path) -> Predict:
    """The rows of a dataset of these photos, of a worker on a GPU."""
    del bulk_on_ray  # which has connected this process
    import ray

    import onestream.ray

    def predict(photos: list[Path]) -> list[dict[str, Any]]:
        pictures = ray.data.read_binary_files([str(photo) for photo in photos], include_paths=True)
        said = onestream.ray.predict(pictures, "classify", repository=repository, gpus_per_worker=1, workers=1)
        rows: list[dict[str, Any]] = said.drop_columns(["bytes", "latency_ms"]).take_all()
        return sorted(rows, key=lambda row: str(row["path"]))

    return predict


def test_workers_share_the_gpus_that_a_machine_has(
    nodes: Any, bulk_on_ray: BulkOnRay, repository: Path, tmp_path: Path
) -> None:
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


def test_a_dataset_s_rows_are_made_on_a_gpu(nodes: Any, predict: Predict, repository: Path, tmp_path: Path) -> None:
    with machine_with_gpus(nodes, tmp_path, gpus=1, workers=1) as hooks:
        found = predict(PHOTOS)
    assert hooks.said() == ["0"]
    check_by_reference(found, repository)


def test_a_cluster_without_gpus_is_refused_at_once(
    bulk_on_ray: BulkOnRay, predict: Predict, repository: Path, tmp_path: Path
) -> None:
    from onestream.cli.bulk.ray.run import NoRoom

    done = bulk_on_ray(*PHOTOS, "--to", tmp_path / "out", "--repository", repository, "--gpus-per-worker", 1)
    assert done.exit_code == 2
    expected = "no machine of the cluster has the 1 CPU and 1 GPU that a worker was to reserve; there are "
    assert expected in done.stderr
    assert "2 with 1 CPU and 0 GPU" in done.stderr
    assert not (tmp_path / "out").exists()
    with pytest.raises(NoRoom, match=expected):
        predict(PHOTOS[:1])
