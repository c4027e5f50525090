"""``onestream bulk --ray`` on a cluster of two machines: the rows of ``onestream bulk``, and what it refuses."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from bulk_fakes import photos, rows, shard, table
from ray_clusters import PHOTOS, BulkOnRay, add_node
from ray_hooks import Hooks, say_thread_counts
from shared_server import SharedServer
from typer.testing import CliRunner

from onestream.cli.main import app

if TYPE_CHECKING:
    from s3_server import S3Server

pytest.importorskip("ray")

pytestmark = [pytest.mark.slow]


def many(folder: Path, count: int) -> Path:
    """A folder of ``count`` photos; every seventh is cut short."""
    folder.mkdir()
    for number in range(count):
        data = PHOTOS[number % len(PHOTOS)].read_bytes()
        (folder / f"{number:05}.jpg").write_bytes(data if number % 7 else data[:2000])
    return folder


@pytest.mark.needs_triton
def test_the_rows_are_those_of_bulk_also_where_a_machine_s_model_is_damaged(
    bulk_on_ray: BulkOnRay, caches: list[Path], server: SharedServer, repository: Path, tmp_path: Path
) -> None:
    """Of a folder, a shard, a Parquet file and one that is missing."""
    with tarfile.open(tmp_path / "shard.tar", "w") as tar:
        for number in range(12):
            tar.add(PHOTOS[number % len(PHOTOS)], f"{number:03}.jpg")
    data = [photo.read_bytes() for photo in PHOTOS] + [b"no picture", None, b"", PHOTOS[0].read_bytes()[:3000]]
    parquet.write_table(pa.table({"image": pa.array(data, pa.binary())}), tmp_path / "rows.parquet")
    sources = [many(tmp_path / "photos", 78), *(tmp_path / name for name in ("shard.tar", "rows.parquet", "gone.jpg"))]
    words = [*sources, "--to", tmp_path / "asked.parquet", "--url", server.grpc_address, "--pipeline", "classify_fused"]
    assert CliRunner().invoke(app, ["bulk", *map(str, words)]).exit_code == 1
    asked = rows(tmp_path / "asked.parquet")
    assert len(asked) == 101
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
    options = ["--url", server.grpc_address, "--top", 2]
    done = bulk_on_ray("-", "--to", tmp_path / "out", *options, "--format", "jsonl", "--workers", 1, stdin=listed)
    assert done.exit_code == 0, done.stderr
    words = ["-", "--to", tmp_path / "alone.jsonl", *options]
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


def test_another_run_in_the_same_place_is_refused(bulk_on_ray: BulkOnRay, repository: Path, tmp_path: Path) -> None:
    photos, out = many(tmp_path / "photos", 4), tmp_path / "out"
    command = [photos, "--to", out, "--repository", repository, "--workers", 1, "--files-per-part", 2]
    assert bulk_on_ray(*command).exit_code == 1

    def refused(*more: str) -> str:
        done = bulk_on_ray(*command, *more)
        assert done.exit_code == 2
        return done.stderr

    assert "is complete already; --overwrite begins anew" in refused()
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
    told = "the sources end before part 1, whose images an earlier run found there: part-00000001-"
    assert told in refused()
    assert not (out / "_SUCCESS").exists()
    (photos / "00001.jpg").unlink()
    assert "has other files than an earlier run found there" in refused()
    (photos / "00000.jpg").unlink()
    assert "no images in" in refused("--overwrite")


def test_a_model_that_is_not_what_was_built_is_refused(
    bulk_on_ray: BulkOnRay, repository: Path, tmp_path: Path
) -> None:
    definition = Path(shutil.copytree(repository / "classify_fused", tmp_path / "classify_fused")) / "definition.json"
    definition.write_text(definition.read_text().replace("256", "255"))
    refused = bulk_on_ray(PHOTOS[0], "--to", tmp_path / "out", "--repository", tmp_path)
    assert refused.exit_code == 2
    assert "first difference" in refused.stderr


def test_ray_reads_and_writes_s3(s3: S3Server, bulk_on_ray: BulkOnRay, repository: Path, tmp_path: Path) -> None:
    images = {photo.name: photo.read_bytes() for photo in PHOTOS}
    files = {
        **{f"photos/{name}": data for name, data in images.items()},
        "photos/cut.jpg": next(iter(images.values()))[:2000],
        "shard.tar": shard(images),
        "rows.parquet": table(list(images.values())),
    }
    here = photos(tmp_path / "here", files)
    bucket = s3.bucket(files)
    options = ["--repository", repository, "--files-per-part", 3, "--workers", 1]
    names = ["photos", "shard.tar", "rows.parquet", "gone.jpg"]
    local = bulk_on_ray(*(here / name for name in names), *options, "--to", tmp_path / "local")
    assert local.exit_code == 1, local.stderr
    expected = [{**row, "path": row["path"].replace(str(here), bucket)} for row in rows(tmp_path / "local")]
    assert len(expected) == 3 * len(images) + 2
    listed = "".join(f"{bucket}/{name}\n" for name in names)
    remote = bulk_on_ray("-", *options, "--to", f"{bucket}/labels", stdin=listed)
    assert remote.exit_code == 1, remote.stderr
    assert f"→ {bucket}/labels" in remote.stderr
    (tmp_path / "fetched").mkdir()
    for name in s3.names(f"{bucket}/labels"):
        (tmp_path / "fetched" / name).write_bytes(s3.get(f"{bucket}/labels/{name}"))
    found = rows(tmp_path / "fetched")
    assert {"_run.json", "_SUCCESS"} < {path.name for path in (tmp_path / "fetched").iterdir()}
    for row in (*found, *expected):
        # What a file system says of a file that is not there.
        del row["reason"]
    assert found == expected
