"""Outputs in S3, on a real server of its protocol: written, killed on the way, and the runs of Ray."""

from __future__ import annotations

import signal
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from bulk_fakes import photos, shard, table
from patience import PATIENCE_S, wait_until
from ray_clusters import ROOT, begin, cluster, rows, run, workers_of

from onestream.cli.bulk.ray.folder import ABOUT, COMPLETE, OutputFolder

pytest.importorskip("moto", reason="moto is missing, a server of S3's protocol")

from s3_server import S3Server

PHOTOS = sorted((ROOT / "examples" / "photos").glob("*.jpg"))
PART = "part-00000000-0123456789abcdef.jsonl"


@pytest.fixture
def out(s3: S3Server) -> OutputFolder:
    """The folder of a run that has begun."""
    made = OutputFolder(f"{s3.bucket()}/labels")
    made.begin({}, anew=False)
    return made


WRITES = """
import sys
from onestream.cli.bulk.ray.folder import OutputFolder
OutputFolder(sys.argv[1]).write(sys.argv[2], bytes(30 << 20))
"""


def test_a_part_half_of_which_was_sent_is_not_there(s3: S3Server, out: OutputFolder) -> None:
    with s3.held(lambda request: request.is_upload) as held:
        process = subprocess.Popen([sys.executable, "-c", WRITES, out.place, PART], cwd=ROOT)
        wait_until(lambda: held.waiting or process.poll() is not None)
        assert out.names() == {ABOUT}
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert out.names() == {ABOUT}
    out.write(PART, b"whole")
    assert out.names() == {ABOUT, PART}
    assert out.read(PART) == b"whole"


def test_a_part_is_there_when_the_store_has_all_of_it(s3: S3Server, out: OutputFolder) -> None:
    with s3.held(lambda request: request.is_completion) as held, ThreadPoolExecutor(1) as thread:
        written = thread.submit(out.write, PART, b"rows")
        wait_until(lambda: held.waiting or written.done())
        assert out.names() == {ABOUT}
        held.let_go.set()
        written.result()
    assert out.read(PART) == b"rows"


def test_a_write_that_is_broken_off_leaves_no_file(out: OutputFolder) -> None:
    with pytest.raises(TypeError):
        out.write(PART, "no bytes")  # type: ignore[arg-type]
    assert out.names() == {ABOUT}


# ---- Ray ------------------------------------------------------------------------------------------------------------


def fetched(s3: S3Server, address: str, folder: Path) -> Path:
    """A folder of this machine with the files of an output."""
    folder.mkdir()
    for name in s3.names(address):
        (folder / name).write_bytes(s3.get(f"{address}/{name}"))
    return folder


@pytest.mark.slow
def test_ray_reads_and_writes_s3(s3: S3Server, repository: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    images = {photo.name: photo.read_bytes() for photo in PHOTOS}
    files = {
        **{f"photos/{name}": data for name, data in images.items()},
        "photos/cut.jpg": next(iter(images.values()))[:2000],
        "shard.tar": shard(images),
        "rows.parquet": table(list(images.values())),
    }
    here = photos(tmp_path / "here", files)
    bucket = s3.bucket(files)
    options = ["--ray", "--repository", repository, "--files-per-part", 3]
    names = ["photos", "shard.tar", "rows.parquet", "gone.jpg"]
    for form in ("parquet", "jsonl"):
        alike = [*options, "--format", form, "--to"]
        local = run(*(here / name for name in names), *alike, tmp_path / form)
        assert local.returncode == 1, local.stderr
        remote = run("-", *alike, f"{bucket}/{form}", input="".join(f"{bucket}/{name}\n" for name in names))
        assert remote.returncode == 1, remote.stderr
        assert f"→ {bucket}/{form}" in remote.stderr
        found = fetched(s3, f"{bucket}/{form}", tmp_path / f"fetched-{form}")
        assert {ABOUT, COMPLETE} < {path.name for path in found.iterdir()}
        expected = [{**row, "path": row["path"].replace(str(here), bucket)} for row in rows(tmp_path / form)]
        assert without_reasons(rows(found)) == without_reasons(expected)
        assert len(expected) == 3 * len(images) + 2


def without_reasons(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without what a file system says of a file that is not there."""
    return [{name: value for name, value in row.items() if name != "reason"} for row in found]


@pytest.mark.slow
def test_ray_says_what_the_store_refuses(s3: S3Server, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    bucket = s3.bucket()
    missing = f"s3://{uuid.uuid4().hex}"
    nowhere = run(PHOTOS[0], "--to", f"{missing}/labels", "--ray", "--repository", repository)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    refused = run(PHOTOS[0], "--to", f"{bucket}/labels", "--ray", "--repository", repository)
    assert (nowhere.returncode, refused.returncode) == (2, 2)
    assert missing.removeprefix("s3://") in nowhere.stderr
    assert bucket.removeprefix("s3://") in refused.stderr
    assert "ACCESS_DENIED" in refused.stderr
    assert "Traceback" not in nowhere.stderr + refused.stderr


@pytest.mark.slow
def test_ray_goes_on_after_kills_in_the_middle_of_uploads(s3: S3Server, repository: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    bucket = s3.bucket({f"photos/{n:02}-{photo.name}": photo.read_bytes() for n in range(40) for photo in PHOTOS})
    out = f"{bucket}/labels"

    def parts() -> int:
        return sum(name.startswith("part-") for name in s3.names(out))

    with cluster(nodes=2) as nodes:
        arguments = [f"{bucket}/photos", "--to", out, "--repository", repository]
        with s3.held(lambda request: request.is_upload and "/part-" in request.path) as held:
            process = begin(nodes, *arguments)
            wait_until(lambda: len(held.waiting) == 2 or process.poll() is not None)
            for worker in [worker for node in nodes.worker_nodes for worker in workers_of(node)]:
                worker.kill()
            process.kill()
            process.communicate()
            assert parts() == 0
        process = begin(nodes, *arguments)
        wait_until(lambda: parts() >= 3 or process.poll() is not None)
        next(worker for node in nodes.worker_nodes for worker in workers_of(node)).kill()
        wait_until(lambda: parts() >= 8 or process.poll() is not None)
        process.kill()
        process.communicate()
        assert COMPLETE not in s3.names(out)
        process = begin(nodes, *arguments)
        _, complaints = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, complaints
    assert "images of an earlier run" in complaints
    found = rows(fetched(s3, out, tmp_path / "fetched"))
    assert [row["path"] for row in found] == sorted(
        f"{bucket}/photos/{n:02}-{one.name}" for n in range(40) for one in PHOTOS
    )
    assert not any(row.get("error") for row in found)
    assert all(name.startswith(("part-", "_")) for name in s3.names(out))
