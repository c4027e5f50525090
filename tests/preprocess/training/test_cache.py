"""A cache of decoded or resized pictures: the same samples in every bit, of a stated size, shared by processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from box_sets import drawn_set, write_coco
from image_files import png_of
from image_sets import BOXED, CROPPED, DEFINITION, EVERYTHING, FORMATS, MIXED_CLASSES
from mask_sets import write_set
from stored_sets import assert_same, epochs_of

from onestream.preprocess import BadDataset, BadSample, CannotCompile, Definition, compile
from onestream.preprocess.training import (
    Augmentation,
    Cache,
    Dataset,
    DetectionLoader,
    Files,
    ImageLoader,
    SegmentationLoader,
    read_coco,
)
from onestream.preprocess.training.sources import cache as cache_module

PLENTY = 10**9


def size_of(folder: Path) -> int:
    """The bytes of the pictures in a cache."""
    return sum(path.stat().st_size for path in folder.glob("*/*"))


def kept_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*/*")}


@pytest.mark.parametrize("backend", ["dali", "reference"])
@pytest.mark.parametrize("of", ["decoded", "resized"])
@pytest.mark.parametrize("name", FORMATS)
def test_samples_are_equal_in_every_bit(photos: Path, tmp_path: Path, name: str, of: Any, backend: Any) -> None:
    """While the cache is filled, and when all are in it."""
    options: dict[str, Any] = {"batch_size": 5, "backend": backend, "threads": 2}
    expected = epochs_of(FORMATS[name], photos, **options)
    for _ in range(2):
        assert_same(epochs_of(FORMATS[name], photos, cache=Cache(tmp_path, PLENTY, of), **options), expected)
        assert len(kept_in(tmp_path)) == 12


@pytest.mark.parametrize("backend", ["dali", "reference"])
@pytest.mark.parametrize("chain", [Augmentation(), EVERYTHING, MIXED_CLASSES], ids=["default", "everything", "mixed"])
def test_varied_samples_are_equal_in_every_bit(photos: Path, tmp_path: Path, chain: Augmentation, backend: Any) -> None:
    options: dict[str, Any] = {"batch_size": 5, "backend": backend, "threads": 2, "train": True, "augmentation": chain}
    expected = epochs_of(DEFINITION, photos, **options, epochs=2)
    assert_same(epochs_of(DEFINITION, photos, cache=Cache(tmp_path, PLENTY), **options, epochs=2), expected)


def test_resized_pictures_of_scaled_jpegs_are_kept(photos: Path, tmp_path: Path) -> None:
    scaled = Definition.model_validate(
        {"operations": [{"op": "decode", "dct_scaling": True}, {"op": "letterbox", "size": [32, 40]}]}
    )
    expected = epochs_of(scaled, photos, batch_size=12)
    for _ in range(2):
        assert_same(epochs_of(scaled, photos, batch_size=12, cache=Cache(tmp_path, PLENTY, "resized")), expected)
    with pytest.raises(CannotCompile, match="of='decoded' keeps whole pictures, and dct_scaling decodes smaller ones"):
        ImageLoader(scaled, photos, batch_size=12, cache=Cache(tmp_path, PLENTY))


def test_boxes_and_masks_follow_decoded_pictures(tmp_path: Path) -> None:
    boxes = read_coco(write_coco(tmp_path, drawn_set(4)), images=tmp_path / "photos")
    for train in (False, True):
        batches = []
        for cache in (None, Cache(tmp_path / "cache", PLENTY)):
            with DetectionLoader(CROPPED, boxes, batch_size=4, train=train, cache=cache) as loader:
                batches += list(loader)
        one, other = batches
        assert torch.equal(one.images, other.images)
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(one.boxes, other.boxes, strict=True))
    masks = write_set(tmp_path / "masks", count=4)
    options: dict[str, Any] = {"batch_size": 4, "train": True}
    with (
        SegmentationLoader(BOXED, masks, **options) as plain,
        SegmentationLoader(BOXED, masks, cache=Cache(tmp_path / "cache", PLENTY), **options) as cached,
    ):
        for one, other in zip(plain, cached, strict=True):
            assert torch.equal(one.images, other.images)
            assert torch.equal(one.masks, other.masks)
    with pytest.raises(CannotCompile, match="of='resized' cannot be used where boxes and masks follow the resize"):
        DetectionLoader(CROPPED, boxes, batch_size=4, cache=Cache(tmp_path / "cache", PLENTY, "resized"))


def test_what_is_kept_is_not_decoded_again(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a map-style dataset; the definition, the backend and the picture's bytes tell kept ones apart."""
    opened: list[Definition] = []

    def spied(definition: Definition, **options: Any) -> Any:
        if definition.output_spec.layout == "HWC":
            opened.append(definition)
        return compile(definition, **options)

    monkeypatch.setattr(cache_module, "compile", spied)
    cache = Cache(tmp_path, PLENTY, "resized")
    plain = Dataset(DEFINITION, photos)[3][0]
    for _ in range(2):
        assert torch.equal(Dataset(DEFINITION, photos, cache=cache)[3][0], plain)
    assert len(opened) == len(kept_in(tmp_path)) == 1
    Dataset(FORMATS["bgr"], photos, cache=cache)[3]
    Dataset(DEFINITION, photos, backend="dali", cache=cache)[3]
    Dataset(DEFINITION, photos, cache=Cache(tmp_path, PLENTY))[3]
    assert len(opened) == len(kept_in(tmp_path)) == 4
    file = Files.from_folder(photos).paths[3]
    other = tmp_path / "photo" / file.name
    other.parent.mkdir()
    other.write_bytes(file.read_bytes())
    Dataset(DEFINITION, other.parent, cache=cache)[0]
    assert len(opened) == 4


def test_a_full_cache_keeps_no_more(photos: Path, tmp_path: Path) -> None:
    """Of two loaders, too: the size is the folder's."""
    options: dict[str, Any] = {"batch_size": 5, "threads": 2}
    expected = epochs_of(DEFINITION, photos, **options)
    picture = 64 * 56 * 3 + 16
    five, seven = (Cache(tmp_path, count * picture + 100, "resized") for count in (5, 7))
    for _ in range(2):
        assert_same(epochs_of(DEFINITION, photos, cache=five, **options), expected)
        assert size_of(tmp_path) == 5 * picture
    (tmp_path / "used").unlink()
    assert_same(epochs_of(DEFINITION, photos, cache=seven, **options), expected)
    assert size_of(tmp_path) == 7 * picture
    # What does not fit leaves its room to others.
    pictures = [png_of(np.full((side, side, 3), side, np.uint8)) for side in (60, 20, 61, 21)]
    dataset = Dataset(DEFINITION, pictures, cache=Cache(tmp_path / "small", 5000))
    for index in range(4):
        assert torch.equal(dataset[index][0], Dataset(DEFINITION, pictures)[index][0])
    assert sorted(map(len, kept_in(tmp_path / "small").values())) == [20 * 20 * 3 + 16, 21 * 21 * 3 + 16]


def test_damaged_files_are_written_again(photos: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"batch_size": 12, "cache": Cache(tmp_path, PLENTY)}
    expected = epochs_of(DEFINITION, photos, **options)
    whole = kept_in(tmp_path)
    for number, path in enumerate(sorted(tmp_path.glob("*/*"))):
        content = whole[path.name]
        damaged = (content[:-1], b"", bytes(len(content)), content[:50] + bytes(3) + content[53:])[number % 4]
        path.write_bytes(damaged)
    assert_same(epochs_of(DEFINITION, photos, **options), expected)
    assert kept_in(tmp_path) == whole


def test_processes_share_a_cache(photos: Path, tmp_path: Path) -> None:
    """Six fill it at once, and a picture that several of them decode is counted once."""
    expected = epochs_of(DEFINITION, photos, batch_size=2, backend="reference", threads=2)
    options: dict[str, Any] = {"batch_size": 2, "backend": "reference", "threads": 2, "cache": Cache(tmp_path, PLENTY)}
    loaders = [ImageLoader(DEFINITION, photos, **options) for _ in range(3)]
    runs = [iter(loader) for loader in loaders]
    found = [[tuple(next(run)) for run in runs] for _ in range(6)]
    for number, loader in enumerate(loaders):
        assert_same([batches[number] for batches in found], expected)
        loader.close()
    assert len(kept_in(tmp_path)) == 12
    assert int((tmp_path / "used").read_text()) == size_of(tmp_path)
    assert not list(tmp_path.glob("*/.tmp-*"))


def test_bad_pictures_are_told_as_without_a_cache(photos: Path, tmp_path: Path) -> None:
    files = Files.from_folder(photos)
    pictures = [bytes(files.read(index)) for index in range(4)]
    pictures[1], pictures[2] = pictures[1][:-400], b"no image"
    reasons = []
    for cache in (None, Cache(tmp_path, PLENTY), Cache(tmp_path, PLENTY, "resized")):
        with ImageLoader(DEFINITION, pictures, batch_size=4, bad_files="skip", cache=cache) as loader:
            (batch,) = loader
            assert batch.indices.tolist() == [0, 3]
            reasons.append([(one.index, one.reason) for one in loader.skipped])
    assert reasons[0] == reasons[1] == reasons[2]
    assert len(reasons[0]) == 2
    with (
        ImageLoader(DEFINITION, pictures, batch_size=4, cache=Cache(tmp_path, PLENTY)) as loader,
        pytest.raises(BadSample, match=r"item 1: bad image \(corrupt\)"),
    ):
        list(loader)


def test_wrong_options_are_refused(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="of must be 'decoded' or 'resized', got 'encoded'"):
        Cache(tmp_path, 1, "encoded")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_bytes must be at least 1, got 0"):
        Cache(tmp_path, 0)
    (tmp_path / "file").touch()
    cases: list[tuple[Cache, dict[str, Any], type[Exception], str]] = [
        (Cache(tmp_path, 9, "resized"), {"train": True}, CannotCompile, "of='resized' cannot be used where an augment"),
        (
            Cache(tmp_path, 9),
            {"device": "gpu"},
            CannotCompile,
            "a cache keeps what a CPU decodes; device='gpu'",
        ),
        (Cache(tmp_path / "file", 9), {}, BadDataset, "file cannot be a cache: "),
    ]
    for cache, options, error, message in cases:
        with pytest.raises(error, match=message):
            ImageLoader(DEFINITION, photos, batch_size=2, cache=cache, **options)


def test_a_cache_that_cannot_be_written_is_passed_over(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = epochs_of(DEFINITION, photos, batch_size=12)

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with ImageLoader(DEFINITION, photos, batch_size=12, cache=Cache(tmp_path, PLENTY)) as loader:
        monkeypatch.setattr(os, "replace", no_space)
        assert_same([tuple(batch) for batch in loader], expected)
    assert not any(kept_in(tmp_path).values())
    assert "No space left on device" in caplog.text
