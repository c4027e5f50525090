"""``onestream bulk`` before pipelines that answer vectors, or their network's outputs as they are."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from bulk_fakes import Bulk, outputs, photos, vector

FILES = {"a.jpg": b"one", "b.jpg": b"bad", "c.jpg": b"three"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return photos(tmp_path / "photos", FILES)


def test_vectors_are_lists(bulk: Bulk, folder: Path, tmp_path: Path) -> None:
    bulk.transport.answer = vector
    for suffix in ("jsonl", "parquet", "csv"):
        assert bulk.run(folder, "--to", tmp_path / f"out.{suffix}").exit_code == 1
    tenth = float(np.float32(0.1))
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table.schema.field("embedding").type == pa.list_(pa.float64())
    assert table.column("embedding").to_pylist() == [[3, tenth, -1], None, [5, tenth, -1]]
    assert table.column("error").to_pylist() == [None, "corrupt", None]
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row.get("embedding") for row in rows] == [[3, tenth, -1], None, [5, tenth, -1]]
    with (tmp_path / "out.csv").open(newline="") as file:
        cells = [row["embedding"] for row in csv.DictReader(file)]
    assert [json.loads(cell) if cell else None for cell in cells] == [[3, tenth, -1], None, [5, tenth, -1]]


def test_outputs_are_columns_by_their_names(bulk: Bulk, folder: Path, tmp_path: Path) -> None:
    """One that is called as a column of every table gets another name; what is no finite number is nothing."""
    bulk.transport.answer = outputs
    for suffix in ("jsonl", "parquet", "csv"):
        assert bulk.run(folder, "--to", tmp_path / f"out.{suffix}").exit_code == 1
    tenth = float(np.float32(0.1))
    first, bad, _ = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert first["path"] == str(folder / "a.jpg")
    assert (first["heat"], first["tensor_path"], first["seen"]) == ([[3, None], [tenth, 2]], 3, [1, 0])
    assert (bad["heat"], bad["error"]) == (None, "corrupt")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert rows[0]["tensors"]["heat"] == [[[3, None], [tenth, 2]]]
    with (tmp_path / "out.csv").open(newline="") as file:
        (cells, *_) = csv.DictReader(file)
    assert (json.loads(cells["heat"]), cells["tensor_path"]) == ([[3, None], [tenth, 2]], "3")
