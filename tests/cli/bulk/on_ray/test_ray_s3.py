"""Outputs and sources of Ray in S3, on a real server of its protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bulk_fakes import photos, shard, table
from ray_clusters import ROOT, BulkOnRay, rows

pytest.importorskip("moto", reason="moto is missing, a server of S3's protocol")
pytest.importorskip("ray")

from s3_server import S3Server

PHOTOS = sorted((ROOT / "examples" / "photos").glob("*.jpg"))

pytestmark = [pytest.mark.slow]


def fetched(s3: S3Server, address: str, folder: Path) -> Path:
    """A folder of this machine with the files of an output."""
    folder.mkdir()
    for name in s3.names(address):
        (folder / name).write_bytes(s3.get(f"{address}/{name}"))
    return folder


def without_reasons(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without what a file system says of a file that is not there."""
    return [{name: value for name, value in row.items() if name != "reason"} for row in found]


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
    found = fetched(s3, f"{bucket}/labels", tmp_path / "fetched")
    assert {"_run.json", "_SUCCESS"} < {path.name for path in found.iterdir()}
    assert without_reasons(rows(found)) == without_reasons(expected)
