"""``onestream bulk`` before cascades: the text of pictures, and regions that were looked at, in each format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from bulk_fakes import Bulk, csv_rows, json_rows, objects, photos, sorted_objects, text
from hypothesis import given
from hypothesis import strategies as st

from onestream.cli.bulk.rows import Row
from onestream.client import Reading, Regions
from onestream.client.regions import quads_of

FILES = {"a.jpg": b"empty", "b.jpg": b"foo", "c.jpg": b"bad", "d.jpg": b"o" * 30, "e.jpg": "größe, o\n".encode()}
COUNTS = [0, 2, None, 30, 1]
FIELDS = ("quads", "texts", "scores", "turn_degrees", "find_scores", "image_size", "left_out")
CORNERS = ("x0", "y0", "x1", "y1", "x2", "y2", "x3", "y3")


@pytest.fixture
def reader(bulk: Bulk) -> Bulk:
    bulk.transport.answer = text
    return bulk


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return photos(tmp_path / "photos", FILES)


def written(bulk: Bulk, folder: Path, out: Path) -> Path:
    result = bulk.run(folder, "--pipeline", "read", "--to", out)
    assert result.exit_code == 1, result.stderr
    assert "5 images, 1 failed" in result.stderr
    return out


def test_json_lines_and_parquet_have_a_row_for_each_image(reader: Bulk, folder: Path, tmp_path: Path) -> None:
    rows = json_rows(written(reader, folder, tmp_path / "out.jsonl"))
    assert [row["path"] for row in rows] == [str(folder / name) for name in FILES]
    assert [len(row["texts"]) if "texts" in row else None for row in rows] == COUNTS
    assert [row.get("error") for row in rows] == [None, None, "corrupt", None, None]
    foo = rows[1]
    assert np.array(foo["quads"], np.float32).tolist() == text(b"foo")["quads"][0].tolist()
    assert foo["scores"] == [pytest.approx(0.9), pytest.approx(0.3)]
    assert (foo["texts"], foo["turn_degrees"], foo["image_size"]) == (["foo", "foo"], [180, 180], [48, 64])
    assert [row["left_out"] for row in rows if "texts" in row] == [0, 0, 10, 0]
    assert rows[4]["texts"] == ["größe, o\n"]
    assert set(foo) == {"path", "latency_ms", *FIELDS}

    table = parquet.read_table(written(reader, folder, tmp_path / "out.parquet"))
    assert table.num_rows == len(FILES)
    types = {name: table.schema.field(name).type for name in FIELDS}
    assert types == {
        "quads": pa.list_(pa.list_(pa.list_(pa.float64(), 2), 4)),
        "texts": pa.list_(pa.string()),
        "scores": pa.list_(pa.float64()),
        "turn_degrees": pa.list_(pa.int64()),
        "find_scores": pa.list_(pa.float64()),
        "image_size": pa.list_(pa.int64()),
        "left_out": pa.int64(),
    }
    for line, row in zip(rows, table.to_pylist(), strict=True):
        assert (row["error"], row["reason"]) == (line.get("error"), line.get("reason"))
        assert [row[name] for name in FIELDS] == [line.get(name) for name in FIELDS]


def test_csv_has_a_row_for_each_line_of_text(reader: Bulk, folder: Path, tmp_path: Path) -> None:
    rows = json_rows(written(reader, folder, tmp_path / "out.jsonl"))
    found = csv_rows(written(reader, folder, tmp_path / "out.csv"))
    assert set(found[0]) == {
        *("path", "key", "text", "score", "turn_degrees", "find_score", *CORNERS),
        *("image_height", "image_width", "left_out", "latency_ms", "error", "reason"),
    }
    for row in rows:
        here = [cell for cell in found if cell["path"] == row["path"]]
        # A picture without text, and one that failed, have their row, too.
        assert len(here) == max(1, len(row.get("texts", ())))
        assert {cell["error"] for cell in here} == {row.get("error", "")}
        read = [cell for cell in here if cell["text"]]
        assert [cell["text"] for cell in read] == row.get("texts", [])
        assert [float(cell["score"]) for cell in read] == row.get("scores", [])
        assert [float(cell["find_score"]) for cell in read] == row.get("find_scores", [])
        quads = [[[float(cell[f"{axis}{n}"]) for axis in "xy"] for n in range(4)] for cell in read]
        assert quads == row.get("quads", [])
        if "texts" in row:
            assert {(cell["image_height"], cell["image_width"]) for cell in here} == {("48", "64")}
            assert {cell["left_out"] for cell in here} == {str(row["left_out"])}


def test_regions_have_what_each_stage_said(bulk: Bulk, folder: Path, tmp_path: Path) -> None:
    bulk.transport.answer = sorted_objects
    rows = json_rows(written(bulk, folder, tmp_path / "out.jsonl"))
    assert rows[1]["labels"] == [["espresso", "other"]] * 2
    assert rows[1]["vectors"] == [[1, 1, 1]] * 2
    assert rows[1]["boxes"] == objects(b"foo")["boxes"][0].tolist()
    assert "quads" not in rows[1]

    table = parquet.read_table(written(bulk, folder, tmp_path / "out.parquet"))
    assert table.schema.field("boxes").type == pa.list_(pa.list_(pa.float64(), 4))
    assert table.schema.field("labels").type == pa.list_(pa.list_(pa.string()))
    names = [name for name in rows[1] if name not in ("path", "latency_ms")]
    for line, row in zip(rows, table.to_pylist(), strict=True):
        assert [row[name] for name in names] == [line.get(name) for name in names]

    cup = next(
        cell for cell in csv_rows(written(bulk, folder, tmp_path / "out.csv")) if cell["path"] == rows[1]["path"]
    )
    assert [cup[name] for name in ("label", "class_id", "score")] == ["espresso", "5", "0.625"]
    assert [cup[name] for name in ("detect_label", "detect_class_id", "vectors")] == ["foo", "1", "[1.0, 1.0, 1.0]"]
    assert [float(cup[name]) for name in CORNERS[:4]] == rows[1]["boxes"][0]
    assert "x2" not in cup


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_pictures_without_a_single_line_of_text(reader: Bulk, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"out.{suffix}"
    assert reader.run(photos(tmp_path / "p", {"1.jpg": b"-", "2.jpg": b"-"}), "--to", out).exit_code == 0
    if suffix == "csv":
        assert [cell["text"] for cell in csv_rows(out)] == ["", ""]
    else:
        rows = json_rows(out) if suffix == "jsonl" else parquet.read_table(out).to_pylist()
        assert [row["texts"] for row in rows] == [[], []]


@pytest.mark.parametrize(("answer", "kind"), [(text, "text"), (sorted_objects, "regions")])
def test_regions_are_no_coco_results(bulk: Bulk, folder: Path, tmp_path: Path, answer: Any, kind: str) -> None:
    bulk.transport.answer = answer
    result = bulk.run(folder, "--to", tmp_path / "out.json")
    assert result.exit_code == 2
    assert f"the pipeline answers {kind}: use .jsonl" in result.stderr
    assert list(tmp_path.glob("out.json*")) == []


def test_lines_on_the_terminal(reader: Bulk, tmp_path: Path) -> None:
    folder = photos(tmp_path, {"a.jpg": b"foo", "b.jpg": b"-"})
    header, first, second, nothing = reader.run(folder).stdout.splitlines()
    assert header.split() == ["score", "ms", "text", "quad", "image"]
    assert [first.split()[0], *first.split()[2:]] == ["0.900", "foo", "0,0", "10,1", "10,20", "0,20", f"{folder}/a.jpg"]
    assert second.split() == ["0.300", "foo", "1,0", "11,1", "11,20", "1,20"]
    assert nothing.split()[2:] == ["no", "text", f"{folder}/b.jpg"]


NAMES = st.sampled_from(["find_scores", "heat", "turn_degrees", "labels", "note"])


@given(st.data(), st.integers(0, 3), st.booleans(), st.booleans())
def test_a_row_in_the_journal_is_the_row_that_was_written(
    data: st.DataObject, count: int, are_boxes: bool, is_text: bool
) -> None:
    def array(values: st.SearchStrategy[Any], dtype: Any) -> np.ndarray:
        shape = (count, *data.draw(st.sampled_from([(), (1,), (2,), (2, 3)])))
        flat = np.empty(int(np.prod(shape)), dtype)
        flat[:] = [data.draw(values) for _ in flat]
        return flat.reshape(shape)

    kinds = [(st.floats(width=32), np.float32), (st.integers(-(2**31), 2**31 - 1), np.int32), (st.text(), object)]
    tensors = {name: array(*data.draw(st.sampled_from(kinds))) for name in data.draw(st.lists(NAMES, unique=True))}
    if is_text:
        tensors["texts"], tensors["scores"] = np.array([*"a\0é"[:count]], object), np.ones(count, np.float32)
    boxes = np.arange(count * 4, dtype=np.float32).reshape(-1, 4) / 3
    result = (Reading if is_text else Regions)(
        quads=quads_of(boxes),
        boxes=boxes if are_boxes else None,
        tensors=tensors,
        left_out=2,
        image_size=(48, 64),
        model="m",
        request_id="r",
        latency_ms=1.5,
    )
    row = Row.of_result("a.jpg", "", result, top=1)
    again = Row.from_json(row.to_json())
    assert type(again.result) is type(result)
    assert again.to_json() == row.to_json()
    json.loads(row.to_json(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
