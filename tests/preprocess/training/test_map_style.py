"""Map-style datasets and transforms: the samples of loaders, in an ordinary ``DataLoader``; or by DALI, as a proxy."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_sets import CLASSES, DEFINITION, EVERYTHING, FORMATS, MIXED_CLASSES, only_batch
from loader_kinds import COUNT, KINDS, Kind
from PIL import Image

from onestream import Dataset, DetectionDataset, SegmentationDataset, Transform
from onestream.preprocess import BadDataset, BadImage, BadSample, CannotCompile, Definition, Resize, compile
from onestream.preprocess.operations import Decode
from onestream.preprocess.tolerances import compare
from onestream.preprocess.training import Augmentation, Files, ImageLoader
from onestream.preprocess.training.proxy import DaliProxy

OF_KIND: dict[str, Any] = {
    "images": Dataset,
    "mixed images": Dataset,
    "boxes": DetectionDataset,
    "mosaics": DetectionDataset,
    "masks": SegmentationDataset,
}
WORKERS: dict[str, Any] = {"num_workers": 1, "persistent_workers": True}


def flat(values: Any) -> list[Any]:
    """The arrays of a batch without its indices and mappings, in order."""
    if isinstance(values, torch.Tensor):
        return [values.numpy()]
    return [one for value in values for one in flat(value)] if isinstance(values, list | tuple) else []


def without_indices(kind: Kind, batch: Any) -> tuple[Any, ...]:
    if kind.name in ("boxes", "mosaics"):
        return batch.images, batch.boxes, batch.class_ids, batch.keypoints
    return tuple(batch)[:2]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["reference", "dali"])
@pytest.mark.parametrize("kind", [one for one in KINDS if one.name in OF_KIND], ids=str)
def test_items_are_the_loaders_in_every_bit(kind: Kind, backend: str, tmp_path: Path) -> None:
    source, _ = kind.write(tmp_path)
    for varied in (True, False):
        if kind.name in ("mixed images", "mosaics") and not varied:
            continue
        chain = kind.chain if varied else None
        dataset = OF_KIND[kind.name](kind.definition, source, chain, seed=9, backend=backend)
        assert len(dataset) == COUNT
        collate = getattr(dataset, "collate", None)
        processes = WORKERS if backend == "reference" else {}
        batches = torch.utils.data.DataLoader(dataset, batch_size=3, collate_fn=collate, **processes)
        with kind.open(source, varied=varied, batch_size=3, threads=1, backend=backend) as loader:
            for epoch in range(2):
                dataset.set_epoch(epoch)  # while the workers of the first epoch still run
                for batch, expected in zip(batches, loader, strict=True):
                    found, wanted = flat(without_indices(kind, batch)), flat(without_indices(kind, expected))
                    assert len(found) == len(wanted) > 1
                    for one, other in zip(found, wanted, strict=True):
                        np.testing.assert_array_equal(one, other)
                        assert one.dtype == other.dtype


def test_an_epoch_and_a_seed_vary_items_otherwise(photos: Path) -> None:
    dataset = Dataset(DEFINITION, photos, EVERYTHING, seed=1)
    assert dataset.classes == CLASSES
    assert [int(label) for _, label in dataset] == list(Files.from_folder(photos).labels)
    for index in (12, -1, 10**20):
        with pytest.raises(IndexError, match=f"index must be from 0 to 11, got {index}"):
            dataset[index]
    with pytest.raises(TypeError):
        dataset[1.5]  # type: ignore[index]
    first = dataset[0][0]
    assert torch.equal(dataset[0][0], first)
    dataset.set_epoch(1)
    assert not torch.equal(dataset[0][0], first)
    assert not torch.equal(Dataset(DEFINITION, photos, EVERYTHING, seed=2)[0][0], first)
    with pytest.raises(ValueError, match="epoch must be 0 or more, got -1"):
        dataset.set_epoch(-1)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "pickle"])
def test_workers_of_a_copy_are_told_of_epochs(photos: Path, copied: Callable[[Any], Any]) -> None:
    """Also those that run already, as of a dataset that another process sent."""
    dataset = copied(Dataset(DEFINITION, photos, EVERYTHING))
    batches = torch.utils.data.DataLoader(dataset, 12, **WORKERS)
    (first,) = batches
    dataset.set_epoch(1)
    (second,) = batches
    assert not torch.equal(first[0], second[0])


def test_a_bad_file_is_named_also_from_a_worker(tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("no picture")
    dataset = Dataset(DEFINITION, tmp_path)
    with pytest.raises(BadSample, match=r"text\.jpg: .*got text"):
        dataset[0]
    with pytest.raises(BadSample, match=r"text\.jpg: .*got text"):
        list(torch.utils.data.DataLoader(dataset, num_workers=1))
    with pytest.raises(BadDataset, match="is not a folder"):
        Dataset(DEFINITION, tmp_path / "none")


@pytest.mark.slow
def test_dali_works_in_spawned_processes_and_refuses_forked_ones(photos: Path) -> None:
    dataset = Dataset(DEFINITION, photos, backend="dali")
    expected = torch.stack([image for image, _ in dataset])
    with pytest.raises(CannotCompile, match=r"dali cannot run in a forked process; use .*'spawn'"):
        list(torch.utils.data.DataLoader(dataset, num_workers=1, multiprocessing_context="fork"))
    found = list(torch.utils.data.DataLoader(dataset, 12, num_workers=1, multiprocessing_context="spawn"))
    assert torch.equal(found[0][0], expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("varied", [False, True])
def test_a_transform_gives_what_a_loader_gives(name: str, varied: bool, photos: Path) -> None:
    definition = FORMATS[name]
    transform = Transform(definition, EVERYTHING if varied else None)
    expected = only_batch(ImageLoader(definition, photos, batch_size=12, threads=1, backend="reference"))
    for number, path in enumerate(Files.from_folder(photos).paths[:4]):
        data, found = path.read_bytes(), []
        for picture in (path, str(path), data, bytearray(data), np.frombuffer(data, np.uint8), Image.open(path)):
            torch.manual_seed(5)
            found.append(transform(picture))
        assert all(torch.equal(one, found[0]) for one in found)
        assert found[0].dtype == expected.images.dtype
        assert torch.equal(found[0], expected.images[number]) != varied
        assert torch.equal(pickle.loads(pickle.dumps(transform))(path), transform(path)) or varied


def test_a_transform_takes_arrays_and_draws_anew() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (90, 120, 3), np.uint8)
    plain, varied = Transform(DEFINITION), Transform(DEFINITION, EVERYTHING)
    assert torch.equal(plain(pixels), plain(Image.fromarray(pixels)))
    torch.manual_seed(1)
    first, second = varied(pixels), varied(pixels)
    torch.manual_seed(1)
    assert torch.equal(varied(pixels), first)
    assert not torch.equal(first, second)


def test_what_a_transform_cannot_take_is_refused() -> None:
    cases: list[tuple[Any, type[Exception], str]] = [
        (b"no picture, but a text", BadImage, "got text"),
        (np.zeros((8, 8, 3), np.float32), ValueError, r"got a picture of float32\(8, 8, 3\), expected uint8"),
        (torch.zeros(3, 8, 8), TypeError, "got Tensor; expected bytes, a path, a PIL image or an array"),
    ]
    for picture, error, message in cases:
        with pytest.raises(error, match=message):
            Transform(DEFINITION)(picture)
    with pytest.raises(CannotCompile, match="operations that mix samples need a loader or Dataset"):
        Transform(DEFINITION, MIXED_CLASSES)
    with pytest.raises(CannotCompile, match="images cannot vary"):
        Transform(Definition(operations=(Decode(),)), Augmentation())


class MyDataset(torch.utils.data.Dataset[Any]):
    """What a user has: files, labels and a transform."""

    def __init__(self, files: Files, transform: Any) -> None:
        self.files, self.transform = files, transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.transform(self.files.paths[index]), self.files.label(index)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_dataset_keeps_its_code(photos: Path, workers: int) -> None:
    files = Files.from_folder(photos)
    expected = compile(DEFINITION).run([files.read(index) for index in range(len(files))])
    with DaliProxy(DEFINITION, batch_size=5) as proxy:
        loader = proxy.loader(MyDataset(files, proxy.transform), num_workers=workers)
        batches = [(images.clone(), labels.tolist()) for images, labels in loader]
    assert [len(images) for images, _ in batches] == [5, 5, 2]
    assert [label for _, labels in batches for label in labels] == list(files.labels)
    seen = [image for images, _ in batches for image in images.numpy()]
    for image, right in zip(seen, expected, strict=True):
        assert isinstance(right, np.ndarray)
        # The graph repeats border pixels where Pillow renormalizes; the crop leaves most of the border out.
        comparison = compare(right, image, definition=DEFINITION, stage="normalize", backend="dali")
        assert comparison.share_above_one < 0.01
        assert comparison.mean < 0.5


@pytest.mark.slow
def test_a_bad_file_is_named_by_the_worker(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("no image")
    files = Files([*Files.from_folder(photos).paths[:2], tmp_path / "text.jpg"], [0, 0, 0])
    with DaliProxy(DEFINITION, batch_size=2) as proxy, pytest.raises(Exception, match=r"unsupported_format.*got text"):
        list(proxy.loader(MyDataset(files, proxy.transform)))


@pytest.mark.slow
def test_what_the_graph_cannot_do_is_refused() -> None:
    bicubic = Resize(mode="shorter", size=72, filter="bicubic")
    with pytest.raises(CannotCompile, match="bicubic"):
        DaliProxy(Definition(operations=(Decode(), bicubic, *DEFINITION.operations[2:])), batch_size=2)
    with pytest.raises(CannotCompile, match="depends on the image"):
        DaliProxy(DEFINITION.stage("resize"), batch_size=2)
    with DaliProxy(DEFINITION, batch_size=2) as proxy, pytest.raises(ValueError, match="num_workers of at least 1"):
        proxy.loader(MyDataset(Files([], []), None), num_workers=0)
