"""``python -m benchmarks.training.augmented``: random chains, ours against torchvision's in a ``DataLoader``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from benchmarks.photos import SIZES, PhotosMissing, Size, photo_set
from benchmarks.report.others import augmentation
from benchmarks.result_files import ROOT, add_out, begin, path_in, write
from benchmarks.results import AUGMENTATION, CaseResult, LoaderResults
from benchmarks.training import measure
from benchmarks.training.measure import BATCH, MEAN, STD, TransformDataset, our_loader, plain_loader
from onestream.preprocess import Decode, Definition, Normalize, Resize
from onestream.preprocess.interop.libraries import load
from onestream.preprocess.interop.torchvision_training import augmentation_from_torchvision
from onestream.preprocess.training import Augmentation, DetectionFiles, DetectionLoader, DetectionSample
from onestream.serving.server.fit import usable_cores

# Beside a PyTorch without CUDA, torchvision must be loaded with care; its transforms need none of its operators.
v2, tv_tensors = load("torchvision.transforms.v2"), load("torchvision.tv_tensors")

CACHE = ROOT / ".cache" / "benchmarks"
REPEAT: dict[Size, int] = {"500x375": 80, "1920x1080": 24}
QUICK_REPEAT, QUICK_ROUNDS = 4, 2
CLASSIFY_SIDE, DETECT_SIDE = 224, 320
BOXES, CLASSES, SEED = 5, 3, 7
CLOSE_ENOUGH = 0.1
"""In standard deviations of a pixel: a step that is missing or normalizes otherwise changes a mean by more.

Half of it is that torchvision turns a cut picture before black, and ours shows what was cut off.
"""
_PACKAGES = ("torch", "torchvision", "nvidia-dali-cuda120", "pillow", "numpy")

TO_TENSOR = (v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD))
TRIVIAL = v2.Compose(
    [
        v2.RandomResizedCrop(CLASSIFY_SIDE),
        v2.RandomHorizontalFlip(),
        v2.TrivialAugmentWide(),
        *TO_TENSOR,
        v2.RandomErasing(0.1),
    ]
)
"""torchvision's own recipe for ImageNet (its references/classification), on PIL images."""
VARY_BOXED = (
    v2.RandomResizedCrop(DETECT_SIDE, scale=(0.3, 1.0)),
    v2.RandomHorizontalFlip(),
    v2.ColorJitter(0.4, 0.4, 0.4),
)
DETECT = v2.Compose([*VARY_BOXED, *TO_TENSOR, v2.SanitizeBoundingBoxes()])
PART, WHOLE = v2.Compose(VARY_BOXED), v2.Compose([*TO_TENSOR, v2.SanitizeBoundingBoxes()])
MIDDLE, SCALE = (0.25, 0.75), (0.5, 1.5)
"""Of a mosaic, as ours draws them: shares of the canvas at which four pictures meet, and how large they are."""


class Boxed(NamedTuple):
    """A batch of pictures, and the boxes of each."""

    images: torch.Tensor
    boxes: list[torch.Tensor]


class BoxedDataset(Dataset[Any]):  # type: ignore[misc]
    """torchvision's transforms of a PIL image with its boxes, as its documentation composes them."""

    def __init__(self, samples: Sequence[DetectionSample]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        """Number of pictures."""
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """float32 (3, side, side) and boxes (n, 4)."""
        image, target = DETECT(*self.opened(index))
        return image, target["boxes"].as_subclass(torch.Tensor)

    def opened(self, index: int) -> tuple[Image.Image, dict[str, Any]]:
        """A decoded picture and its boxes."""
        sample = self.samples[index]
        boxes = tv_tensors.BoundingBoxes(sample.boxes, format="XYXY", canvas_size=sample.size_hw)
        target = {"boxes": boxes, "labels": torch.from_numpy(sample.class_ids)}
        return Image.open(sample.path).convert("RGB"), target


class MosaicDataset(BoxedDataset):
    """A mosaic of four pictures with their boxes, as people write it around torchvision's transforms."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """float32 (3, side, side) and boxes (n, 4)."""
        x, y = (round(DETECT_SIDE * _uniform(MIDDLE)) for _ in range(2))
        size = round(DETECT_SIDE * _uniform(SCALE))
        canvas = Image.new("RGB", (DETECT_SIDE, DETECT_SIDE))
        boxes, labels = [], []
        indices = [index, *torch.randint(len(self.samples), (3,)).tolist()]
        corners = ((x - size, y - size), (x, y - size), (x - size, y), (x, y))
        for one, (left, top) in zip(indices, corners, strict=True):
            image, target = PART(*self.opened(one))
            image = image.resize((size, size), Image.Resampling.BILINEAR)
            first = max(0, left), max(0, top)
            last = min(DETECT_SIDE, left + size), min(DETECT_SIDE, top + size)
            canvas.paste(image.crop((first[0] - left, first[1] - top, last[0] - left, last[1] - top)), first)
            moved = target["boxes"].as_subclass(torch.Tensor) * (size / DETECT_SIDE) + torch.tensor([left, top] * 2)
            boxes.append(torch.minimum(torch.maximum(moved, torch.tensor(first * 2)), torch.tensor(last * 2)))
            labels.append(target["labels"])
        found = tv_tensors.BoundingBoxes(torch.cat(boxes), format="XYXY", canvas_size=(DETECT_SIDE, DETECT_SIDE))
        whole, target = WHOLE(canvas, {"boxes": found, "labels": torch.cat(labels)})
        return whole, target["boxes"].as_subclass(torch.Tensor)


def _uniform(ends: tuple[float, float]) -> float:
    return float(torch.empty(1).uniform_(*ends))


def collate(samples: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Boxed:
    """A batch, whose pictures have different numbers of boxes."""
    return Boxed(torch.stack([image for image, _ in samples]), [boxes for _, boxes in samples])


def definition(side: int) -> Definition:
    """What brings our pictures to the same canvas, and normalizes them."""
    return Definition(operations=(Decode(), Resize(mode="exact", size=(side, side)), Normalize(mean=MEAN, std=STD)))


def boxed(paths: Sequence[Path]) -> list[DetectionSample]:
    """Each picture with the same number of boxes, at random places and of random sizes."""
    random, found = np.random.default_rng(SEED), []
    for path in paths:
        with Image.open(path) as image:
            width, height = image.size
        sides = random.uniform(0.1, 0.5, (BOXES, 2))
        starts = random.uniform(0, 1 - sides)
        boxes = (np.hstack([starts, starts + sides]) * (width, height, width, height)).astype(np.float32)
        found.append(DetectionSample(path, (height, width), boxes, random.integers(CLASSES, size=BOXES)))
    return found


def cases() -> list[measure.Case]:
    """What is compared. Our chains are torchvision's, imported, so that both draw the same."""
    trivial = augmentation_from_torchvision(TRIVIAL).augmentation
    # torchvision drops a box that is not seen at all.
    detect = Augmentation(augmentation_from_torchvision(DETECT).augmentation.operations, min_visible=0)
    mosaic = Augmentation([*detect.operations, {"op": "mosaic", "middle": MIDDLE, "scale": SCALE}], min_visible=0)

    def of_boxes(chain: Augmentation, theirs: type[BoxedDataset]) -> dict[str, measure.MakeLoader]:
        def ours(paths: Sequence[Path], workers: int) -> DetectionLoader:
            files = DetectionFiles(boxed(paths), [str(number) for number in range(CLASSES)])
            return DetectionLoader(
                definition(DETECT_SIDE), files, batch_size=BATCH, threads=workers, train=True, augmentation=chain
            )

        def torchvisions(paths: Sequence[Path], workers: int) -> DataLoader[Any]:
            return DataLoader(
                theirs(boxed(paths)), batch_size=BATCH, num_workers=workers, persistent_workers=True, collate_fn=collate
            )

        return {"ours": ours, "torchvision": torchvisions}

    return [
        measure.Case(
            "TrivialAugment",
            {
                "ours": lambda paths, workers: our_loader(
                    definition(CLASSIFY_SIDE), paths, workers=workers, train=True, augmentation=trivial
                ),
                "torchvision": lambda paths, workers: plain_loader(TransformDataset(paths, TRIVIAL), workers=workers),
            },
            close_enough=CLOSE_ENOUGH,
            seen=statistics,
        ),
        measure.Case("pictures with boxes", of_boxes(detect, BoxedDataset), close_enough=CLOSE_ENOUGH, seen=statistics),
        measure.Case("mosaics with boxes", of_boxes(mosaic, MosaicDataset), close_enough=CLOSE_ENOUGH, seen=statistics),
    ]


def statistics(batches: Iterable[Any]) -> npt.NDArray[np.float32]:
    """What two loaders must have in common whose draws are their own: each channel's mean and standard deviation.

    Of pictures with boxes also how many each has, divided by how many it had.
    """
    sums, squares, pixels, boxes, pictures = np.zeros(3), np.zeros(3), 0, 0, 0
    for batch in batches:
        images = batch if isinstance(batch, torch.Tensor) else batch.images
        values = images.double()
        sums += values.sum(dim=(0, 2, 3)).numpy()
        squares += values.square().sum(dim=(0, 2, 3)).numpy()
        pixels += values[:, 0].numel()
        pictures += len(images)
        boxes += sum(map(len, getattr(batch, "boxes", ())))
    means = sums / pixels
    return np.array([*means, *np.sqrt(squares / pixels - means**2), boxes / pictures / BOXES], np.float32)


def main() -> int:
    """Run; returns the exit status."""
    options = _options()
    rounds = QUICK_ROUNDS if options.quick else options.rounds
    workers, about, found = usable_cores(), begin(_PACKAGES), []
    try:
        for size in SIZES:
            repeat = QUICK_REPEAT if options.quick else REPEAT[size]
            photos = photo_set(size, folder=CACHE / "photos")
            files = measure.files(CACHE / "training" / size, photos.contents, repeat=repeat)
            for case in cases():
                print(f"{size}, {case.name}")
                differences = measure.differences(case, files.paths, workers)
                rates = measure.rounds(case, files.paths, workers, count=rounds, progress=print)
                found.append(
                    CaseResult(
                        name=case.name, size=size, images=len(files), images_per_s=rates, differences=differences
                    )
                )
    except (PhotosMissing, ValueError) as error:
        print(f"benchmarks.training.augmented: {error}", file=sys.stderr)
        return 1
    results = LoaderResults(
        **about.model_dump(),
        workers=workers,
        rounds=rounds,
        cases=found,
    )
    # A quick run does not replace published results.
    folder = options.out or (CACHE / "results" if options.quick else None)
    path = path_in(folder, results.machine.slug, AUGMENTATION)
    write(path, results)
    print(augmentation(results))
    print(f"written to {path}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training.augmented", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a minute, for a first look; writes into .cache")
    add_out(parser)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
