"""``onestream bulk --ray`` on a real cluster of several nodes: workers, nodes and the one that asks are killed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from bulk_fakes import rows
from patience import wait_until
from ray_clusters import PHOTOS, ROOT, BulkOnRay, add_node, begin, command, workers_of
from ray_hooks import Hooks, crash_at_deadly_pictures

pytest.importorskip("ray")

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """240 photos."""
    folder = tmp_path_factory.mktemp("killed") / "photos"
    folder.mkdir()
    for number in range(40):
        for photo in PHOTOS:
            (folder / f"{number:02}-{photo.name}").write_bytes(photo.read_bytes())
    return folder


def wait_for_parts(out: Path, count: int, process: subprocess.Popen[str]) -> None:
    def written() -> bool:
        assert process.poll() is None, f"the run ended before {count} parts were written: {process.communicate()[1]}"
        return out.is_dir() and len(list(out.glob("part-*"))) >= count

    wait_until(written)


@pytest.mark.parametrize(
    "first", [2, pytest.param(1, marks=pytest.mark.night), pytest.param(5, marks=pytest.mark.night)]
)
def test_a_run_survives_its_workers_and_a_machine_and_goes_on_after_the_one_that_asks(
    nodes: Any, caches: list[Path], photos: Path, repository: Path, tmp_path: Path, first: int
) -> None:
    """SIGKILL for the command after ``first`` parts of 24, for a worker of the next one, and for all of a node."""
    out = tmp_path / "out"
    words = [photos, "--to", out, "--repository", repository]
    process = begin(nodes, *words)
    wait_for_parts(out, first, process)
    process.kill()
    process.communicate(timeout=60)
    assert not (out / "_SUCCESS").exists()
    process = begin(nodes, *words)
    wait_for_parts(out, first + 2, process)
    workers = [worker for node in nodes.worker_nodes for worker in workers_of(node)]
    assert workers
    workers[0].kill()
    wait_for_parts(out, first + 6, process)
    nodes.remove_node(next(iter(nodes.worker_nodes)), allow_graceful=False)
    _, complaints = process.communicate(timeout=240)
    nodes.add_usual(caches[0])
    assert process.returncode == 0, complaints
    assert "images of an earlier run" in complaints
    found = rows(out)
    assert [row["path"] for row in found] == [str(path) for path in sorted(photos.iterdir())]
    assert not any(row.get("error") for row in found)
    assert list(out.glob(".*")) == []


@pytest.fixture
def crashing(nodes: Any, tmp_path: Path) -> Iterator[None]:
    """One machine more, the only one with two CPUs, on which a picture of these bytes ends its process."""
    with add_node(nodes, cpus=2, **Hooks(tmp_path, crash_at_deadly_pictures).variables):
        yield


@pytest.mark.usefixtures("crashing")
def test_a_picture_that_ends_its_worker_each_time_is_named_and_can_be_left_out(
    bulk_on_ray: BulkOnRay, repository: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "photos"
    shutil.copytree(PHOTOS[0].parent, folder)
    deadly = folder / PHOTOS[3].name
    deadly.write_bytes(b"deadly")
    words = [folder, "--to", tmp_path / "out", "--repository", repository]
    words += ["--files-per-part", 2, "--workers", 1, "--cpus-per-worker", 2]
    stopped = bulk_on_ray(*words)
    assert stopped.exit_code == 1, stopped.stderr
    first = str(folder / PHOTOS[2].name)
    assert f"part 1, from {first!r} on, lost its process, or its machine, 2 times; replace" in stopped.stderr
    assert f"to go on without it: {str(deadly)!r}; " in stopped.stderr
    assert "the same command goes on" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    deadly.write_bytes(b"")
    done = bulk_on_ray(*words)
    assert done.exit_code == 1, done.stderr
    assert "images of an earlier run" in done.stderr
    found = rows(tmp_path / "out")
    assert [row["path"] for row in found] == [str(folder / photo.name) for photo in PHOTOS]
    assert [row["path"] for row in found if row["error"]] == [str(deadly)]


@pytest.mark.usefixtures("bulk_on_ray", "crashing")
def test_a_picture_that_ends_each_worker_ends_a_dataset(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    import onestream.ray
    from onestream.cli.bulk.ray import datasets

    monkeypatch.setattr(datasets, "MOST_ATTEMPTS", 2)
    data = ray.data.from_arrow(pa.table({"bytes": pa.array([b"deadly"], pa.binary())}))
    said = onestream.ray.predict(data, "classify", repository=repository, workers=1, cpus_per_worker=2)
    with pytest.raises(ray.exceptions.RayActorError):
        said.take_all()


def test_another_onestream_is_refused_by_name(nodes: Any, photos: Path, repository: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "onestream"
    shutil.copytree(ROOT / "onestream", other, symlinks=False, ignore=shutil.ignore_patterns("__pycache__"))
    (other / "wire" / "install.py").open("a").write("\n_ANOTHER = True\n")
    with add_node(nodes, PYTHONPATH=str(tmp_path / "other")):
        # Ray lets workers import from the folder of the one that asks.
        asks = command(photos, "--to", tmp_path / "out", "--ray-address", nodes.address, "--repository", repository)
        done = subprocess.run(asks, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 2
    assert "machine 127.0.0.1 (" in done.stderr
    assert "and the one that asks runs onestream" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
