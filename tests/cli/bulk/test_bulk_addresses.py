"""Sources behind addresses, and Parquet files: on file systems that fsspec brings, which live in this process."""

from __future__ import annotations

import io
import os
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from bulk_fakes import Bulk

from onestream.cli.bulk.sources import Sample, counter, samples
from onestream.client import BadImage, OnestreamError
from onestream.measure.image_files import ImageNames

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def store() -> Iterator[str]:
    """An address with photos, other files, a folder below and a shard."""
    root = f"memory://{uuid.uuid4().hex}"
    files = fsspec.filesystem("memory")
    path = root.removeprefix("memory:/")
    shard = io.BytesIO()
    with tarfile.open(fileobj=shard, mode="w") as tar:
        for name in ("x/1.jpg", "x/1.txt", "x/2.png"):
            member = tarfile.TarInfo(name)
            member.size = len(name)
            tar.addfile(member, io.BytesIO(name.encode()))
    content = {
        "photos/b.jpg": b"b",
        "photos/a.png": b"a",
        "photos/notes.txt": b"no",
        "photos/below/c.JPG": b"c",
        "shards/train-0.tar": shard.getvalue(),
        "shards/train-1.tar": shard.getvalue(),
        "shards/other.txt": b"no",
    }
    for name, data in content.items():
        files.pipe_file(f"{path}/{name}", data)
    yield root
    files.rm(path, recursive=True)


def loaded(sample: Sample, max_bytes: int = 1000) -> object:
    try:
        return sample.load(max_bytes)
    except OnestreamError as error:
        return type(error).__name__


def read(*arguments: str, column: str | None = None) -> list[tuple[str, str, object]]:
    return [(one.path, one.key, loaded(one)) for one in samples(arguments, column=column)]


def test_a_folder_behind_an_address_is_its_images_and_those_below(store: str) -> None:
    names = ImageNames()
    assert [sample.path for sample in samples([f"{store}/photos"], names=names)] == [
        f"{store}/photos/a.png",
        f"{store}/photos/b.jpg",
        f"{store}/photos/below/c.JPG",
    ]
    assert "notes.txt" in names.passed_over
    assert read(f"{store}/photos/b.jpg", f"{store}/gone.jpg") == [
        (f"{store}/photos/b.jpg", "", b"b"),
        (f"{store}/gone.jpg", "", "UnreadableInput"),
    ]


def test_names_that_look_like_options_are_no_other_place(store: str) -> None:
    files, path = fsspec.filesystem("memory"), store.removeprefix("memory:/")
    for name in ("who?region=x.jpg", "b.jpg", "photos?region=x/d.jpg", "what?.txt"):
        files.pipe_file(f"{path}/questions/{name}", b"asked")
    assert read(f"{store}/questions") == [
        (f"{store}/questions/b.jpg", "", b"asked"),
        (f"{store}/questions/photos?region=x", "", "UnreadableInput"),
        (f"{store}/questions/who?region=x.jpg", "", "UnreadableInput"),
    ]
    assert read(f"{store}/questions/*.jpg") == [
        (f"{store}/questions/b.jpg", "", b"asked"),
        (f"{store}/questions/who?region=x.jpg", "", "UnreadableInput"),
    ]


def test_shards_behind_an_address_are_patterns_and_braces(store: str) -> None:
    expected = [
        (f"{store}/shards/train-{shard}.tar", key, data.encode())
        for shard in (0, 1)
        for key, data in (("x/1", "x/1.jpg"), ("x/2", "x/2.png"))
    ]
    assert read(f"{store}/shards/*.tar") == read(f"{store}/shards/train-{{0..1}}.tar") == expected
    assert read(f"{store}/shards/*.tgz") == [(f"{store}/shards/*.tgz", "", "UnreadableInput")]


def test_a_file_of_too_many_bytes_is_not_read_whole(store: str) -> None:
    (sample,) = samples([f"{store}/shards/other.txt"])
    with pytest.raises(BadImage, match="allowed are at most 1"):
        sample.load(1)


def test_an_address_of_this_machine_is_a_path(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"a")
    assert read(f"file://{tmp_path}") == [(str(tmp_path / "a.jpg"), "", str(tmp_path / "a.jpg"))]


def test_web_pages_are_not_fetched() -> None:
    assert read("https://example.com/cat.jpg")[0][0] == "https://example.com/cat.jpg"
    assert isinstance(read("https://example.com/cat.jpg")[0][2], str)


def test_the_command_takes_addresses_and_writes_to_this_machine(bulk: Bulk, store: str, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    done = bulk.run(f"{store}/photos", f"{store}/shards/*.tar", "--to", out)
    assert done.exit_code == 0, done.stderr
    assert sorted(bulk.transport.sent) == sorted([b"a", b"b", b"c", b"x/1.jpg", b"x/2.png", b"x/1.jpg", b"x/2.png"])
    other = bulk.run(f"{store}/photos", "--to", f"{store}/out.csv")
    assert other.exit_code == 2
    assert "is on another machine, which is for --ray" in other.stderr


# ---- Parquet --------------------------------------------------------------------------------------------------------


def test_rows_of_parquet_are_images(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    images = [b"a", None, b"c" * 2000]
    parquet.write_table(pa.table({"image": pa.array(images, pa.binary()), "label": [1, 2, 3]}), path)
    assert read(str(path)) == [
        (str(path), "0", b"a"),
        (str(path), "1", "UnreadableInput"),
        (str(path), "2", "BadImage"),
    ]
    keyed = pa.table({"image": pa.array(images[:2], pa.large_binary()), "key": ["cat", None]})
    parquet.write_table(keyed, path)
    assert read(str(path)) == [(str(path), "cat", b"a"), (str(path), "1", "UnreadableInput")]


def test_records_with_a_field_of_bytes_are_images(tmp_path: Path) -> None:
    """As Hugging Face's data sets have them."""
    path = tmp_path / "train.PARQUET"
    records = [{"bytes": b"a", "path": "1.jpg"}, {"bytes": b"b", "path": None}, {"bytes": None, "path": "x"}]
    parquet.write_table(pa.table({"image": records}), path)
    assert [image for _, _, image in read(str(path))] == [b"a", b"b", "UnreadableInput"]


def test_the_column_is_named_where_there_are_several(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"image": [b"a"], "mask": [b"m"]}), path)
    (sample,) = samples([str(path)])
    with pytest.raises(OnestreamError, match=r"2 columns of bytes \(image, mask\), expected 1; name one by --column"):
        sample.load(100)
    assert read(str(path), column="mask") == [(str(path), "0", b"m")]
    (sample,) = samples([str(path)], column="label")
    with pytest.raises(OnestreamError, match="no column 'label' of bytes; there are image, mask"):
        sample.load(100)


def test_parquet_is_counted_by_its_footer_and_a_damaged_file_is_one_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"image": [b"a"] * 1000}), path)
    count = counter([str(path)], every_file=False)
    assert count is not None
    assert count() == len(read(str(path))) == 1000
    path.write_bytes(path.read_bytes()[:-10])
    assert [image for _, _, image in read(str(path))] == ["UnreadableInput"]


def test_a_large_row_group_is_not_held_whole(tmp_path: Path) -> None:
    images = [os.urandom(50_000) for _ in range(640)]
    # A page is held whole, and has by default up to 1,024 rows.
    parquet.write_table(
        pa.table({"image": pa.array(images, pa.binary())}), tmp_path / "rows.parquet", write_batch_size=16
    )
    held = []
    before = pa.total_allocated_bytes()
    for sample, image in zip(samples([str(tmp_path / "rows.parquet")]), images, strict=True):
        held.append(pa.total_allocated_bytes() - before)
        assert loaded(sample, 1_000_000) == image
    # A few times the 64 rows that are asked for at once; the row group has 32 MB.
    assert max(held) < 16_000_000
