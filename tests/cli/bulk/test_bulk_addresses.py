"""Sources behind addresses, in S3 and on file systems that fsspec brings, and Parquet files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from bulk_fakes import Bulk, loaded, read, shard, table
from ray_clusters import rows

from onestream.cli.bulk.sources import counter, samples
from onestream.client import BadImage, OnestreamError
from onestream.measure.image_files import ImageNames

Bucket = Callable[[Mapping[str, bytes]], str]


def test_every_kind_of_source(bucket: Bucket) -> None:
    at = bucket(
        {
            "photos/b.jpg": b"b",
            "photos/a.png": b"a",
            "photos/notes.txt": b"no",
            "photos/below/c.JPG": b"c",
            "shards/train-0.tar": shard({"x/1.jpg": b"1", "x/1.txt": b"no", "x/2.png": b"2"}),
            "shards/train-1.tar": shard({"3.jpg": b"3"}),
            "shards/train-1.tar.gz": b"no",
            "rows.parquet": table([b"r", b"s"]),
        }
    )
    folder = [(f"{at}/photos/a.png", "", b"a"), (f"{at}/photos/b.jpg", "", b"b")]
    below = [(f"{at}/photos/below/c.JPG", "", b"c")]
    tar = [(f"{at}/shards/train-0.tar", "x/1", b"1"), (f"{at}/shards/train-0.tar", "x/2", b"2")]
    other_tar = [(f"{at}/shards/train-1.tar", "3", b"3")]
    assert read(f"{at}/photos") == read(f"{at}/photos/") == folder + below
    assert read(f"{at}/photos/*.jpg") == folder[1:]
    assert read(f"{at}/shards/*.tar") == read(f"{at}/shards/train-{{0..1}}.tar") == tar + other_tar
    assert read(f"{at}/rows.parquet") == [(f"{at}/rows.parquet", "0", b"r"), (f"{at}/rows.parquet", "1", b"s")]
    lines = (f"{at}/photos/b.jpg\n", f"{at}/photos/below\n", f"{at}/shards/train-0.tar\n")
    assert read("-", listed=lines) == folder[1:] + below + tar
    for missing in (f"{at}/gone.jpg", f"{at}/shards/*.tgz"):
        assert read(missing) == [(missing, "", "UnreadableInput")]
    names = ImageNames()
    assert len(list(samples([f"{at}/photos"], names=names))) == 3
    assert "notes.txt" in names.passed_over
    (sample,) = samples([f"{at}/photos/notes.txt"])
    with pytest.raises(BadImage, match="allowed are at most 1"):
        sample.load(1)


def test_names_that_look_like_options_are_no_other_place(bucket: Bucket) -> None:
    at = bucket(dict.fromkeys(("who?region=x.jpg", "b.jpg", "photos?region=x/d.jpg", "what?.txt"), b"asked"))
    asked, who = (f"{at}/b.jpg", "", b"asked"), (f"{at}/who?region=x.jpg", "", "UnreadableInput")
    assert read(at) == [asked, (f"{at}/photos?region=x", "", "UnreadableInput"), who]
    assert read(f"{at}/*.jpg") == [asked, who]
    assert "an address cannot hold a name with ?" in str(read(f"{at}/*.jpg", told=str)[1])


def test_an_address_of_this_machine_is_a_path(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"a")
    (sample,) = samples([f"file://{tmp_path}"])
    assert sample.path == sample.load(10) == str(tmp_path / "a.jpg")


def test_web_pages_are_not_fetched() -> None:
    (sample,) = samples(["https://example.com/cat.jpg"])
    assert sample.path == sample.load(10) == "https://example.com/cat.jpg"


def test_the_command_takes_addresses_and_writes_to_this_machine(bulk: Bulk, bucket: Bucket, tmp_path: Path) -> None:
    at = bucket({"photos/a.jpg": b"a", "photos/bad.jpg": b"bad", "shard.tar": shard({"1.jpg": b"1"})})
    for out in (tmp_path / "out.parquet", tmp_path / "out.jsonl"):
        done = bulk.run(f"{at}/photos", f"{at}/shard.tar", "--to", out)
        assert done.exit_code == 1, done.stderr
        assert [(row["path"], row["error"] if row.get("error") else None) for row in rows(out)] == [
            (f"{at}/photos/a.jpg", None),
            (f"{at}/photos/bad.jpg", "corrupt"),
            (f"{at}/shard.tar", None),
        ]
    other = bulk.run(f"{at}/photos", "--to", f"{at}/out.csv")
    assert other.exit_code == 2
    assert "is on another machine, which is for --ray" in other.stderr


# ---- Parquet --------------------------------------------------------------------------------------------------------


def test_rows_of_parquet_are_images(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    images = [b"a", None, b"c" * 20_000]
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
