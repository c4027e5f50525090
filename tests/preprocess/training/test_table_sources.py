"""Parquet files and datasets of Hugging Face's library: the samples of the files that were packed; what is bad."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
from image_sets import CLASSES, DEFINITION, EVERYTHING
from stored_sets import assert_same, epochs_of, write_parquet

from onestream.preprocess import BadDataset, BadSample
from onestream.preprocess.training import NO_LABEL, Dataset, Files, ImageLoader, read_hugging_face, read_parquet

JPEG = Path(__file__).parents[2].joinpath("assets", "coffee.jpg").read_bytes()


@pytest.fixture(scope="module")
def tables(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The photos in two Parquet files, of which the first has two row groups."""
    folder, files = tmp_path_factory.mktemp("tables"), Files.from_folder(photos)
    images = [bytes(files.read(index)) for index in range(len(files))]
    write_parquet(folder / "train-0.parquet", images[:7], files.labels[:7], rows=4, classes=CLASSES)
    write_parquet(folder / "train-1.parquet", images[7:], files.labels[7:], rows=9, classes=CLASSES)
    return f"{folder}/train-*.parquet"


def test_labels_are_in_one_column_or_in_several(tmp_path: Path) -> None:
    columns = {"photo": [JPEG, JPEG], "kinds": [["a", "b"], []], "x": [0.5, 1.0], "y": [2, 3], "n": [-1, 4]}
    path = tmp_path / "one.parquet"
    parquet.write_table(pa.table({**columns, "photo": pa.array(columns["photo"], pa.binary())}), path)
    several = read_parquet(path, label="kinds", labels="multi_label", classes=["b", "a"])
    assert [one.tolist() for one in several.labels] == [[1, 1], [0, 0]]  # type: ignore[union-attr]
    vectors = read_parquet(path, label=["y", "x"], labels="vector")
    assert (vectors.classes, [one.tolist() for one in vectors.labels]) == (("y", "x"), [[2, 0.5], [3, 1]])  # type: ignore[union-attr]
    assert read_parquet(path, label="n").labels == (NO_LABEL, 4)
    assert read_parquet(path, label=None).labels == (NO_LABEL, NO_LABEL)


@pytest.mark.parametrize(
    ("images", "labels", "options", "message"),
    [
        ([JPEG], [0], {"label": "kind"}, r"bad.parquet cannot be read: no column kind; there are image, label. label="),
        ([JPEG], [0], {"image": "photo"}, r"bad.parquet cannot be read: no column 'photo' of bytes; there are image"),
        ([JPEG, JPEG], [0, None], {}, r"bad.parquet: row 1 has no label"),
        ([JPEG, JPEG], [0, 2], {"classes": ["a", "b"]}, r"bad.parquet: row 1 has the label '2'; expected a number of"),
        ([JPEG, JPEG], ["0", "cat"], {}, r"bad.parquet: row 1 has the label cat; expected a class"),
        ([], [], {}, r"no row in .*bad.parquet"),
    ],
    ids=range(6),
)
def test_bad_tables_are_told_by_file_and_row(
    tmp_path: Path, images: list[bytes], labels: list[Any], options: dict[str, Any], message: str
) -> None:
    write_parquet(tmp_path / "bad.parquet", images, labels, rows=4)
    with pytest.raises(BadDataset, match=message) as raised:
        read_parquet(tmp_path / "bad.parquet", **options)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_missing_cut_no_parquet_or_of_other_columns_is_named(tmp_path: Path) -> None:
    path, image = tmp_path / "one.parquet", pa.array([JPEG])
    for columns, message in (
        ([("image", image.dictionary_encode())], r"no column of bytes.*; there are image \(dictionary<values=binary"),
        ([("image", image), ("label", pa.array([0])), ("label", pa.array([1]))], "the column label more than once"),
    ):
        names, values = zip(*columns, strict=True)
        parquet.write_table(pa.Table.from_arrays(list(values), names=list(names)), path)
        with pytest.raises(BadDataset, match=message):
            read_parquet(path)
    write_parquet(tmp_path / "good.parquet", [JPEG], [0], rows=1)
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "good.parquet").read_bytes()[:-20])
    (tmp_path / "text.parquet").write_text("no table")
    for name in ("gone.parquet", "cut.parquet", "text.parquet"):
        with pytest.raises(BadDataset, match=f"{name} cannot be read: ") as raised:
            read_parquet([tmp_path / "good.parquet", tmp_path / name])
        assert "\n" not in str(raised.value)
    write_parquet(tmp_path / "a.parquet", [JPEG], [0], rows=1, classes=["a", "b"])
    write_parquet(tmp_path / "b.parquet", [JPEG], [0], rows=1, classes=["b", "a"])
    with pytest.raises(BadDataset, match=r"b.parquet names its classes b, a; earlier files a, b"):
        read_parquet([tmp_path / "a.parquet", tmp_path / "b.parquet"])


def test_rows_without_an_image_and_of_a_damaged_row_group_are_skipped_or_fail(tmp_path: Path) -> None:
    path = tmp_path / "one.parquet"
    write_parquet(path, [JPEG, None, JPEG, JPEG, JPEG], [0, 1, 2, 3, 4], rows=2)
    pages = parquet.ParquetFile(path).metadata.row_group(1).column(0)
    content = bytearray(path.read_bytes())
    content[pages.dictionary_page_offset : pages.dictionary_page_offset + 200] = b"\xff" * 200
    path.write_bytes(content)
    with ImageLoader(DEFINITION, path, batch_size=5) as loader, pytest.raises(BadSample, match="row 1: the row has no"):
        list(loader)
    with ImageLoader(DEFINITION, path, batch_size=5, bad_files="skip") as loader:
        (batch,) = loader
        assert batch.labels.tolist() == [0, 4]
        assert [one.index for one in loader.skipped] == [1, 2, 3]
        assert loader.skipped[1].reason.startswith("row group 1 cannot be read: ")


def test_a_file_that_changes_is_a_bad_file(tmp_path: Path) -> None:
    path = tmp_path / "one.parquet"
    write_parquet(path, [JPEG, JPEG], [0, 1], rows=2)
    files = read_parquet(path)
    write_parquet(path, [JPEG], [0], rows=2)
    with pytest.raises(BadSample, match="row group 0 cannot be read: it has changed since the dataset was opened"):
        files.read(1)


@pytest.fixture
def rows(photos: Path) -> Any:
    """The photos as a dataset of Hugging Face's library, half of them as paths."""
    datasets = pytest.importorskip("datasets")
    files = Files.from_folder(photos)
    images = [
        {"bytes": bytes(files.read(index)), "path": None} if index % 2 else {"bytes": None, "path": files.name(index)}
        for index in range(len(files))
    ]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(CLASSES))})
    return datasets.Dataset.from_dict({"image": images, "label": list(files.labels)}, features=features)


@pytest.mark.parametrize("backend", ["dali", "reference"])
def test_tables_train_as_the_folder_that_they_were_made_of(photos: Path, tables: str, rows: Any, backend: Any) -> None:
    """Shuffled and augmented, of one rank of two, also where one row group stays in memory, and in another format."""
    options: dict[str, Any] = {"batch_size": 2, "train": True, "augmentation": EVERYTHING, "seed": 3, "threads": 2}
    options |= {"backend": backend, "shard_id": 1, "num_shards": 2}
    expected = epochs_of(DEFINITION, photos, **options)
    for source in (tables, read_parquet(tables, kept_bytes=1), rows, rows.with_format("torch")):
        assert_same(epochs_of(DEFINITION, source, **options), expected)


def test_parquet_in_another_process_and_hugging_face_in_it_and_in_another_order(
    photos: Path, tables: str, rows: Any, tmp_path: Path
) -> None:
    files = pickle.loads(pickle.dumps(read_parquet(tables)))
    for index, name in ((0, "train-0.parquet: row 0"), (6, "train-0.parquet: row 6"), (11, "train-1.parquet: row 4")):
        assert files.name(index).endswith(f"/{name}")
    folder = Dataset(DEFINITION, photos)
    rows.select([3, 5, 7]).to_parquet(tmp_path / "some.parquet")
    for source, order in (
        (files, range(12)), (rows.select([9, 2]), [9, 2]), (tmp_path / "some.parquet", [3, 5, 7])
    ):  # fmt: skip
        dataset = Dataset(DEFINITION, source)
        assert (len(dataset), dataset.classes) == (len(order), CLASSES)
        for index, other in enumerate(order):
            assert torch.equal(dataset[index][0], folder[other][0])
            assert dataset[index][1] == folder[other][1]


def test_bad_datasets_of_hugging_face_are_told(rows: Any) -> None:
    datasets = pytest.importorskip("datasets")
    for source, options, message in (
        (datasets.DatasetDict(train=rows, test=rows), {}, r"got a DatasetDict of train, test; give one of them"),
        (rows.to_iterable_dataset(), {}, "IterableDataset is streamed and has no length"),
        (rows, {"label": "kind"}, "Dataset has no column kind; there are image, label"),
        (rows, {"image": "label"}, "Dataset has the columns image, label, of images image; choose one by image="),
        (rows.select_columns(["label"]), {}, "of images none"),
        (rows, {"classes": ["a"]}, r"row 4 has the label '1'; expected a number of 0 to 0 or one of a"),
    ):
        with pytest.raises(BadDataset, match=message):
            read_hugging_face(source, **options)
    empty = rows.map(lambda _: {"image": None})
    with pytest.raises(BadSample, match="row 2: the row has no image"):
        Dataset(DEFINITION, empty)[2]
