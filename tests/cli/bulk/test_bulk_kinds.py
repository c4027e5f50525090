"""``onestream bulk`` before pipelines that answer objects, text, regions, vectors or tensors, in all formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from bulk_fakes import (
    Answer,
    Bulk,
    csv_rows,
    failing_after,
    json_rows,
    labels,
    objects,
    outputs,
    photos,
    shard,
    sorted_objects,
    text,
    vector,
)
from hypothesis import given
from hypothesis import strategies as st

from onestream.cli.bulk import outputs as outputs_module
from onestream.cli.bulk.rows import Row
from onestream.client import CannotConnect, Reading, Regions, Tensors
from onestream.client.kinds.regions import quads_of

FILES = {
    "000000000139.jpg": b"foo",
    "000000000285.jpg": b"empty",
    "000000000632.jpg": b"bad",
    "000000000724.jpg": b"o" * 100,
    "café.jpg": "größe, for\nyou".encode(),
}
NUMBERS, WHOLE, STRINGS = pa.list_(pa.float64()), pa.list_(pa.int64()), pa.list_(pa.string())
BOXES = pa.list_(pa.list_(pa.float64(), 4))
OF_EVERY_PICTURE = {"image_size": WHOLE, "left_out": pa.int64()}

TYPES: dict[str, tuple[Answer, dict[str, pa.DataType]]] = {
    "objects": (
        objects,
        {"boxes": BOXES, "scores": NUMBERS, "class_ids": WHOLE, "labels": STRINGS, "image_size": WHOLE},
    ),
    "text": (
        text,
        {
            "quads": pa.list_(pa.list_(pa.list_(pa.float64(), 2), 4)),
            "texts": STRINGS,
            "scores": NUMBERS,
            "turn_degrees": WHOLE,
            "find_scores": NUMBERS,
            **OF_EVERY_PICTURE,
        },
    ),
    "regions": (
        sorted_objects,
        {
            "boxes": BOXES,
            "labels": pa.list_(STRINGS),
            "scores": pa.list_(NUMBERS),
            "class_ids": pa.list_(WHOLE),
            "detect_labels": STRINGS,
            "detect_scores": NUMBERS,
            "detect_class_ids": WHOLE,
            "vectors": pa.list_(NUMBERS),
            **OF_EVERY_PICTURE,
        },
    ),
    "vectors": (vector, {"embedding": NUMBERS}),
}
"""What each kind answers, and the columns that it has in Parquet."""


@pytest.fixture
def finder(bulk: Bulk) -> Bulk:
    bulk.transport.answer = objects
    return bulk


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return photos(tmp_path / "photos", FILES)


def written(bulk: Bulk, folder: Path, out: Path) -> Path:
    result = bulk.run(folder, "--pipeline", "any", "--to", out)
    assert result.exit_code == 1, result.stderr
    assert "5 images, 1 failed" in result.stderr
    assert not out.with_name(out.name + ".journal").exists()
    return out


def plain(tensors: Tensors, name: str) -> Any:
    """What a row says of an output."""
    (found,) = tensors[name].tolist()

    def decoded(value: Any) -> Any:
        return [decoded(one) for one in value] if isinstance(value, list) else value.decode()

    found = decoded(found) if tensors[name].dtype == object else found
    return found[0] if name == "left_out" else found


# ---- rows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TYPES)
def test_json_lines_and_parquet_have_a_row_for_each_image(bulk: Bulk, folder: Path, tmp_path: Path, kind: str) -> None:
    bulk.transport.answer, types = TYPES[kind]
    rows = json_rows(written(bulk, folder, tmp_path / "out.jsonl"))
    assert [row["path"] for row in rows] == [str(folder / name) for name in FILES]
    for row, data in zip(rows, FILES.values(), strict=True):
        if data == b"bad":
            assert row == {"path": row["path"], "error": "corrupt", "reason": "the file ends, early"}
            continue
        assert set(row) == {"path", "latency_ms", *types}
        assert row["latency_ms"] >= 0
        tensors = bulk.transport.answer(data)
        assert {name: row[name] for name in types} == {name: plain(tensors, name) for name in types}

    table = parquet.read_table(written(bulk, folder, tmp_path / "out.parquet"))
    assert {name: table.schema.field(name).type for name in types} == types
    for line, row in zip(rows, table.to_pylist(), strict=True):
        assert (row["path"], row["key"]) == (line["path"], None)
        assert (row["error"], row["reason"]) == (line.get("error"), line.get("reason"))
        assert [row[name] for name in types] == [line.get(name) for name in types]


OF_BOTH = "image_height,image_width"
AT_THE_END = "latency_ms,error,reason"


@pytest.mark.parametrize(
    ("answer", "columns", "corners", "header"),
    [
        (
            objects,
            {"label": "labels", "class_id": "class_ids", "score": "scores"},
            ("boxes", "x0,y0,x1,y1"),
            f"path,key,label,class_id,score,x0,y0,x1,y1,{OF_BOTH},{AT_THE_END}",
        ),
        (
            text,
            {"text": "texts", "score": "scores", "turn_degrees": "turn_degrees", "find_score": "find_scores"},
            ("quads", "x0,y0,x1,y1,x2,y2,x3,y3"),
            f"path,key,text,score,find_score,turn_degrees,x0,y0,x1,y1,x2,y2,x3,y3,{OF_BOTH},left_out,{AT_THE_END}",
        ),
    ],
)
def test_csv_has_a_row_for_each_object_or_line(
    bulk: Bulk,
    folder: Path,
    tmp_path: Path,
    answer: Answer,
    columns: dict[str, str],
    corners: tuple[str, str],
    header: str,
) -> None:
    bulk.transport.answer = answer
    rows = json_rows(written(bulk, folder, tmp_path / "out.jsonl"))
    cells = csv_rows(written(bulk, folder, tmp_path / "out.csv"))
    assert sorted(cells[0]) == sorted(header.split(","))
    for row in rows:
        here = [cell for cell in cells if cell["path"] == row["path"]]
        count = len(row.get("scores", ()))
        # A picture without any, and one that failed, have their row, too.
        assert len(here) == max(1, count)
        assert {cell["error"] for cell in here} == {row.get("error", "")}
        for column, field in columns.items():
            assert [cell[column] for cell in here] == list(map(str, row.get(field, ()))) or [""]
        field, sides = corners
        assert [[float(cell[side]) for side in sides.split(",")] for cell in here[:count]] == [
            np.ravel(quad).tolist() for quad in row.get(field, ())
        ]
        if "error" not in row:
            assert {(cell["image_height"], cell["image_width"]) for cell in here} == {("48", "64")}
            assert {cell.get("left_out") for cell in here} == {str(row["left_out"]) if "left_out" in row else None}


def test_csv_of_regions_has_what_each_stage_said(bulk: Bulk, folder: Path, tmp_path: Path) -> None:
    bulk.transport.answer = sorted_objects
    cup, *_ = csv_rows(written(bulk, folder, tmp_path / "out.csv"))
    assert [cup[name] for name in ("label", "class_id", "score")] == ["espresso", "5", "0.625"]
    assert [cup[name] for name in ("detect_label", "detect_class_id", "vectors")] == ["foo", "1", "[1.0, 1.0, 1.0]"]
    box = objects(b"foo")["boxes"][0, 0].tolist()
    assert [float(cup[name]) for name in ("x0", "y0", "x1", "y1")] == box
    assert "x2" not in cup


def test_csv_of_vectors_has_them_as_json(bulk: Bulk, folder: Path, tmp_path: Path) -> None:
    bulk.transport.answer = vector
    first, _, failed, *_ = csv_rows(written(bulk, folder, tmp_path / "out.csv"))
    assert json.loads(first["embedding"]) == plain(vector(b"foo"), "embedding")
    assert (failed["embedding"], failed["error"]) == ("", "corrupt")


def test_outputs_are_columns_by_their_names(bulk: Bulk, folder: Path, tmp_path: Path) -> None:
    """One that is called as a column of every table gets another name; what is no finite number is nothing."""
    bulk.transport.answer = outputs
    tenth = float(np.float32(0.1))
    first, _, bad, *_ = parquet.read_table(written(bulk, folder, tmp_path / "out.parquet")).to_pylist()
    assert first["path"] == str(folder / "000000000139.jpg")
    assert (first["heat"], first["tensor_path"], first["seen"]) == ([[3, None], [tenth, 2]], 3, [1, 0])
    assert (bad["heat"], bad["error"]) == (None, "corrupt")
    (row, *_) = json_rows(written(bulk, folder, tmp_path / "out.jsonl"))
    assert row["tensors"]["heat"] == [[[3, None], [tenth, 2]]]
    (cells, *_) = csv_rows(written(bulk, folder, tmp_path / "out.csv"))
    assert (json.loads(cells["heat"]), cells["tensor_path"]) == ([[3, None], [tenth, 2]], "3")


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "json"])
def test_pictures_in_which_nothing_is_found(bulk: Bulk, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"out.{suffix}"
    bulk.transport.answer = objects if suffix == "json" else text
    assert bulk.run(photos(tmp_path / "p", {"1.jpg": b"-", "2.jpg": b"-"}), "--to", out).exit_code == 0
    if suffix == "json":
        assert json.loads(out.read_text()) == []
    elif suffix == "csv":
        assert [cell["text"] for cell in csv_rows(out)] == ["", ""]
    else:
        rows = json_rows(out) if suffix == "jsonl" else parquet.read_table(out).to_pylist()
        assert [row["texts"] for row in rows] == [[], []]


def test_parquet_is_written_in_groups(
    finder: Bulk, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs_module, "_ROW_GROUP_OF_LISTS", 2)
    file = parquet.ParquetFile(written(finder, folder, tmp_path / "out.parquet"))
    assert [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)] == [2, 2, 1]


@pytest.mark.parametrize(
    ("answer", "titles", "places", "nothing"),
    [
        (objects, "label box", ("0, 0, 10, 20", "1, 0, 11, 20"), "no objects"),
        (text, "text quad", ("0,0 10,1 10,20 0,20", "1,0 11,1 11,20 1,20"), "no text"),
    ],
)
def test_lines_on_the_terminal(
    bulk: Bulk, tmp_path: Path, answer: Answer, titles: str, places: tuple[str, str], nothing: str
) -> None:
    bulk.transport.answer = answer
    folder = photos(tmp_path, {"a.jpg": b"foo", "b.jpg": b"bad", "c.jpg": b"-"})
    result = bulk.run(folder)
    assert result.exit_code == 1
    header, first, second, bad, last = (line.split() for line in result.stdout.splitlines())
    assert header == ["score", "ms", *titles.split(), "image"]
    assert [first[0], *first[2:]] == ["0.900", "foo", *places[0].split(), f"{folder}/a.jpg"]
    assert second == ["0.300", "foo", *places[1].split()]
    assert bad == ["–", "–", "corrupt", f"{folder}/b.jpg:", "the", "file", "ends,", "early"]
    assert last[2:] == [*nothing.split(), f"{folder}/c.jpg"]


def test_other_outputs_have_no_place_in_a_table(bulk: Bulk, folder: Path, tmp_path: Path) -> None:
    bulk.transport.answer = lambda _data: {"matte": np.zeros((1, 4, 4), np.uint8)}
    bulk.transport.kind = "matte"
    result = bulk.run(folder, "--pipeline", "matte", "--to", tmp_path / "out.csv")
    assert result.exit_code == 2
    assert "'matte' answers mattes; bulk writes classes, objects, masks, text, vectors and tensors" in result.stderr


def test_a_pipeline_that_became_another_kind_is_not_mixed_in(finder: Bulk, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    finder.transport.answer = failing_after(1, CannotConnect("gone"), objects)
    finder.transport.kind = "detection"
    assert "stopped after 1 image" in finder.run(folder, "--to", out, "--in-flight", 1).stderr
    finder.transport.answer, finder.transport.kind = labels, None
    result = finder.run(folder, "--to", out)
    assert result.exit_code == 2
    assert "answers Classification, and did Detections before" in result.stderr
    assert out.with_name("out.csv.journal").exists()
    finder.transport.answer = objects
    assert finder.run(folder, "--to", out).exit_code == 1
    assert out.exists()


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
    again = Row.from_journal(row.to_journal())
    assert type(again.result) is type(result)
    assert again.to_json() == row.to_json()
    json.loads(row.to_json(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


# ---- COCO's results -------------------------------------------------------------------------------------------------


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
    assert len(entries) == 104
    assert [row["error"] for row in csv_rows(tmp_path / "out.json.errors.csv")] == ["corrupt"]


def test_equal_names_in_two_folders_have_two_ids(finder: Bulk, tmp_path: Path) -> None:
    first, second = (photos(tmp_path / name, {"7.jpg": b"o", "cat.jpg": b"o"}) for name in ("a", "b"))
    assert finder.run(first, second, "--to", tmp_path / "out.json").exit_code == 0
    ids = [entry["image_id"] for entry in json.loads((tmp_path / "out.json").read_text())]
    assert ids == [7, "cat", str(second / "7.jpg"), str(second / "cat.jpg")]


def test_an_image_of_a_shard_has_the_id_of_its_key(finder: Bulk, tmp_path: Path) -> None:
    many = "9" * 5000
    names = ["000000000139", f"{2**63 - 1}", f"{2**63}", many]
    shard_file = tmp_path / "shard-7.tar"
    shard_file.write_bytes(shard({f"val/{name}.jpg": b"o" for name in names}))
    assert finder.run(shard_file, "--to", tmp_path / "out.json").exit_code == 0
    ids = [entry["image_id"] for entry in json.loads((tmp_path / "out.json").read_text())]
    assert ids == [139, 2**63 - 1, f"{2**63}", many]


@pytest.mark.parametrize(("answer", "kind"), [(labels, "classes"), (text, "text"), (sorted_objects, "regions")])
def test_other_kinds_are_no_coco_results_and_leave_nothing_behind(
    bulk: Bulk, folder: Path, tmp_path: Path, answer: Answer, kind: str
) -> None:
    bulk.transport.answer = answer
    result = bulk.run(folder, "--to", tmp_path / "out.json")
    assert result.exit_code == 2
    assert f"the pipeline answers {kind}: use .jsonl" in result.stderr
    assert list(tmp_path.glob("out.json*")) == []
