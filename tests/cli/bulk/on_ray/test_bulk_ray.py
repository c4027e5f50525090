"""``onestream bulk --ray`` on a cluster of two machines: the rows of ``onestream bulk``, and what it refuses."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from ray_clusters import ROOT, BulkOnRay, add_node, rows
from ray_hooks import Hooks, say_thread_counts
from shared_server import SharedServer
from typer.testing import CliRunner

from onestream.cli.main import app

pytest.importorskip("ray")

PHOTOS = sorted((ROOT / "examples" / "photos").glob("*.jpg"))

pytestmark = [pytest.mark.slow]


def many(folder: Path, count: int) -> Path:
    """A folder of ``count`` photos; every seventh is cut short."""
    folder.mkdir()
    for number in range(count):
        data = PHOTOS[number % len(PHOTOS)].read_bytes()
        (folder / f"{number:05}.jpg").write_bytes(data if number % 7 else data[:2000])
    return folder


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A folder, a shard, a Parquet file, a file that is missing: 100 images and one reason more."""
    folder = tmp_path_factory.mktemp("sources")
    many(folder / "photos", 78)
    with tarfile.open(folder / "shard.tar", "w") as tar:
        for number in range(12):
            tar.add(PHOTOS[number % len(PHOTOS)], f"{number:03}.jpg")
    data = [photo.read_bytes() for photo in PHOTOS] + [b"no picture", None, b"", PHOTOS[0].read_bytes()[:3000]]
    parquet.write_table(pa.table({"image": pa.array(data, pa.binary())}), folder / "rows.parquet")
    return [str(folder / "photos"), str(folder / "shard.tar"), str(folder / "rows.parquet"), str(folder / "gone.jpg")]


@pytest.fixture(scope="module")
def asked(server: SharedServer, sources: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The rows of ``onestream bulk`` on a server."""
    out = tmp_path_factory.mktemp("asked") / "asked.parquet"
    options = ["--to", str(out), "--url", server.grpc_address, "--pipeline", "classify_fused"]
    done = CliRunner().invoke(app, ["bulk", *sources, *options])
    assert done.exit_code == 1, done.stderr
    found = rows(out)
    assert len(found) == 101
    return found


@pytest.mark.needs_triton
def test_the_rows_are_those_of_bulk_also_where_a_machine_s_model_is_damaged(
    bulk_on_ray: BulkOnRay,
    caches: list[Path],
    asked: list[dict[str, Any]],
    sources: list[str],
    repository: Path,
    tmp_path: Path,
) -> None:
    model = (repository / "classify_fused" / "1" / "model.onnx").read_bytes()
    for out in ("first", "second"):
        options = ["--to", tmp_path / out, "--repository", repository, "--files-per-part", 10]
        done = bulk_on_ray(*sources, *options)
        assert done.exit_code == 1, done.stderr
        assert "101 images, " in done.stderr
        assert rows(tmp_path / out) == asked
        names = {path.name for path in (tmp_path / out).iterdir()}
        # The first parts have 8 files.
        assert len([name for name in names if name.startswith("part-")]) == 13
        assert {"_run.json", "_SUCCESS"} < names
        assert json.loads((tmp_path / out / "_SUCCESS").read_text())["images"] == 101
        # Each machine had a worker, for which the model was put there.
        for cache in caches:
            (network,) = cache.glob("ray-models/*/classify_fused/1/model.onnx")
            assert network.read_bytes() == model
            network.write_bytes(b"damaged")


@pytest.mark.needs_triton
def test_workers_may_call_a_server_for_a_list_on_standard_input(
    bulk_on_ray: BulkOnRay, server: SharedServer, tmp_path: Path
) -> None:
    listed = "".join(f"{photo}\n" for photo in PHOTOS)
    options = ["--url", server.grpc_address, "--format", "jsonl", "--top", 2]
    done = bulk_on_ray("-", "--to", tmp_path / "out", *options, "--workers", 1, stdin=listed)
    assert done.exit_code == 0, done.stderr
    words = ["-", "--to", tmp_path / "alone.jsonl", "--url", server.grpc_address, "--top", 2]
    alone = CliRunner().invoke(app, ["bulk", *map(str, words)], input=listed)
    assert alone.exit_code == 0, alone.stderr
    found = rows(tmp_path / "out")
    assert [row["path"] for row in found] == [str(photo) for photo in PHOTOS]
    assert [len(row["labels"]) for row in found] == [2] * len(PHOTOS)
    assert found == rows(tmp_path / "alone.jsonl")


def test_workers_have_the_cpus_and_threads_that_they_are_given(
    nodes: Any, bulk_on_ray: BulkOnRay, repository: Path, tmp_path: Path
) -> None:
    hooks = Hooks(tmp_path, say_thread_counts, workers=2)
    options = ["--to", tmp_path / "out", "--repository", repository, "--files-per-part", 1, "--cpus-per-worker", 2]
    with add_node(nodes, cpus=4, **hooks.variables):
        done = bulk_on_ray(*PHOTOS, *options)
    assert done.exit_code == 0, done.stderr
    assert hooks.said() == ["2", "2"]
    assert [row["path"] for row in rows(tmp_path / "out")] == [str(photo) for photo in PHOTOS]


def test_another_run_in_the_place_of_an_earlier_one_is_refused(
    bulk_on_ray: BulkOnRay, repository: Path, tmp_path: Path
) -> None:
    photos, out = many(tmp_path / "photos", 4), tmp_path / "out"
    command = [photos, "--to", out, "--repository", repository, "--workers", 1, "--files-per-part", 2]
    assert bulk_on_ray(*command).exit_code == 1
    again = bulk_on_ray(*command)
    assert again.exit_code == 2
    assert "is complete already; --overwrite begins anew" in again.stderr
    (out / "_SUCCESS").unlink()
    before = {path.name: path.stat().st_mtime_ns for path in out.glob("part-*")}
    done = bulk_on_ray(*command)
    assert done.exit_code == 1, done.stderr
    assert "going on after 4 images of an earlier run" in done.stderr
    assert {path.name: path.stat().st_mtime_ns for path in out.glob("part-*")} == before
    # Other sources than those of the earlier run.
    (out / "_SUCCESS").unlink()
    for name in ("00002.jpg", "00003.jpg"):
        (photos / name).unlink()
    fewer = bulk_on_ray(*command)
    assert fewer.exit_code == 2
    assert "the sources end before part 1, whose images an earlier run found there: part-00000001-" in fewer.stderr
    assert not (out / "_SUCCESS").exists()
    (photos / "00001.jpg").unlink()
    changed = bulk_on_ray(*command)
    assert changed.exit_code == 2
    assert "has other files than an earlier run found there" in changed.stderr


def test_what_cannot_be_begun_says_why(bulk_on_ray: BulkOnRay, repository: Path, tmp_path: Path) -> None:
    missing = bulk_on_ray(PHOTOS[0], "--to", tmp_path / "out", "--repository", tmp_path)
    assert missing.exit_code == 2
    assert "has no classify_fused; build it with onestream build" in missing.stderr
    changed = Path(shutil.copytree(repository / "classify_fused", tmp_path / "classify_fused"))
    definition = changed / "definition.json"
    definition.write_text(definition.read_text().replace("256", "255"))
    stamp = bulk_on_ray(PHOTOS[0], "--to", tmp_path / "out", "--repository", tmp_path)
    assert stamp.exit_code == 2
    assert "first difference" in stamp.stderr
    (tmp_path / "empty").mkdir()
    words = [tmp_path / "empty", "--to", tmp_path / "other", "--repository", repository, "--workers", 1]
    nothing = bulk_on_ray(*words)
    assert nothing.exit_code == 2
    assert "no images in" in nothing.stderr


def test_a_full_disk_stops_the_run_and_it_goes_on_when_there_is_room(
    bulk_on_ray: BulkOnRay, repository: Path, tmp_path: Path
) -> None:
    photos, small = many(tmp_path / "photos", 60), tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40k", "tmpfs", small], capture_output=True).returncode:
        pytest.skip("this user may not mount a small disk")
    try:
        command = [photos, "--to", small / "out", "--repository", repository, "--files-per-part", 2, "--workers", 1]
        stopped = bulk_on_ray(*command)
        assert stopped.exit_code == 1, stopped.stderr
        assert "No space left on device" in stopped.stderr
        assert "the same command goes on" in stopped.stderr
        assert "Traceback" not in stopped.stderr
        subprocess.run(["mount", "-o", "remount,size=10m", small], check=True)
        done = bulk_on_ray(*command)
        assert done.exit_code == 1, done.stderr
        assert "images of an earlier run" in done.stderr
        assert "60 images, 9 failed" in done.stderr
        assert [row["path"] for row in rows(small / "out")] == [str(path) for path in sorted(photos.iterdir())]
        assert list((small / "out").glob(".*")) == []
    finally:
        subprocess.run(["umount", small], check=True)
