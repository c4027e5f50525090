"""``onestream bulk`` before a pipeline that finds objects: what it writes in each format."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from bulk_fakes import Bulk, csv_rows, json_rows, labels, objects, photos

from onestream.cli.bulk import outputs
from onestream.client._transports.base import Tensors

FILES = {
    "000000000139.jpg": b"foo",
    "000000000285.jpg": b"empty",
    "000000000632.jpg": b"bad",
    "000000000724.jpg": b"o" * 100,
    "café.jpg": b"one, for\nyou",
}
COUNTS = [2, 0, None, 100, 3]
FIELDS = ("boxes", "scores", "class_ids", "labels", "image_size")


@pytest.fixture
def finder(bulk: Bulk) -> Bulk:
    bulk.transport.answer = objects
    return bulk


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return photos(tmp_path / "photos", FILES)


def written(bulk: Bulk, folder: Path, out: Path, *options: object) -> Path:
    result = bulk.run(folder, "--pipeline", "detect", "--to", out, *options)
    assert result.exit_code == 1, result.stderr
    assert "5 images, 1 failed" in result.stderr
    assert not out.with_name(out.name + ".journal").exists()
    return out


def test_json_lines_and_parquet_have_a_row_for_each_image(finder: Bulk, folder: Path, tmp_path: Path) -> None:
    rows = json_rows(written(finder, folder, tmp_path / "out.jsonl"))
    assert [row["path"] for row in rows] == [str(folder / name) for name in FILES]
    assert [len(row["boxes"]) if "boxes" in row else None for row in rows] == COUNTS
    assert [row.get("error") for row in rows] == [None, None, "corrupt", None, None]
    first = rows[0]
    assert np.array(first["boxes"], np.float32).tolist() == objects(b"foo")["boxes"][0].tolist()
    assert first["scores"] == [pytest.approx(0.9), pytest.approx(0.3)]
    assert (first["class_ids"], first["labels"], first["image_size"]) == ([1, 2], ["foo", "foo"], [48, 64])
    assert first["latency_ms"] >= 0
    nothing = rows[1]
    assert [nothing[name] for name in FIELDS] == [[], [], [], [], [48, 64]]

    table = parquet.read_table(written(finder, folder, tmp_path / "out.parquet"))
    assert table.num_rows == len(FILES)
    assert table.schema.field("boxes").type == pa.list_(pa.list_(pa.float64(), 4))
    for line, row in zip(rows, table.to_pylist(), strict=True):
        assert (row["path"], row["key"]) == (line["path"], None)
        assert (row["error"], row["reason"]) == (line.get("error"), line.get("reason"))
        assert [row[name] for name in FIELDS] == [line.get(name) for name in FIELDS]


def test_csv_has_a_row_for_each_object(finder: Bulk, folder: Path, tmp_path: Path) -> None:
    rows = json_rows(written(finder, folder, tmp_path / "out.jsonl"))
    cells = csv_rows(written(finder, folder, tmp_path / "out.csv"))
    assert ",".join(cells[0]) == (
        "path,key,label,class_id,score,x0,y0,x1,y1,image_height,image_width,latency_ms,error,reason"
    )
    for row in rows:
        here = [cell for cell in cells if cell["path"] == row["path"]]
        # An image without objects, and one that failed, have their row, too.
        assert len(here) == max(1, len(row.get("boxes", ())))
        assert {cell["error"] for cell in here} == {row.get("error", "")}
        found = [cell for cell in here if cell["label"]]
        assert [cell["label"] for cell in found] == row.get("labels", [])
        assert [int(cell["class_id"]) for cell in found] == row.get("class_ids", [])
        assert [float(cell["score"]) for cell in found] == row.get("scores", [])
        assert [[float(cell[side]) for side in ("x0", "y0", "x1", "y1")] for cell in found] == row.get("boxes", [])
        if "image_size" in row:
            assert {(cell["image_height"], cell["image_width"]) for cell in here} == {("48", "64")}


def test_coco_s_results(finder: Bulk, folder: Path, tmp_path: Path) -> None:
    rows = json_rows(written(finder, folder, tmp_path / "out.jsonl"))
    entries = json.loads(written(finder, folder, tmp_path / "out.json").read_text(encoding="utf-8"))
    ids = [139, 285, 632, 724, "café"]
    expected = [
        {"image_id": image_id, "category_id": class_id, "bbox": [x0, y0, x1 - x0, y1 - y0], "score": score}
        for image_id, row in zip(ids, rows, strict=True)
        for (x0, y0, x1, y1), class_id, score in zip(
            row.get("boxes", ()), row.get("class_ids", ()), row.get("scores", ()), strict=True
        )
    ]
    assert entries == expected
    assert len(entries) == 105
    assert [row["error"] for row in csv_rows(tmp_path / "out.json.errors.csv")] == ["corrupt"]


def test_coco_s_results_without_a_single_object(finder: Bulk, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = finder.run(photos(tmp_path / "p", {"1.jpg": b"-", "2.jpg": b"-"}), "--to", out)
    assert result.exit_code == 0
    assert json.loads(out.read_text()) == []


def test_equal_names_in_two_folders_have_two_ids(finder: Bulk, tmp_path: Path) -> None:
    first, second = (photos(tmp_path / name, {"7.jpg": b"o", "cat.jpg": b"o"}) for name in ("a", "b"))
    assert finder.run(first, second, "--to", tmp_path / "out.json").exit_code == 0
    ids = [entry["image_id"] for entry in json.loads((tmp_path / "out.json").read_text())]
    assert ids == [7, "cat", str(second / "7.jpg"), str(second / "cat.jpg")]


def test_an_image_of_a_shard_has_the_id_of_its_key(finder: Bulk, tmp_path: Path) -> None:
    photo = photos(tmp_path, {"000000000139.jpg": b"o"}) / "000000000139.jpg"
    with tarfile.open(tmp_path / "shard-7.tar", "w") as tar:
        tar.add(photo, "val/000000000139.jpg")
    assert finder.run(tmp_path / "shard-7.tar", "--to", tmp_path / "out.json").exit_code == 0
    (entry,) = json.loads((tmp_path / "out.json").read_text())
    assert entry["image_id"] == 139


def test_classes_are_no_coco_results_and_leave_nothing_behind(bulk: Bulk, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = bulk.run(folder, "--to", out)
    assert result.exit_code == 2
    assert "the pipeline answers classes: use .jsonl" in result.stderr
    assert list(tmp_path.glob("out.json*")) == []


def test_other_outputs_have_no_place_in_a_table(bulk: Bulk, folder: Path, tmp_path: Path) -> None:
    bulk.transport.answer = lambda _data: {"matte": np.zeros((1, 4, 4), np.uint8)}
    result = bulk.run(folder, "--pipeline", "matte", "--to", tmp_path / "out.csv")
    assert result.exit_code == 2
    assert "'matte' answers matte; bulk writes classes, objects, text, vectors and tensors" in result.stderr


def test_a_pipeline_that_became_another_kind_is_not_mixed_in(finder: Bulk, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"

    def changing(data: bytes) -> Tensors:
        return objects(data) if data == b"foo" else labels(data)

    finder.transport.answer = changing
    result = finder.run(folder, "--to", out, "--in-flight", 1)
    assert result.exit_code == 2
    assert "answers Classification, and did Detections before" in result.stderr
    assert out.with_name("out.csv.journal").exists()
    finder.transport.answer = objects
    assert finder.run(folder, "--to", out).exit_code == 1
    assert out.exists()


def test_parquet_is_written_in_groups(
    finder: Bulk, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "_ROW_GROUP_OF_LISTS", 2)
    file = parquet.ParquetFile(written(finder, folder, tmp_path / "out.parquet"))
    assert [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)] == [2, 2, 1]


def test_lines_on_the_terminal(finder: Bulk, tmp_path: Path) -> None:
    folder = photos(tmp_path, {"a.jpg": b"foo", "b.jpg": b"bad", "c.jpg": b"-"})
    result = finder.run(folder)
    assert result.exit_code == 1
    header, first, second, bad, nothing = result.stdout.splitlines()
    assert header.split() == ["score", "ms", "label", "box", "image"]
    assert first.split()[0] == "0.900"
    assert first.split()[2:] == ["foo", "0,", "0,", "10,", "20", f"{folder}/a.jpg"]
    assert second.split() == ["0.300", "foo", "1,", "0,", "11,", "20"]
    assert bad.split(maxsplit=3) == ["–", "–", "corrupt", f"{folder}/b.jpg: the file ends, early"]
    assert nothing.split()[2:] == ["no", "objects", f"{folder}/c.jpg"]
