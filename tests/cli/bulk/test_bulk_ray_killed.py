"""``onestream bulk --ray`` on real clusters of several nodes: workers, nodes and the one that asks are killed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import NEVER_S, wait_until
from ray_clusters import ROOT, add_node, begin, cluster, rows, run, workers_of

pytest.importorskip("ray")

PHOTOS = sorted((ROOT / "examples" / "photos").glob("*.jpg"))
COPIES = 60

CRASHES = """
import os
import signal
import sys


class Finder:
    is_waiting = True

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "onestream.cli.bulk.ray.answering" and cls.is_waiting:
            cls.is_waiting = False
            from onestream.client import images

            encode = images.encode

            def crash_or_encode(image, **options):
                encoded = encode(image, **options)
                if encoded.to_bytes() == b"deadly":
                    os.kill(os.getpid(), signal.SIGKILL)
                return encoded

            images.encode = crash_or_encode


sys.meta_path.insert(0, Finder)
"""
"""A module of Python's start, in whose processes a picture does what a bug of a library would."""

PREDICT = """
import sys
import pyarrow as pa
import ray
import onestream.ray

ray.init(sys.argv[1], log_to_driver=False)
data = ray.data.from_arrow(pa.table({"bytes": pa.array([b"deadly"], pa.binary())}))
onestream.ray.predict(data, "classify", repository=sys.argv[2], workers=1).take_all()
"""

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """360 photos."""
    folder = tmp_path_factory.mktemp("killed") / "photos"
    folder.mkdir()
    for number in range(COPIES):
        for photo in PHOTOS:
            (folder / f"{number:02}-{photo.name}").write_bytes(photo.read_bytes())
    return folder


@pytest.fixture
def nodes() -> Iterator[Any]:
    """A cluster of a head and two nodes with a CPU each."""
    with cluster(nodes=2) as made:
        yield made


def wait_for_parts(out: Path, count: int, process: subprocess.Popen[str]) -> None:
    def written() -> bool:
        assert process.poll() is None, f"the run ended before {count} parts were written: {process.communicate()[1]}"
        return out.is_dir() and len(list(out.glob("part-*"))) >= count

    wait_until(written)


def check_all_there(out: Path, photos: Path) -> None:
    """Every picture has one row, in the order of the names."""
    found = rows(out)
    assert [row["path"] for row in found] == [str(path) for path in sorted(photos.iterdir())]
    assert not any(row.get("error") for row in found)
    assert list(out.glob(".*")) == []


def test_a_killed_worker_is_started_again(nodes: Any, photos: Path, repository: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = begin(nodes, photos, "--to", out, "--repository", repository)
    wait_for_parts(out, 3, process)
    killed = [worker for node in nodes.worker_nodes for worker in workers_of(node)]
    assert killed
    killed[0].kill()
    _, complaints = process.communicate(timeout=240)
    assert process.returncode == 0, complaints
    check_all_there(out, photos)


def test_a_killed_node_is_done_without(nodes: Any, photos: Path, repository: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = begin(nodes, photos, "--to", out, "--repository", repository)
    wait_for_parts(out, 3, process)
    nodes.remove_node(next(iter(nodes.worker_nodes)), allow_graceful=False)
    _, complaints = process.communicate(timeout=240)
    assert process.returncode == 0, complaints
    check_all_there(out, photos)


def test_the_same_command_goes_on_after_the_one_that_asks_is_killed(
    nodes: Any, photos: Path, repository: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for parts in (1, 8):
        process = begin(nodes, photos, "--to", out, "--repository", repository)
        wait_for_parts(out, parts, process)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        assert not (out / "_SUCCESS").exists()
    process = begin(nodes, photos, "--to", out, "--repository", repository)
    _, complaints = process.communicate(timeout=240)
    assert process.returncode == 0, complaints
    assert "images of an earlier run" in complaints
    check_all_there(out, photos)


@pytest.fixture
def crashing(tmp_path: Path) -> Iterator[Any]:
    """A cluster of one machine with two CPUs, on which a picture of these bytes ends the process that reads it."""
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(CRASHES)
    with cluster(nodes=0) as nodes:
        add_node(nodes, cpus=2, PYTHONPATH=f"{hooks}{os.pathsep}{ROOT}")
        yield nodes


def test_a_picture_that_ends_its_worker_each_time_is_named_and_can_be_left_out(
    crashing: Any, repository: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for photo in PHOTOS:
        (folder / photo.name).write_bytes(photo.read_bytes())
    deadly = folder / PHOTOS[3].name
    deadly.write_bytes(b"deadly")
    command = [folder, "--to", tmp_path / "out", "--repository", repository, "--ray-address", crashing.address]
    command += ["--files-per-part", 2, "--workers", 1]
    stopped = run(*command, timeout_s=NEVER_S)
    assert stopped.returncode == 1, stopped.stderr
    first = str(folder / PHOTOS[2].name)
    assert f"part 1, from {first!r} on, lost its process, or its machine, 5 times; replace" in stopped.stderr
    assert f"to go on without it: {str(deadly)!r}; " in stopped.stderr
    assert "the same command goes on" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    deadly.write_bytes(b"")
    done = run(*command)
    assert done.returncode == 1, done.stderr
    assert "images of an earlier run" in done.stderr
    found = rows(tmp_path / "out")
    assert [row["path"] for row in found] == [str(folder / photo.name) for photo in PHOTOS]
    assert [row["path"] for row in found if row["error"]] == [str(deadly)]


def test_a_picture_that_ends_its_worker_each_time_ends_a_dataset(crashing: Any, repository: Path) -> None:
    command = [sys.executable, "-c", PREDICT, crashing.address, str(repository)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=NEVER_S, check=False)
    assert done.returncode == 1
    assert re.search(r"Actor(Died|Unavailable)Error", done.stderr), done.stderr


def test_a_machine_with_another_onestream_is_refused_by_name(photos: Path, repository: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "onestream"
    shutil.copytree(ROOT / "onestream", other, symlinks=False, ignore=shutil.ignore_patterns("__pycache__"))
    (other / "wire" / "install.py").open("a").write("\n_ANOTHER = True\n")
    with cluster(nodes=1) as nodes:
        add_node(nodes, PYTHONPATH=str(tmp_path / "other"))
        done = run(
            photos, "--to", tmp_path / "out", "--ray-address", nodes.address, "--repository", repository, cwd=tmp_path
        )
    assert done.returncode == 2
    assert "machine 127.0.0.1 (" in done.stderr
    assert "and the one that asks runs onestream" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_machine_without_the_model_gets_it_and_a_damaged_one_is_mended(repository: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with cluster(nodes=0) as nodes:
        add_node(nodes, ONESTREAM_CACHE=str(cache))
        for out in ("first", "second"):
            done = run(*PHOTOS, "--to", tmp_path / out, "--ray-address", nodes.address, "--repository", repository)
            assert done.returncode == 0, done.stderr
            (network,) = cache.glob("ray-models/*/classify_fused/1/model.onnx")
            assert network.read_bytes() == (repository / "classify_fused" / "1" / "model.onnx").read_bytes()
            network.write_bytes(b"damaged")
    assert rows(tmp_path / "first") == rows(tmp_path / "second")


def test_a_full_disk_stops_the_run_and_it_goes_on_when_there_is_room(
    photos: Path, repository: Path, tmp_path: Path
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40k", "tmpfs", small], capture_output=True).returncode:
        pytest.skip("this user may not mount a small disk")
    try:
        options = ["--to", small / "out", "--repository", repository, "--files-per-part", 20, "--ray"]
        stopped = run(photos, *options)
        assert stopped.returncode == 1, stopped.stderr
        assert "No space left on device" in stopped.stderr
        assert "the same command goes on" in stopped.stderr
        assert "Traceback" not in stopped.stderr
        subprocess.run(["mount", "-o", "remount,size=10m", small], check=True)
        done = run(photos, *options)
        assert done.returncode == 0, done.stderr
        assert "images of an earlier run" in done.stderr
        check_all_there(small / "out", photos)
    finally:
        subprocess.run(["umount", small], check=True)
