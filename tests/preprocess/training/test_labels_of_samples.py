"""Labels of every kind: what a batch holds, and that a label is refused, by file and line, rather than changed."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from image_sets import DEFINITION, MIXED_CLASSES, only_batch
from stored_sets import Listed

from onestream import Dataset
from onestream.preprocess import BadDataset
from onestream.preprocess.training import Files, ImageLoader, InMemory, Labels, read_labels, with_labels

CLASSES = ("cat", "dog", "fox")
IMAGE = b"encoded"


def of(kind: Any, *labels: Any, classes: Any = None) -> Any:
    """The samples of labels in memory."""
    return with_labels([(IMAGE, label) for label in labels], kind, classes=classes)


@pytest.mark.parametrize(
    ("kind", "labels", "classes", "expected"),
    [
        ("class", ["fox", "cat", 1, "2"], CLASSES, [2, 0, 1, 2]),
        ("class", [3, "4", np.int64(5), torch.tensor(6)], None, [3, 4, 5, 6]),
        ("class", ["10", "2"], ("10", "2"), [0, 1]),
        ("multi_label", [["cat", "fox"], [], "dog", [1, 0]], CLASSES, [[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 0]]),
        ("multi_label", [torch.tensor([1, 0, 1]), np.array([False, True, True])], CLASSES, [[1, 0, 1], [0, 1, 1]]),
        ("multi_label", [{"cat": 1, "dog": 0}, {"dog": 1, "cat": 0}], None, [[1, 0], [0, 1]]),
        ("soft", [[0.25, 0.75], (1, 0)], None, [[0.25, 0.75], [1, 0]]),
        ("soft", [{"dog": 0.5, "cat": 0.25, "fox": 0.25}], CLASSES, [[0.25, 0.5, 0.25]]),
        ("number", [0.75, "1e3", -2, np.float64(0.5)], None, [0.75, 1000, -2, 0.5]),
        ("vector", [[1, 2.5], np.array([0.5, -1])], None, [[1, 2.5], [0.5, -1]]),
        ("vector", [{"x": 1, "y": 2}, {"y": 3, "x": 4}], None, [[1, 2], [4, 3]]),
    ],
)
def test_labels_of_each_kind(kind: Any, labels: list[Any], classes: Any, expected: list[Any], photos: Path) -> None:
    paths = Files.from_folder(photos).paths
    pairs = list(zip(paths, labels, strict=False))
    in_memory = [(path.read_bytes(), label) for path, label in pairs]
    dtype = torch.int64 if kind == "class" else torch.float32
    for source in (in_memory, Listed(list(pairs))):
        samples = with_labels(source, kind, classes=classes)
        batch = only_batch(ImageLoader(DEFINITION, samples, batch_size=len(pairs), threads=1))
        assert torch.equal(batch.labels, torch.tensor(expected, dtype=dtype))
        items = torch.stack([label for _, label in Dataset(DEFINITION, samples)])
        assert torch.equal(items, batch.labels)
        assert items.dtype == dtype


@pytest.mark.parametrize(
    ("kind", "labels", "classes", "message"),
    [
        ("class", [1, 0.75], None, r"item 1 has the label 0\.75; expected a class, .*with_labels"),
        ("class", ["cow"], CLASSES, r"item 0 has the label 'cow'; expected a number of 0 to 2 or one of cat, dog, fox"),
        ("class", [3], CLASSES, "item 0 has the label '3'; expected a number of 0 to 2"),
        ("class", ["1"], ("10", "20"), "item 0 has the label '1'; expected a number of 0 to 1"),
        ("multi_label", [["cat"], ["cow"]], CLASSES, "item 1 has the label 'cow'"),
        ("multi_label", [[2, 2, 0], [0, 1, 0]], CLASSES, r"item 1 has the label \[0, 1, 0\]; expected numbers or nam"),
        ("multi_label", [[True, False]], CLASSES, r"expected numbers or names of classes: give 0 and 1 of each"),
        ("multi_label", [["cat"]], None, "several classes for each sample need classes="),
        ("multi_label", [np.array([0, 0.5, 1])], CLASSES, "item 0 has the label .*; expected 0 or 1 of each class"),
        ("soft", [[0.5, 0.5], [0.5, 0.4]], None, r"item 1 .* expected shares of 0 or more whose sum is 1"),
        ("soft", [[1.5, -0.5]], None, "expected shares of 0 or more"),
        ("soft", [{"cat": 1}], CLASSES, "item 0 has labels of cat; expected cat, dog, fox"),
        ("number", [1, "many"], None, "item 1 has the label 'many'; expected a number that float32 can hold"),
        ("number", [1e39], None, "expected a number that float32 can hold"),
        ("number", [1e-60], None, "expected a number that float32 can hold"),
        ("number", [float("nan")], None, "expected a number that float32 can hold"),
        ("vector", [[1, 2], [1]], None, "item 1 has 1 numbers as its label; expected 2"),
        ("vector", ["1 2"], None, "item 0 has the label '1 2'; expected a list"),
        ("vector", [{"x": 1}, {"y": 1}], None, "item 1 has labels of y; expected x"),
        ("soft", [[1.0]], ("cat", "cat"), "a class is listed twice"),
    ],
)
def test_a_label_that_would_be_changed_is_refused(kind: Any, labels: Any, classes: Any, message: str) -> None:
    with pytest.raises(BadDataset, match=message):
        of(kind, *labels, classes=classes)


def test_what_holds_no_labels_is_refused() -> None:
    with pytest.raises(ValueError, match=r"labels must be 'class', .*got 'boxes'"):
        of("boxes", 1)
    with pytest.raises(BadDataset, match="got no image"):
        of("number")
    with pytest.raises(BadDataset, match="item 0 is bytes; expected"):
        with_labels([IMAGE], "number")  # type: ignore[list-item]


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=4))
def test_numbers_of_float32_are_kept(numbers: list[float]) -> None:
    """Also as text, of which a CSV file consists."""
    for labels in (numbers, [repr(one) for one in numbers]):
        one = of("number", *labels)
        assert [one.label(index) for index in range(len(one))] == numbers
        assert of("vector", labels).label(0).tolist() == numbers


def test_padding_is_no_label_and_only_classes_are_mixed(photos: Path) -> None:
    data = Files.from_folder(photos).read(0)
    for kind, label in (("number", 1), ("vector", [1, 2]), ("multi_label", ["cat"]), ("soft", [0.5, 0.5, 0])):
        classes = None if kind in ("number", "vector") else CLASSES
        samples = with_labels([(data, label)], kind, classes=classes)  # type: ignore[arg-type]
        batch = only_batch(ImageLoader(DEFINITION, samples, batch_size=2, last_batch="pad", threads=1))
        assert batch.indices.tolist() == [0, -1]
        filler = batch.labels[1]
        assert bool((filler == 0).all() if kind == "soft" else filler.isnan().all())
        with pytest.raises(BadDataset, match=f"samples are mixed with one class each; the labels are '{kind}'"):
            ImageLoader(DEFINITION, samples, batch_size=1, train=True, augmentation=MIXED_CLASSES)


def test_tables_name_columns(photos: Path, tmp_path: Path) -> None:
    names = [str(path.relative_to(photos)) for path in Files.from_folder(photos).paths[:3]]
    rows: list[dict[str, Any]] = [
        {"file": names[0], "animal": "dog", "all": ["cat", "dog"], "cat": 0.25, "dog": 0.75, "age": 1.5},
        {"file": names[1], "animal": "cat", "all": [], "cat": 1, "dog": 0, "age": 2},
        {"file": names[2], "animal": "fox", "all": ["fox"], "cat": 0, "dog": 1, "age": -1},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for suffix, delimiter in ((".csv", ","), (".tsv", "\t"), (".jsonl", "")):
        table = tmp_path / f"a{suffix}"
        if delimiter:
            with table.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
                writer.writeheader()
                writer.writerows({**row, "all": "|".join(row["all"])} for row in rows)
        options: dict[str, Any] = {"images": photos, "path": "file"}
        found = {
            "class": read_labels(table, label="animal", classes=CLASSES, **options),
            "multi_label": read_labels(table, label="all", labels="multi_label", classes=CLASSES, **options),
            "soft": read_labels(table, label=["cat", "dog"], labels="soft", **options),
            "vector": read_labels(table, label=["age", "cat"], labels="vector", **options),
            "number": read_labels(table, label="age", labels="number", **options),
        }
        assert found["soft"].classes == ("cat", "dog")
        labels = {}
        for kind, files in found.items():
            batch = only_batch(ImageLoader(DEFINITION, files, batch_size=3, threads=1))
            labels[kind] = batch.labels.tolist()
        assert labels == {
            "class": [1, 0, 2],
            "multi_label": [[1, 1, 0], [0, 0, 0], [0, 0, 1]],
            "soft": [[0.25, 0.75], [1, 0], [0, 1]],
            "vector": [[1.5, 0.25], [2, 1], [-1, 0]],
            "number": [1.5, 2, -1],
        }


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "path,label\na.jpg,1\nb.jpg,0.75\n", r"a\.csv line 3 has the label 0\.75; expected a class"),
        ("a.csv", "path,label\na.jpg,cat\n", r"line 2 has the label cat; expected a class"),
        ("a.csv", "file,label\na.jpg,1\n", "line 2 has no path; it has file, label"),
        ("a.csv", "path,label\na.jpg\n", "line 2 has no label"),
        ("a.csv", "path,label\na.jpg,1,2\n", "line 2 has more values than there are columns"),
        ("a.csv", 'path,label\n"a.jpg,1\n', "cannot be read: unexpected end of data"),
        ("a.csv", "path,label\n../a.jpg,1\n", "line 2: .*expected a path within the pictures' folder"),
        ("a.csv", "path,label\n", "names no image"),
        ("a.csv", "path,label,label\na.jpg,1,2\n", "has the column label more than once"),
        ("a.jsonl", '{"path": "\\ud800.jpg", "label": 1}\n', "a character that no file name can"),
        (
            "a.jsonl",
            '{"path": "a.jpg", "label": 1}\n\n{"path": "b.jpg", "label": 0.75}\n',
            r"line 3 has the label 0",
        ),
        ("a.jsonl", '{"path": "a.jpg", "label": null}\n', "line 1 has no label"),
        ("a.jsonl", "[1]\n", "line 1 is no JSON object"),
        ("a.jsonl", "{\n", "line 1: "),
        ("a.xlsx", "", r"ends in '\.xlsx'; expected \.csv, \.tsv, \.jsonl, \.ndjson"),
        ("a.csv", "path,label\n\udcff.jpg,1\n", "a.csv cannot be read"),
        ("none.csv", None, "none.csv cannot be read"),
    ],
)
def test_bad_tables_are_named_with_their_line(name: str, content: str | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / name).write_text(content, errors="surrogateescape")
    with pytest.raises(BadDataset, match=message):
        read_labels(tmp_path / name)


def test_samples_of_ones_own_say_what_their_labels_are(photos: Path) -> None:
    class Own(InMemory):
        def label(self, index: int) -> Any:
            return np.float32(index)

    own = Own([Files.from_folder(photos).read(0)])
    own.kind = Labels("number")
    batch = only_batch(ImageLoader(DEFINITION, own, batch_size=1, threads=1))
    assert torch.equal(batch.labels, torch.zeros(1))
    own.kind = Labels("vector", size=2)
    with (
        ImageLoader(DEFINITION, own, batch_size=1, threads=1) as loader,
        pytest.raises(BadDataset, match=r"item 0 has the label '0\.0'; expected a list"),
    ):
        list(loader)


def test_an_iterable_dataset_with_a_length_is_an_iterable(photos: Path) -> None:
    image = next(photos.rglob("*.jpg")).read_bytes()

    class Streamed(torch.utils.data.IterableDataset[Any]):
        def __len__(self) -> int:
            return 2

        def __iter__(self) -> Any:
            return iter([(image, 0), (image, 1)])

    for source in (Streamed(), with_labels(Streamed(), "class")):
        with ImageLoader(DEFINITION, source, batch_size=2) as loader:
            assert [batch.labels.tolist() for batch in loader] == [[0, 1]]
