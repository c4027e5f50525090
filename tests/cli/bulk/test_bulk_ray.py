"""``onestream bulk --ray`` on a Ray of this machine: the rows of ``onestream bulk``, and what it refuses."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from bulk_terminals import on_terminal
from ray_clusters import ROOT, add_node, cluster, command, rows, run
from ray_hooks import Hooks

from onestream.serving.server.server import Server

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
    """A folder, a shard, a Parquet file, a file that is missing: 2,000 images and one reason more."""
    folder = tmp_path_factory.mktemp("sources")
    many(folder / "photos", 1900)
    with tarfile.open(folder / "shard.tar", "w") as tar:
        for number in range(60):
            photo = PHOTOS[number % len(PHOTOS)]
            tar.add(photo, f"{number:03}.jpg")
    data = [photo.read_bytes() for photo in PHOTOS] * 6 + [b"no picture", None, b"", PHOTOS[0].read_bytes()[:3000]]
    parquet.write_table(pa.table({"image": pa.array(data, pa.binary())}), folder / "rows.parquet")
    return [str(folder / "photos"), str(folder / "shard.tar"), str(folder / "rows.parquet"), str(folder / "gone.jpg")]


@pytest.fixture(scope="module")
def asked(server: Server, sources: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The rows of ``onestream bulk`` on a server."""
    out = tmp_path_factory.mktemp("asked") / "asked.parquet"
    done = run(*sources, "--to", out, "--url", server.grpc_address, "--pipeline", "classify_fused")
    assert done.returncode == 1, done.stderr
    found = rows(out)
    assert len(found) == 2001
    return found


@pytest.mark.needs_triton
@pytest.mark.parametrize("nodes", [1, 2])
def test_the_rows_are_those_of_bulk(
    asked: list[dict[str, Any]], sources: list[str], repository: Path, tmp_path: Path, nodes: int
) -> None:
    options = ["--to", tmp_path / "out", "--repository", repository, "--files-per-part", 300]
    if nodes == 1:
        done = run(*sources, *options, "--ray")
    else:
        with cluster(nodes=0) as made:
            for number in range(nodes):
                add_node(made, ONESTREAM_CACHE=str(tmp_path / f"node-{number}"))
            done = run(*sources, *options, "--ray-address", made.address)
        # Each had a worker, for which the model was put there.
        assert len(list(tmp_path.glob("node-*/ray-models/*/classify_fused"))) == nodes
    assert done.returncode == 1, done.stderr
    assert "2001 images, " in done.stderr
    assert rows(tmp_path / "out") == asked
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert len([name for name in names if name.startswith("part-")]) == 10
    assert {"_run.json", "_SUCCESS"} < names
    assert json.loads((tmp_path / "out" / "_SUCCESS").read_text())["images"] == 2001


def test_json_lines_and_a_list_on_standard_input(repository: Path, tmp_path: Path) -> None:
    listed = "".join(f"{photo}\n" for photo in PHOTOS)
    for out in ("one", "two"):
        done = run(
            "-", "--to", tmp_path / out, "--ray", "--format", "jsonl", "--repository", repository, "--top", 2,
            input=listed,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    found = rows(tmp_path / "one")
    assert [row["path"] for row in found] == [str(photo) for photo in PHOTOS]
    assert [len(row["labels"]) for row in found] == [2] * len(PHOTOS)
    assert found == rows(tmp_path / "two")


@pytest.mark.needs_triton
def test_workers_may_call_a_server(server: Server, repository: Path, tmp_path: Path) -> None:
    by_server = run(*PHOTOS, "--to", tmp_path / "asked", "--ray", "--url", server.grpc_address, "--workers", 1)
    assert by_server.returncode == 0, by_server.stderr
    alone = run(*PHOTOS, "--to", tmp_path / "alone", "--ray", "--repository", repository)
    assert alone.returncode == 0, alone.stderr
    assert rows(tmp_path / "asked") == rows(tmp_path / "alone")


def test_workers_have_the_cpus_and_threads_that_they_are_given(repository: Path, tmp_path: Path) -> None:
    hooks = Hooks(tmp_path, "ray_thread_counts", workers=2)
    options = ["--to", tmp_path / "out", "--repository", repository, "--files-per-part", 1, "--cpus-per-worker", 2]
    with cluster(nodes=0) as made:
        add_node(made, cpus=4, **hooks.variables)
        done = run(*PHOTOS, *options, "--ray-address", made.address)
    assert done.returncode == 0, done.stderr
    assert hooks.said() == ["2", "2"]
    assert [row["path"] for row in rows(tmp_path / "out")] == [str(photo) for photo in PHOTOS]


def test_a_terminal_shows_the_progress(repository: Path, tmp_path: Path) -> None:
    photos, out = many(tmp_path / "photos", 40), tmp_path / "out"
    options = ["--to", out, "--ray", "--repository", repository, "--files-per-part", 10]
    code, shown = on_terminal(command(photos, *options), cwd=ROOT, stdout=tmp_path / "stdout")
    assert code == 1, shown
    assert "/40" in shown
    assert "images/s" in shown
    assert "6 failed" in shown
    assert "Traceback" not in shown
    assert "\x1b" not in (tmp_path / "stdout").read_text()
    assert len(rows(out)) == 40


def test_another_run_is_refused_and_a_complete_one(repository: Path, tmp_path: Path) -> None:
    command = [*PHOTOS[:2], "--to", tmp_path / "out", "--ray", "--repository", repository]
    assert run(*command).returncode == 0
    again = run(*command)
    assert again.returncode == 2
    assert "is complete already; --overwrite begins anew" in again.stderr
    (tmp_path / "out" / "_SUCCESS").unlink()
    other = run(*command, "--top", 3)
    assert other.returncode == 2
    assert "belongs to another run: {'top': 1}, now {'top': 3}" in other.stderr
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")}
    done = run(*command)
    assert done.returncode == 0, done.stderr
    assert "going on after 2 images of an earlier run" in done.stderr
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")} == before


def test_other_sources_in_the_place_of_earlier_ones_are_refused(repository: Path, tmp_path: Path) -> None:
    many(tmp_path / "photos", 4)
    command = [tmp_path / "photos", "--to", tmp_path / "out", "--ray", "--repository", repository]
    assert run(*command).returncode == 1
    (tmp_path / "out" / "_SUCCESS").unlink()
    (tmp_path / "photos" / "00001.jpg").unlink()
    other = run(*command)
    assert other.returncode == 2
    assert "has other files than an earlier run found there" in other.stderr


def test_sources_without_the_last_parts_of_an_earlier_run_are_refused(repository: Path, tmp_path: Path) -> None:
    many(tmp_path / "photos", 4)
    command = [tmp_path / "photos", "--to", tmp_path / "out", "--ray", "--repository", repository]
    assert run(*command, "--files-per-part", 2).returncode == 1
    (tmp_path / "out" / "_SUCCESS").unlink()
    for name in ("00002.jpg", "00003.jpg"):
        (tmp_path / "photos" / name).unlink()
    other = run(*command, "--files-per-part", 2)
    assert other.returncode == 2
    assert "the sources end before part 1, whose images an earlier run found there: part-00000001-" in other.stderr
    assert not (tmp_path / "out" / "_SUCCESS").exists()


def test_what_cannot_be_begun_says_why(repository: Path, tmp_path: Path) -> None:
    missing = run(PHOTOS[0], "--to", tmp_path / "out", "--ray", "--repository", tmp_path)
    assert missing.returncode == 2
    assert "has no classify_fused; build it with onestream build" in missing.stderr
    changed = Path(shutil.copytree(repository / "classify_fused", tmp_path / "classify_fused"))
    definition = changed / "definition.json"
    definition.write_text(definition.read_text().replace("256", "255"))
    stamp = run(PHOTOS[0], "--to", tmp_path / "out", "--ray", "--repository", tmp_path)
    assert stamp.returncode == 2
    assert "first difference" in stamp.stderr
    (tmp_path / "empty").mkdir()
    nothing = run(tmp_path / "empty", "--to", tmp_path / "other", "--ray", "--repository", repository)
    assert nothing.returncode == 2
    assert "no images in" in nothing.stderr
    nobody = run(PHOTOS[0], "--to", tmp_path / "more", "--ray-address", "127.0.0.1:1", "--repository", repository)
    assert nobody.returncode == 2
    assert "no Ray at 127.0.0.1:1" in nobody.stderr
    for done in (missing, stamp, nothing, nobody):
        assert "Traceback" not in done.stderr
