"""The commands of docs/bulk.md run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
from shared_server import SharedServer

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "bulk.md").read_text(encoding="utf-8")


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
    command = tmp_path / "bin" / "onestream"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m onestream "$@" --url {server.grpc_address}\n')
    command.chmod(0o755)
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    examples, loop = re.findall(r"^```bash\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in examples.splitlines() if line]
    assert len(lines) == 4
    for line in lines:
        done = subprocess.run(
            ["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "photos.csv").read_text().count("\n") == 1 + len(photos)
    assert parquet.read_table(tmp_path / "train.parquet").num_rows == 2 * len(photos)
    found = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    assert {row["labels"][0]["label"] for row in found} >= {"espresso", "missile"}
    (tmp_path / "train.parquet").unlink()
    subprocess.run(["bash", "-c", loop], cwd=tmp_path, env=environment, capture_output=True, timeout=60, check=True)
    assert parquet.read_table(tmp_path / "train.parquet").num_rows == 2 * len(photos)
