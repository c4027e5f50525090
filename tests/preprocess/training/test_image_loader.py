"""The image loader: what it gives is what serving computes, in every mode, and bad files never pass silently."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_sets import CLASSES, DEFINITION
from patience import threads_named

from onestream.preprocess import (
    BadDataset,
    BadSample,
    CannotCompile,
    Decode,
    Definition,
    Letterbox,
    Normalize,
    Output,
    Resize,
    compile,
)
from onestream.preprocess.tolerances import varied_tolerance
from onestream.preprocess.training import NO_LABEL, PADDING_LABEL, Augmentation, Batch, Files, ImageLoader

GRAY = Definition(
    operations=(
        Decode(color="gray"),
        Letterbox(size=(48, 64)),
        Normalize(mean=(0.4,), std=(0.3,)),
        Output(layout="NHWC"),
    )
)
BGR = Definition(
    operations=(
        Decode(color="bgr"),
        Letterbox(size=(48, 64)),
        Normalize(mean=(103.53, 116.28, 123.675), std=(57.375, 57.12, 58.395), scale=1),
    )
)
HALF = Definition(operations=(*DEFINITION.operations[:-1], Output(dtype="float16")))
BYTES = Definition(operations=(Decode(), Resize(mode="exact", size=(40, 44), filter="bicubic"), Output(dtype="uint8")))
KINDS = {"rgb": DEFINITION, "bgr": BGR, "gray": GRAY, "float16": HALF, "uint8": BYTES}
ON_GPU = torch.cuda.is_available()
STRONG = Augmentation(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)


def collect(loader: ImageLoader) -> tuple[np.ndarray, list[int], list[int]]:
    """Images, labels and indices of one epoch, in the order of the dataset."""
    batches = list(loader)
    images = np.concatenate([batch.images.numpy() for batch in batches])
    labels = [label for batch in batches for label in batch.labels.tolist()]
    indices = [index for batch in batches for index in batch.indices.tolist()]
    order = np.argsort(indices, kind="stable")
    return images[order], [labels[i] for i in order], [indices[i] for i in order]


@pytest.mark.parametrize("backend", ["dali", "reference"])
@pytest.mark.parametrize(
    "definition", [DEFINITION, BGR, GRAY, HALF, BYTES], ids=["rgb", "bgr", "gray", "float16", "uint8"]
)
def test_evaluation_is_bit_equal_to_what_serving_runs(photos: Path, definition: Definition, backend: Any) -> None:
    files = Files.from_folder(photos)
    served = compile(definition, backend=backend, max_batch_size=3).run([files.read(i) for i in range(len(files))])
    with ImageLoader(definition, photos, batch_size=5, backend=backend, threads=2) as loader:
        images, labels, indices = collect(loader)
        assert len(loader) == 5
        assert loader.classes == CLASSES
    assert indices == list(range(23))
    assert labels == list(files.labels)
    assert images.dtype == definition.output_spec.dtype
    for image, expected in zip(images, served, strict=True):
        np.testing.assert_array_equal(image, expected)


@pytest.mark.parametrize(
    "definition", [DEFINITION, BGR, GRAY, HALF, BYTES], ids=["rgb", "bgr", "gray", "float16", "uint8"]
)
@pytest.mark.parametrize("train", [False, True])
def test_normalizing_in_torch_gives_the_same_bits(photos: Path, definition: Definition, train: bool) -> None:
    given = []
    for normalize in ("backend", "torch"):
        with ImageLoader(definition, photos, batch_size=8, train=train, seed=4, normalize=normalize) as loader:  # type: ignore[arg-type]
            given.append(collect(loader)[0])
    assert given[0].dtype == given[1].dtype
    np.testing.assert_array_equal(given[0], given[1])


def test_training_images_depend_on_seed_and_epoch_only(photos: Path) -> None:
    def epoch(number: int, **options: Any) -> np.ndarray:
        with ImageLoader(DEFINITION, photos, train=True, seed=9, augmentation=STRONG, **options) as loader:
            loader.set_epoch(number)
            return collect(loader)[0]

    first = epoch(0, batch_size=4, threads=1)
    np.testing.assert_array_equal(first, epoch(0, batch_size=9, threads=3, shuffle=False))
    assert (first != epoch(1, batch_size=4)).mean() > 0.9
    parts = []
    for shard in range(2):
        with ImageLoader(
            DEFINITION, photos, batch_size=4, train=True, seed=9, augmentation=STRONG, shard_id=shard, num_shards=2
        ) as loader:
            parts += [
                (i, image)
                for batch in loader
                for i, image in zip(batch.indices.tolist(), batch.images.numpy(), strict=True)
            ]
    assert sorted(index for index, _ in parts) == list(range(23))
    for index, image in parts:
        np.testing.assert_array_equal(image, first[index])


def test_backends_agree_on_augmented_images(photos: Path) -> None:
    pixels = {}
    for backend in ("dali", "reference"):
        with ImageLoader(
            DEFINITION.pixels(),
            photos,
            batch_size=6,
            train=True,
            seed=2,
            augmentation=STRONG,
            backend=backend,  # type: ignore[arg-type]
        ) as loader:
            pixels[backend] = collect(loader)[0]
    assert varied_tolerance("dali", "colours").allows(pixels["dali"], pixels["reference"])


def test_each_loop_is_an_epoch_in_another_order(photos: Path) -> None:
    with ImageLoader(DEFINITION, photos, batch_size=23, train=True) as loader:
        orders = [[batch.indices.tolist() for batch in loader] for _ in range(2)]
        assert loader.epoch == 2
        loader.set_epoch(0)
        assert [batch.indices.tolist() for batch in loader] == orders[0]
    assert orders[0] != orders[1]


@pytest.mark.parametrize("backend", ["dali", "reference"])
def test_the_last_batch(photos: Path, backend: Any) -> None:
    def sizes(last_batch: Any) -> list[Batch]:
        with ImageLoader(DEFINITION, photos, batch_size=10, last_batch=last_batch, backend=backend) as loader:
            batches = list(loader)
            assert len(batches) == len(loader)
            return batches

    assert [len(batch.images) for batch in sizes("partial")] == [10, 10, 3]
    assert [len(batch.images) for batch in sizes("drop")] == [10, 10]
    padded = sizes("pad")
    assert [len(batch.images) for batch in padded] == [10, 10, 10]
    assert padded[-1].indices.tolist() == [20, 21, 22] + [-1] * 7
    assert padded[-1].labels.tolist()[3:] == [PADDING_LABEL] * 7
    assert torch.equal(padded[-1].images[3], padded[0].images[0])


@pytest.fixture
def with_bad_files(photos: Path, tmp_path: Path) -> Path:
    """The photos, of which 4 is cut short, 9 is text, and 11 is a link to nothing."""
    folder = tmp_path / "bad"
    shutil.copytree(photos, folder)
    paths = Files.from_folder(folder).paths
    paths[4].write_bytes(paths[4].read_bytes()[:-400])
    paths[9].write_text("no image")
    paths[11].unlink()
    paths[11].symlink_to(folder / "nothing.jpg")
    return folder


@pytest.mark.parametrize("backend", ["dali", "reference"])
@pytest.mark.parametrize("train", [False, True])
def test_bad_files_are_skipped_and_listed(with_bad_files: Path, photos: Path, backend: Any, train: bool) -> None:
    bad = Files.from_folder(photos)
    good = Files.from_list(listed(with_bad_files, bad))
    options: dict[str, Any] = {"batch_size": 6, "train": train, "shuffle": False, "backend": backend}
    with ImageLoader(DEFINITION, photos, **options) as loader:
        expected = collect(loader)[0]
    with ImageLoader(DEFINITION, good, bad_files="skip", **options) as loader:
        for _ in range(2):
            loader.set_epoch(0)
            images, _, indices = collect(loader)
            assert indices == [index for index in range(23) if index not in (4, 9, 11)]
            np.testing.assert_array_equal(images, expected[indices])
        assert [(one.index, Path(one.name).name) for one in loader.skipped] == [
            (index, bad.paths[index].name) for index in (4, 9, 11)
        ]
        assert "corrupt" in loader.skipped[0].reason
        assert "got text" in loader.skipped[1].reason
        assert loader.skipped[2].reason == "the file cannot be read: No such file or directory"


def listed(folder: Path, files: Files) -> Path:
    """A list of the files in ``folder``, with those that are links to nothing."""
    lines = [
        f"{path.relative_to(path.parents[1])} {label}" for path, label in zip(files.paths, files.labels, strict=True)
    ]
    (folder / "list.txt").write_text("# photos\n\n" + "\n".join(lines))
    return folder / "list.txt"


@pytest.mark.parametrize("last_batch", ["pad", "drop"])
def test_batches_keep_their_size_when_bad_files_are_skipped(
    with_bad_files: Path, photos: Path, last_batch: Any
) -> None:
    source = listed(with_bad_files, Files.from_folder(photos))
    with ImageLoader(DEFINITION, source, batch_size=6, bad_files="skip", last_batch=last_batch) as loader:
        first = next(iter(loader))
    assert first.indices.tolist() == [0, 1, 2, 3, -1, 5]
    assert first.labels[4] == PADDING_LABEL
    assert torch.equal(first.images[4], first.images[0])


@pytest.mark.parametrize("backend", ["dali", "reference"])
def test_a_bad_file_ends_the_epoch_with_its_name(with_bad_files: Path, photos: Path, backend: Any) -> None:
    files = Files.from_folder(photos)
    source = listed(with_bad_files, files)
    with ImageLoader(DEFINITION, source, batch_size=6, backend=backend) as loader:
        with pytest.raises(BadSample, match=rf"{files.paths[4].name}: bad image \(corrupt\)"):
            list(loader)
        loader.set_epoch(0)
        with pytest.raises(BadSample):
            next(iter(loader))


@pytest.mark.parametrize("last_batch", ["partial", "pad", "drop"])
@pytest.mark.parametrize("backend", ["dali", "reference"])
def test_a_batch_of_bad_files_only_is_left_out(photos: Path, backend: Any, last_batch: Any) -> None:
    files = Files.from_folder(photos)
    good = [files.read(index) for index in range(3)]
    source = [b"no", b"image", good[0], good[1], b"text", b"", good[2], b"no"]
    options: dict[str, Any] = {"bad_files": "skip", "last_batch": last_batch, "backend": backend, "threads": 2}
    for batch_size in (1, 2):
        with ImageLoader(DEFINITION, source, batch_size=batch_size, **options) as loader:
            for _ in range(2):
                batches = list(loader)
                seen = [index for batch in batches for index in batch.indices.tolist() if index >= 0]
                assert seen == [2, 3, 6]
                assert all((batch.indices >= 0).any() for batch in batches)
                sizes = {len(batch.images) for batch in batches}
                assert sizes == {batch_size} or (last_batch == "partial" and sizes == {1, 2})
            assert [one.index for one in loader.skipped] == [0, 1, 4, 5, 7]


@pytest.mark.parametrize("last_batch", ["partial", "pad", "drop"])
def test_shards_stay_in_step_over_batches_of_bad_files(photos: Path, last_batch: Any) -> None:
    files = Files.from_folder(photos)
    good = [files.read(index) for index in range(4)]
    source = [good[0], b"no", good[1], b"image", good[2], good[3], good[0], good[1]]
    found = []
    for shard in range(2):
        options: dict[str, Any] = {"last_batch": last_batch, "shard_id": shard, "num_shards": 2}
        with ImageLoader(DEFINITION, source, batch_size=2, bad_files="skip", **options) as loader:
            batches = list(loader)
            assert len(batches) == len(loader) == 2
            found.append([batch.indices.tolist() for batch in batches])
    assert found == [[[0, 2], [4, 6]], [[-1, -1], [5, 7]]]
    padding = batches[0]
    assert padding.labels.tolist() == [PADDING_LABEL] * 2
    assert not padding.images.any()


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("last_batch", ["partial", "pad"])
def test_an_epoch_of_bad_files_only_is_an_error_even_when_skipping(shards: int, last_batch: Any) -> None:
    source = [b"no", b"image", b"at", b"all", b"here", b"."]
    options: dict[str, Any] = {"last_batch": last_batch, "shard_id": 0, "num_shards": shards}
    with (
        ImageLoader(DEFINITION, source, batch_size=4, bad_files="skip", **options) as loader,
        pytest.raises(BadSample, match=rf"all {6 // shards} images of the epoch are bad, the first is item 0: bad"),
    ):
        list(loader)


def test_bytes_with_and_without_labels(photos: Path) -> None:
    files = Files.from_folder(photos)
    encoded = [files.read(index) for index in range(3)]
    with ImageLoader(DEFINITION, ((image, 7) for image in encoded), batch_size=3) as labelled:
        (first,) = labelled
        (again,) = labelled
    with ImageLoader(DEFINITION, encoded, batch_size=3) as plain:
        (second,) = plain
    assert first.labels.tolist() == [7, 7, 7]
    assert second.labels.tolist() == [NO_LABEL] * 3
    assert torch.equal(first.images, second.images)
    assert torch.equal(first.images, again.images)


def test_an_epoch_that_is_left_early_leaves_nothing_behind(photos: Path) -> None:
    before = threads_named("onestream-loader")
    loader = ImageLoader(DEFINITION, photos, batch_size=2, threads=2, prefetch=4)
    expected = next(iter(loader)).images
    for _ in range(3):
        assert torch.equal(next(iter(loader)).images, expected)
    loader.reset()
    assert len(list(loader)) == 12
    loader.close()
    loader.close()
    assert threads_named("onestream-loader") <= before


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1"),
        ({"augmentation": Augmentation()}, ValueError, "augmentation needs train=True"),
        ({"normalize": "gpu"}, ValueError, "normalize must be 'backend' or 'torch', got 'gpu'"),
        ({"bad_files": "ignore"}, ValueError, "'fail' or 'skip', got 'ignore'"),
        ({"seed": -1}, ValueError, "seed must be 0 or more, got -1"),
        ({"prefetch": 0}, ValueError, "at least 1, got 0"),
        ({"shard_id": 1}, ValueError, "give both shard_id and num_shards"),
        ({"source": "/no/such/folder"}, BadDataset, "/no/such/folder is not a folder"),
        ({"source": b"bytes"}, BadDataset, "got bytes; expected a folder"),
        ({"source": []}, BadDataset, "got no image"),
        ({"source": [1, 2]}, BadDataset, "item 0 is int; expected bytes"),
        ({"definition": DEFINITION.stage("resize")}, CannotCompile, "output size depends on the image"),
        pytest.param(
            {"to": "cuda"}, ValueError, "PyTorch sees no CUDA device", marks=pytest.mark.skipif(ON_GPU, reason="a GPU")
        ),
        pytest.param(
            {"device": "gpu"}, CannotCompile, "no NVIDIA driver", marks=pytest.mark.skipif(ON_GPU, reason="a GPU")
        ),
        ({"backend": "reference", "device": "gpu"}, CannotCompile, "runs on the device 'cpu' only"),
        ({"backend": "opencv"}, CannotCompile, "unknown backend 'opencv'"),
    ],
)
def test_wrong_options_are_refused(photos: Path, options: dict[str, Any], error: type[Exception], message: str) -> None:
    given = {"definition": DEFINITION, "source": photos, "batch_size": 4, **options}
    with pytest.raises(error, match=message):
        ImageLoader(**given)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.jpg", "line 1: expected a path and a label"),
        ("a.jpg 1\nb.jpg x", "line 2: expected a path and a label"),
        ("# nothing\n", "names no image"),
    ],
)
def test_a_wrong_list_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "list.txt").write_text(text)
    with pytest.raises(BadDataset, match=message):
        Files.from_list(tmp_path / "list.txt")


def test_a_folder_with_classes_and_loose_images_is_refused(photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos, tmp_path / "mixed")
    shutil.copy(Files.from_folder(photos).paths[0], tmp_path / "mixed" / "loose.jpg")
    with pytest.raises(BadDataset, match=r"images beside them, such as loose\.jpg"):
        Files.from_folder(tmp_path / "mixed")
    assert Files.from_folder(photos / CLASSES[0]).labels == (NO_LABEL,) * 8


@pytest.mark.needs_gpu
@pytest.mark.parametrize("normalize", ["backend", "torch"])
def test_a_gpu_gets_what_the_cpu_computes(photos: Path, normalize: Any) -> None:
    with ImageLoader(DEFINITION, photos, batch_size=6, train=True, seed=1) as loader:
        expected = collect(loader)[0]
    with ImageLoader(
        DEFINITION, photos, batch_size=6, train=True, seed=1, to="cuda", normalize=normalize, pin_memory=True
    ) as loader:
        batches = [Batch(*(tensor.cpu() for tensor in batch)) for batch in loader]
    order = np.argsort([index for batch in batches for index in batch.indices.tolist()])
    np.testing.assert_array_equal(np.concatenate([batch.images.numpy() for batch in batches])[order], expected)


@pytest.mark.needs_gpu
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("backend", ["dali", "cvcuda"])
def test_a_gpu_agrees_with_the_reference(photos: Path, train: bool, backend: Any) -> None:
    options: dict[str, Any] = {"batch_size": 6, "train": train, "seed": 1}
    with ImageLoader(DEFINITION.pixels(), photos, backend="reference", **options) as loader:
        expected = collect(loader)[0].astype(int)
    with ImageLoader(DEFINITION.pixels(), photos, backend=backend, device="gpu", **options) as loader:
        batches = [Batch(*(tensor.cpu() for tensor in batch)) for batch in loader]
    order = np.argsort([index for batch in batches for index in batch.indices.tolist()])
    seen = np.concatenate([batch.images.numpy() for batch in batches])[order].astype(int)
    # nvJPEG's own inverse transform and chroma filter: a level or two on photos (not measured yet).
    assert np.abs(seen - expected).mean() < 1
