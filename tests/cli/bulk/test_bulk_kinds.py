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

from onestream.cli.bulk import outputs as outputs_module
from onestream.client import CannotConnect, Tensors

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


CSV: dict[str, tuple[dict[str, str], str, int, set[str]]] = {
    "objects": ({"label": "labels", "class_id": "class_ids", "score": "scores"}, "boxes", 4, set()),
    "text": (
        {"text": "texts", "score": "scores", "turn_degrees": "turn_degrees", "find_score": "find_scores"},
        "quads",
        8,
        {"left_out"},
    ),
}
"""Of a kind the columns and the fields that JSON has for them, the field of its places and their sides, and others."""


@pytest.mark.parametrize("kind", CSV)
def test_csv_has_a_row_for_each_object_or_line(bulk: Bulk, folder: Path, tmp_path: Path, kind: str) -> None:
    bulk.transport.answer, _ = TYPES[kind]
    columns, corners, sides, others = CSV[kind]
    rows = json_rows(written(bulk, folder, tmp_path / "out.jsonl"))
    cells = csv_rows(written(bulk, folder, tmp_path / "out.csv"))
    places = ["x0", "y0", "x1", "y1", "x2", "y2", "x3", "y3"][:sides]
    of_all = {"path", "key", "image_height", "image_width", "latency_ms", "error", "reason"}
    assert set(cells[0]) == of_all | others | set(places) | set(columns)
    for row in rows:
        here = [cell for cell in cells if cell["path"] == row["path"]]
        count = len(row.get("scores", ()))
        # A picture without any, and one that failed, have their row, too.
        assert len(here) == max(1, count)
        assert {cell["error"] for cell in here} == {row.get("error", "")}
        for column, field in columns.items():
            assert [cell[column] for cell in here] == list(map(str, row.get(field, ()))) or [""]
        assert [[float(cell[side]) for side in places] for cell in here[:count]] == [
            np.ravel(quad).tolist() for quad in row.get(corners, ())
        ]
        if "error" not in row:
            assert {(cell["image_height"], cell["image_width"]) for cell in here} == {("48", "64")}
            assert {cell.get("left_out") for cell in here} == {str(row["left_out"]) if others else None}


def test_csv_of_regions_has_what_each_stage_said(bulk: Bulk, folder: Path, tmp_path: Path) -> None:
    bulk.transport.answer = sorted_objects
    cup, *_ = csv_rows(written(bulk, folder, tmp_path / "out.csv"))
    said = {"label": "espresso", "class_id": "5", "score": "0.625", "detect_label": "foo", "detect_class_id": "1"}
    assert said.items() <= cup.items()
    assert cup["vectors"] == "[1.0, 1.0, 1.0]"
    assert [float(cup[name]) for name in ("x0", "y0", "x1", "y1")] == objects(b"foo")["boxes"][0, 0].tolist()
    assert "x2" not in cup


def test_outputs_are_columns_by_their_names(bulk: Bulk, folder: Path, tmp_path: Path) -> None:
    """One that is called as a column of every table gets another name; what is no finite number is nothing."""
    bulk.transport.answer = outputs
    heat = [[3, None], [float(np.float32(0.1)), 2]]
    first, _, bad, *_ = parquet.read_table(written(bulk, folder, tmp_path / "out.parquet")).to_pylist()
    assert first["path"] == str(folder / "000000000139.jpg")
    assert (first["heat"], first["tensor_path"], first["seen"]) == (heat, 3, [1, 0])
    assert (bad["heat"], bad["error"]) == (None, "corrupt")
    (row, *_) = json_rows(written(bulk, folder, tmp_path / "out.jsonl"))
    assert row["tensors"]["heat"] == [heat]
    cells, _, bad_cells, *_ = csv_rows(written(bulk, folder, tmp_path / "out.csv"))
    assert (json.loads(cells["heat"]), cells["tensor_path"]) == (heat, "3")
    assert (bad_cells["heat"], bad_cells["error"]) == ("", "corrupt")


def test_pictures_in_which_nothing_is_found(bulk: Bulk, tmp_path: Path) -> None:
    folder = photos(tmp_path / "p", {"1.jpg": b"-", "2.jpg": b"-"})
    for answer, name in ((text, "out.parquet"), (objects, "out.json")):
        bulk.transport.answer = answer
        assert bulk.run(folder, "--to", tmp_path / name).exit_code == 0
    assert parquet.read_table(tmp_path / "out.parquet")["texts"].to_pylist() == [[], []]
    assert json.loads((tmp_path / "out.json").read_text()) == []


def test_parquet_has_groups_of_rows(
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
    told = bulk.refused(folder, "--pipeline", "matte", "--to", tmp_path / "out.csv")
    assert "'matte' answers mattes; bulk writes classes, objects, masks, text, vectors and tensors" in told


def test_a_pipeline_that_became_another_kind_is_not_mixed_in(finder: Bulk, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    finder.transport.answer = failing_after(1, CannotConnect("gone"), objects)
    finder.transport.kind = "detection"
    assert "stopped after 1 image" in finder.run(folder, "--to", out, "--in-flight", 1).stderr
    finder.transport.answer, finder.transport.kind = labels, None
    assert "answers Classification, and did Detections before" in finder.refused(folder, "--to", out)
    assert out.with_name("out.csv.journal").exists()
    finder.transport.answer = objects
    assert finder.run(folder, "--to", out).exit_code == 1
    assert out.exists()


def test_coco_s_results(finder: Bulk, folder: Path, tmp_path: Path) -> None:
    rows = json_rows(written(finder, folder, tmp_path / "out.jsonl"))
    entries = json.loads(written(finder, folder, tmp_path / "out.json").read_text(encoding="utf-8"))
    assert entries == [
        {"image_id": image_id, "category_id": class_id, "bbox": [x0, y0, x1 - x0, y1 - y0], "score": score}
        for image_id, row in zip((139, 285, 632, 724, "café"), rows, strict=True)
        if "error" not in row
        for (x0, y0, x1, y1), class_id, score in zip(row["boxes"], row["class_ids"], row["scores"], strict=True)
    ]
    assert len(entries) == 104
    assert [row["error"] for row in csv_rows(tmp_path / "out.json.errors.csv")] == ["corrupt"]


def test_ids_of_coco_are_numbers_where_they_can_be_and_never_equal(finder: Bulk, tmp_path: Path) -> None:
    """Equal names in two folders, and those that 64 bits do not hold, are no numbers; in a shard it is the key's."""
    first, second = (photos(tmp_path / name, {"7.jpg": b"o", "cat.jpg": b"o"}) for name in ("a", "b"))
    names = ["000000000139", f"{2**63 - 1}", f"{2**63}", "9" * 5000]
    shard_file = tmp_path / "shard-7.tar"
    shard_file.write_bytes(shard({f"val/{name}.jpg": b"o" for name in names}))
    assert finder.run(first, second, shard_file, "--to", tmp_path / "out.json").exit_code == 0
    ids = [entry["image_id"] for entry in json.loads((tmp_path / "out.json").read_text())]
    assert ids == [7, "cat", str(second / "7.jpg"), str(second / "cat.jpg"), 139, 2**63 - 1, *names[2:]]


@pytest.mark.parametrize(("answer", "kind"), [(labels, "classes"), (text, "text"), (sorted_objects, "regions")])
def test_other_kinds_are_no_coco_results_and_leave_nothing_behind(
    bulk: Bulk, folder: Path, tmp_path: Path, answer: Answer, kind: str
) -> None:
    bulk.transport.answer = answer
    assert f"the pipeline answers {kind}: use .jsonl" in bulk.refused(folder, "--to", tmp_path / "out.json")
    assert list(tmp_path.glob("out.json*")) == []
