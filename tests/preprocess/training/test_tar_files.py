"""Tar files of WebDataset: the samples of the packed files, in any order, and the errors of damaged ones."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from image_sets import DEFINITION, EVERYTHING
from stored_sets import assert_same, epochs_of, shard_members, tar_file, write_shards

from onestream.preprocess import BadDataset, BadSample
from onestream.preprocess.training import NO_LABEL, Dataset, Files, ImageLoader, read_tar

JPEG = Path(__file__).parents[2].joinpath("assets", "coffee.jpg").read_bytes()


@pytest.fixture(scope="module")
def shards(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The photos in three shards."""
    return write_shards(tmp_path_factory.mktemp("shards"), Files.from_folder(photos), count=3)


@pytest.mark.parametrize("block_bytes", [0, 20_000])
@pytest.mark.parametrize("backend", ["dali", "reference"])
def test_shards_train_as_the_folder_that_they_were_made_of(
    photos: Path, shards: str, backend: Any, block_bytes: int
) -> None:
    """Shuffled and augmented, of one rank of two."""
    options: dict[str, Any] = {"batch_size": 2, "train": True, "augmentation": EVERYTHING, "seed": 3, "threads": 2}
    options |= {"backend": backend, "shard_id": 1, "num_shards": 2}
    files = read_tar(shards, block_bytes=block_bytes, kept_bytes=1)
    expected = epochs_of(DEFINITION, photos, epochs=2, **options)
    assert_same(epochs_of(DEFINITION, files, epochs=2, **options), expected)


def test_a_map_style_dataset_of_shards_crosses_processes(photos: Path, shards: str) -> None:
    dataset = pickle.loads(pickle.dumps(Dataset(DEFINITION, read_tar(shards, block_bytes=10**6))))
    folder = Dataset(DEFINITION, photos)
    for index in (11, 0, 5):
        assert torch.equal(dataset[index][0], folder[index][0])
        assert dataset[index][1] == folder[index][1]


def test_samples_are_those_of_webdataset(photos: Path, tmp_path: Path) -> None:
    """Also of paths with dots in folders, upper case, keys that come again, and what is no sample."""
    webdataset = pytest.importorskip("webdataset")
    files = Files.from_folder(photos)
    odd = [
        ("v1.2/a.b/0001.jpg", JPEG),
        ("v1.2/a.b/0001.cls", b"4"),
        ("v1.2/a.b/0001.extra.json", b"{}"),
        ("v1.2/a.b/0002.CLS", b"5\n"),
        ("v1.2/a.b/0002.JPG", JPEG),
        ("README", b"no sample"),
        ("v1.2/a.b/0001.jpg", JPEG),
        ("v1.2/a.b/0001.cls", b"6"),
    ]
    (tmp_path / "odd.tar").write_bytes(tar_file([*odd, *shard_members(files, range(4))]))
    expected = [
        (sample["__key__"], next(sample[one] for one in ("jpg", "jpeg", "png", "webp") if one in sample), sample["cls"])
        for sample in webdataset.WebDataset(str(tmp_path / "odd.tar"), shardshuffle=False)
    ]
    found = read_tar(tmp_path / "odd.tar")
    assert len(found) == len(expected) == 7
    for index, (key, image, label) in enumerate(expected):
        assert found.name(index) == f"{tmp_path}/odd.tar: {key}"
        assert found.read(index) == image
        assert found.label(index) == int(label)


def test_labels_are_text_json_or_none(tmp_path: Path) -> None:
    about = {"species": "cat", "shares": {"cat": 0.25, "dog": 0.75}}
    path = tmp_path / "one.tar"
    path.write_bytes(tar_file([("1.jpg", JPEG), ("1.json", json.dumps(about).encode()), ("1.txt", b" dog\n")]))
    classes = ["dog", "cat"]
    assert read_tar(path, label="json", field="species", classes=classes).labels == (1,)
    shares = read_tar(path, label="json", field="shares", labels="soft", classes=classes)
    assert shares.labels[0].tolist() == [0.75, 0.25]  # type: ignore[union-attr]
    assert read_tar(path, label="txt", classes=classes).labels == (0,)
    assert read_tar(path, label=None).labels == (NO_LABEL,)


GOOD = [("1.jpg", JPEG), ("1.cls", b"1"), ("2.jpg", JPEG), ("2.cls", b"2")]
SECOND = 512 + -(-len(JPEG) // 512) * 512
"""Where the second member of a tar file begins."""


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (None, {}, r"bad.tar cannot be read as a tar file: No such file"),
        (b"", {}, "bad.tar cannot be read as a tar file: cut or damaged after byte 0"),
        (b"no tar file" * 100, {}, "bad.tar cannot be read as a tar file"),
        (tar_file(GOOD)[:SECOND], {}, f"bad.tar cannot be read as a tar file: cut or damaged after byte {SECOND}"),
        (tar_file(GOOD)[: SECOND + 100], {}, r"bad.tar cannot be read as a tar file: cut .* \(truncated header\)"),
        (tar_file(GOOD[:1])[:5000], {}, r"1.jpg is cut: it ends after the end of the file"),
        (gzip.compress(tar_file(GOOD)), {}, "bad.tar cannot be read as a tar file: .*; one that is compressed must be"),
        (tar_file([]), {}, r"got no member such as 0001.jpg"),
        (tar_file([("1.cls", b"1"), ("2.cls", b"1")]), {}, r"bad.tar: 1: no picture in the sample; it has cls"),
        (tar_file([*GOOD, ("3.jpg", JPEG)]), {}, r"bad.tar: 3 has no .cls; it has jpg. label=None reads"),
        (tar_file([*GOOD, ("2.cls", b"2")]), {}, r"bad.tar: 2 has two members .cls"),
        (tar_file([*GOOD, ("2.png", b"")]), {}, r"bad.tar: 2 has several pictures \(jpg, png\); choose one by image="),
        (tar_file([*GOOD, ("3.jpg", JPEG), ("3.cls", b"cat")]), {}, r"bad.tar: 3 has the label cat; expected a class"),
        (tar_file(GOOD), {"classes": ["a", "b"]}, r"bad.tar: 2 has the label '2'; expected a number of 0 to 1 or"),
        (tar_file(GOOD), {"label": "json"}, r"bad.tar: 1 has no .json; it has jpg, cls"),
        (tar_file([*GOOD[:1], ("1.json", b"{")]), {"label": "json"}, r"bad.tar: 1.json is no JSON"),
        (tar_file([*GOOD[:1], ("1.json", b"[]")]), {"label": "json", "field": "label"}, "1.json has no field 'label'"),
    ],
    ids=range(17),
)
def test_bad_shards_are_told_by_shard_and_sample(
    tmp_path: Path, content: bytes | None, options: dict[str, Any], message: str
) -> None:
    if content is not None:
        (tmp_path / "bad.tar").write_bytes(content)
    with pytest.raises(BadDataset, match=message) as raised:
        read_tar(tmp_path / "bad.tar", index=tmp_path / "index", **options)
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.glob("index/.tmp-*"))


def test_a_sample_without_a_picture_is_skipped_or_fails(tmp_path: Path) -> None:
    path = tmp_path / "one.tar"
    path.write_bytes(tar_file([*GOOD, ("3.txt", b"no picture")]))
    with ImageLoader(DEFINITION, path, batch_size=3) as loader, pytest.raises(BadSample, match=r"one.tar: 3: no pict"):
        list(loader)
    with ImageLoader(DEFINITION, path, batch_size=3, bad_files="skip") as loader:
        (batch,) = loader
        assert batch.indices.tolist() == [0, 1]
        assert [(one.index, one.reason) for one in loader.skipped] == [(2, "no picture in the sample; it has txt")]


@pytest.mark.parametrize("block_bytes", [0, 10**6])
def test_a_shard_that_changes_is_a_bad_file(tmp_path: Path, block_bytes: int) -> None:
    """Its samples may lie elsewhere, so a picture would get the label of another; a new reader sees the new file."""
    path = tmp_path / "one.tar"
    path.write_bytes(tar_file(GOOD))
    files = read_tar(path, block_bytes=block_bytes)
    path.write_bytes(tar_file(GOOD[2:] + GOOD[:2]))
    with pytest.raises(OSError, match="it has changed since the dataset was opened"):
        files.read(0)
    assert read_tar(path, block_bytes=block_bytes).read(0) == JPEG


def test_what_cannot_be_read_in_place_and_an_index_that_cannot_be_kept_are_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.tar")
    header = tarfile.TarInfo("1.jpg")
    header.type = tarfile.GNUTYPE_SPARSE
    (tmp_path / "sparse.tar").write_bytes(header.tobuf(tarfile.GNU_FORMAT) + tar_file(GOOD))
    (tmp_path / "train.tar.gz").write_bytes(gzip.compress(tar_file(GOOD)))
    for name, message in (
        ("pipe.tar", "pipe.tar cannot be read as a tar file: it is no regular file"),
        ("sparse.tar", "1.jpg is sparse, so that its bytes do not lie together"),
        ("train.tar.gz", "train.tar.gz cannot be read as a tar file: .*compressed"),
    ):
        with pytest.raises(BadDataset, match=message):
            Dataset(DEFINITION, tmp_path / name)
    (tmp_path / "one.tar").write_bytes(tar_file(GOOD))
    with pytest.raises(BadDataset, match=r"its index cannot be kept in .*one.tar: File exists"):
        read_tar(tmp_path / "one.tar", index=tmp_path / "one.tar")


def test_the_index_is_kept_until_the_shard_changes_or_it_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, index = tmp_path / "one.tar", tmp_path / "index"
    path.write_bytes(tar_file(GOOD))
    grown = tar_file([*GOOD, ("3.jpg", JPEG), ("3.cls", b"3")])
    scans: list[object] = []
    opened = tarfile.open
    monkeypatch.setattr(tarfile, "open", lambda *given, **options: scans.append(given) or opened(*given, **options))

    def labels() -> tuple[Any, ...]:
        return read_tar(path, index=index).labels

    assert [labels(), labels()] == [(1, 2), (1, 2)]
    assert len(scans) == 1
    (kept,) = index.iterdir()
    for damaged in (kept.read_bytes()[:-1], b"", kept.read_bytes().replace(b'"2"', b'"7"')):
        kept.write_bytes(damaged)
        assert labels() == (1, 2)
    assert len(scans) == 4
    path.write_bytes(grown)
    assert labels() == (1, 2, 3)
    assert len(scans) == 5
