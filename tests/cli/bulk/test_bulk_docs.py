"""The commands of docs/bulk.md run."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
from pages import ROOT, Shell, blocks
from shared_server import SharedServer


@pytest.mark.needs_triton
@pytest.mark.slow
def test_the_commands_of_the_page_run(server: SharedServer, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "shards").mkdir()
    photos = sorted((ROOT / "examples" / "photos").glob("*.jpg"))
    for number in range(2):
        with tarfile.open(tmp_path / "shards" / f"train-{number:04}.tar", "w") as tar:
            for photo in photos:
                tar.add(photo, photo.name)
    shell = Shell(tmp_path, f"--url {server.grpc_address}")
    examples, loop, *_ray = blocks("bulk.md", "bash")
    lines = [line for line in examples.splitlines() if line]
    assert len(lines) == 4
    for line in lines:
        shell.line(line)
    assert (tmp_path / "photos.csv").read_text().count("\n") == 1 + len(photos)
    assert parquet.read_table(tmp_path / "train.parquet").num_rows == 2 * len(photos)
    found = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    assert {row["labels"][0] for row in found} >= {"espresso", "missile"}
    (tmp_path / "train.parquet").unlink()
    shell.line(loop)
    assert parquet.read_table(tmp_path / "train.parquet").num_rows == 2 * len(photos)
