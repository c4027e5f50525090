"""Sources behind addresses, in S3 and on a file system that fsspec brings: the same samples as on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from image_sets import CLASSES, DEFINITION
from stored_sets import assert_same, epochs_of, shard_members, tar_file, write_parquet

from onestream.preprocess import BadDataset, BadSample
from onestream.preprocess.training import Files, ImageLoader, read_labels, read_parquet, read_tar

if TYPE_CHECKING:
    from s3_server import S3Server

Bucket = Callable[[Mapping[str, bytes]], str]
OPTIONS: dict[str, Any] = {"batch_size": 5, "train": True, "seed": 4, "threads": 2}


@pytest.fixture(scope="module")
def stored(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The photos as files, in two shards and in a Parquet file."""
    files = Files.from_folder(photos)
    images = [bytes(files.read(index)) for index in range(12)]
    table = tmp_path_factory.mktemp("table") / "all.parquet"
    write_parquet(table, images, files.labels, rows=5, classes=CLASSES)
    return {
        **{f"photos/{path.relative_to(photos)}": image for path, image in zip(files.paths, images, strict=True)},
        "photos/cat/notes.txt": b"no image",
        "shards/train-0.tar": tar_file(shard_members(files, range(7))),
        "shards/train-1.tar": tar_file(shard_members(files, range(7, 12))),
        "all.parquet": table.read_bytes(),
    }


@pytest.fixture
def expected(photos: Path) -> Any:
    return epochs_of(DEFINITION, photos, **OPTIONS)


def test_every_source_is_read_behind_an_address(
    bucket: Bucket, stored: dict[str, bytes], expected: Any, photos: Path, tmp_path: Path
) -> None:
    at = bucket(stored)
    files = Files.from_folder(photos)
    names = [(path.relative_to(photos), label) for path, label in zip(files.paths, files.labels, strict=True)]
    listed, table = tmp_path / "list.txt", tmp_path / "labels.csv"
    listed.write_text("".join(f"{at}/photos/{name} {label}\n" for name, label in names))
    table.write_text("path,label\n" + "".join(f"{name},{label}\n" for name, label in names))
    sources = (
        f"{at}/photos",
        f"{at}/shards/train-{{0..1}}.tar",
        read_tar(f"{at}/shards/*.tar", index=tmp_path / "index"),
        read_tar(f"{at}/shards/*.tar", index=tmp_path / "index", block_bytes=10**6),
        f"{at}/all.parquet",
        listed,
        read_labels(table, images=f"{at}/photos"),
    )
    for source in sources:
        assert_same(epochs_of(DEFINITION, source, **OPTIONS), expected)


@pytest.mark.parametrize("source", ["photos", "shards/*.tar", "all.parquet"])
def test_forked_workers_have_connections_of_their_own(
    s3: S3Server, stored: dict[str, bytes], photos: Path, source: str
) -> None:
    options = {**OPTIONS, "backend": "reference"}
    expected = epochs_of(DEFINITION, photos, epochs=2, **options)
    assert_same(epochs_of(DEFINITION, f"{s3.bucket(stored)}/{source}", epochs=2, **options), expected)


def test_blocks_are_asked_for_once(s3: S3Server, stored: dict[str, bytes], tmp_path: Path) -> None:
    """In their order by all threads; a kept index asks for no shard at all."""
    at = s3.bucket(stored)
    read_tar(f"{at}/shards/*.tar", index=tmp_path)
    s3.requests.clear()
    files = read_tar(f"{at}/shards/*.tar", index=tmp_path, block_bytes=10**6)
    assert not [one for one in s3.requests if one.is_read]
    assert len(files.block_starts) == 2
    with ImageLoader(DEFINITION, files, batch_size=3, threads=2) as loader:
        assert len(list(loader)) == 4
    assert len([one for one in s3.requests if one.is_read]) == 2


def test_a_shuffled_epoch_reads_each_block_once(s3: S3Server, stored: dict[str, bytes], tmp_path: Path) -> None:
    files = read_tar(f"{s3.bucket(stored)}/shards/*.tar", index=tmp_path, block_bytes=30_000)
    count = len(files.block_starts)
    assert count > 4
    with ImageLoader(DEFINITION, files, batch_size=3, train=True, shuffle_buffer=5, threads=2) as loader:
        list(loader)
        s3.requests.clear()
        # All stays in memory.
        list(loader)
        assert not s3.requests
    files = read_tar(f"{s3.bucket(stored)}/shards/*.tar", index=tmp_path, block_bytes=30_000, kept_bytes=150_000)
    s3.requests.clear()
    with ImageLoader(DEFINITION, files, batch_size=3, train=True, shuffle_buffer=2, threads=1, prefetch=1) as loader:
        list(loader)
    assert len([one for one in s3.requests if one.is_read]) == count


@pytest.mark.parametrize("has_time", [True, False])
def test_a_shard_that_is_written_again_in_the_same_size_is_noticed(
    tmp_path: Path, has_time: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a package of fsspec, from which pyarrow gets no time: by a kept index, and by who reads the old one."""
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    if not has_time:
        monkeypatch.setattr(type(store), "modified", fsspec.AbstractFileSystem.modified)
    cat, dog = [("a.jpg", b"cat"), ("a.cls", b"0")], [("b.jpg", b"dog"), ("b.cls", b"1")]
    store.pipe("/again/one.tar", tar_file(cat + dog))
    before = read_tar("memory://again/one.tar", index=tmp_path)
    store.pipe("/again/one.tar", tar_file(dog + cat))
    after = read_tar("memory://again/one.tar", index=tmp_path)
    assert [(after.read(index), after.label(index)) for index in range(2)] == [(b"dog", 1), (b"cat", 0)]
    assert len(list(tmp_path.iterdir())) == 2 * has_time
    if has_time:
        with pytest.raises(OSError, match="it has changed since the dataset was opened"):
            before.read(0)


def test_what_is_missing_is_named(bucket: Bucket, stored: dict[str, bytes]) -> None:
    at = bucket(stored)
    for read, name, message in (
        (Files.from_folder, "gone", "gone cannot be read: "),
        (Files.from_folder, "shards", "no image in "),
        (read_tar, "gone.tar", "gone.tar cannot be read as a tar file: "),
        (read_tar, "all.parquet", "all.parquet cannot be read as a tar file: "),
        (read_parquet, "gone.parquet", "gone.parquet cannot be read: "),
    ):
        with pytest.raises(BadDataset, match=message):
            read(f"{at}/{name}")
    files = Files([f"{at}/photos/gone.jpg"], [0])
    with ImageLoader(DEFINITION, files, batch_size=1) as loader, pytest.raises(BadSample, match=r"gone.jpg: the file"):
        list(loader)
    with pytest.raises(BadDataset, match=r"nowhere://bucket.* cannot be opened"):
        Files.from_folder("nowhere://bucket/photos")
