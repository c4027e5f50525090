"""Loaders by turns: first that their pictures agree, then an epoch of each in every round.

Others are as most people write them: a PyTorch ``DataLoader`` with a Pillow or OpenCV dataset.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from benchmarks.photos import PHONE, SIZES, Size
from benchmarks.results import Parity
from benchmarks.rounds import rotated
from onestream.preprocess import BadImage, CenterCrop, Decode, Definition, Normalize, Output, Resize, compile
from onestream.preprocess.backends.base import BackendName
from onestream.preprocess.training import Files, ImageLoader
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.pipeline import Pipeline
from onestream.wire.tensor_names import PIXELS

Loader = Iterable[Any]
MakeLoader = Callable[[Sequence[Path], int], Loader]
BACKENDS: tuple[BackendName, BackendName] = ("reference", "dali")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLASSIFY = Definition(
    operations=(
        Decode(),
        Resize(mode="shorter", size=256),
        CenterCrop(size=(224, 224)),
        Normalize(mean=MEAN, std=STD),
    )
)
SCALED = Definition(operations=(Decode(dct_scaling=True), *CLASSIFY.operations[1:]))
SIDE = 640
WHOLE = Definition(operations=(Decode(), Resize(mode="exact", size=(SIDE, SIDE)), Output(layout="NHWC", dtype="uint8")))
"""Resized to 640x640 without a crop, as public comparisons of DALI and OpenCV do."""

BATCH = 32


class PillowDataset(Dataset[torch.Tensor]):  # type: ignore[misc]
    """Pillow and NumPy: what torchvision's evaluation transforms do to a PIL image; ``scaled`` uses ``Image.draft``."""

    def __init__(self, paths: Sequence[Path], *, scaled: bool = False) -> None:
        self.paths, self.scaled = paths, scaled

    def __len__(self) -> int:
        """Number of files."""
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        """float32 (3, 224, 224)."""
        opened = Image.open(self.paths[index])
        if self.scaled:
            opened.draft("RGB", (512, 512))  # twice the size after the resize, as for ``dct_scaling``
        image: Image.Image = opened.convert("RGB")
        shorter = min(image.size)
        image = image.resize((image.width * 256 // shorter, image.height * 256 // shorter), Image.Resampling.BILINEAR)
        left, top = round((image.width - 224) / 2), round((image.height - 224) / 2)
        image = image.crop((left, top, left + 224, top + 224))
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).to(torch.float32).div_(255)
        return pixels.sub_(_column(MEAN)).div_(_column(STD))


class TransformDataset(Dataset[torch.Tensor]):  # type: ignore[misc]
    """torchvision's own transforms, as its documentation composes them."""

    def __init__(self, paths: Sequence[Path], transform: Any) -> None:
        self.paths, self.transform = paths, transform

    def __len__(self) -> int:
        """Number of files."""
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        """float32 (3, 224, 224)."""
        image: torch.Tensor = self.transform(Image.open(self.paths[index]).convert("RGB"))
        return image


class OpenCvDataset(Dataset[torch.Tensor]):  # type: ignore[misc]
    """OpenCV: read, resize to 640x640 (no antialiasing), RGB."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        """Number of files."""
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        """uint8 (640, 640, 3)."""
        import cv2

        cv2.setNumThreads(1)
        image = cv2.resize(cv2.imread(str(self.paths[index])), (SIDE, SIDE))
        return torch.from_numpy(cv2.cvtColor(image, cv2.COLOR_BGR2RGB))


def plain_loader(dataset: Dataset[torch.Tensor], *, workers: int) -> DataLoader[torch.Tensor]:
    """A ``DataLoader`` with one process per core that live on between epochs."""
    return DataLoader(dataset, batch_size=BATCH, num_workers=workers, persistent_workers=True)


def our_loader(definition: Definition, paths: Sequence[Path], *, workers: int, **options: Any) -> ImageLoader:
    """Our loader on as many threads."""
    files = Files(paths, [0] * len(paths))
    return ImageLoader(definition, files, batch_size=BATCH, threads=workers, **options)


def images_of(batches: Iterable[Any]) -> Iterable[torch.Tensor]:
    """The images of each batch of any of these loaders."""
    return (batch if isinstance(batch, torch.Tensor) else batch.images for batch in batches)


def _column(values: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor(values)[:, None, None]


def pictures(batches: Loader) -> np.ndarray[Any, Any]:
    """All images of an epoch, in their order."""
    seen: np.ndarray[Any, Any] = np.concatenate([images.numpy() for images in images_of(batches)])
    return seen.astype(np.float32)


@dataclass(frozen=True, slots=True)
class Case:
    """Loaders that do the same work.

    ``seen`` is what is compared of an epoch's batches; ``close_enough`` bounds the mean difference from the first. They
    are measured with photos of the ``sizes``.
    """

    name: str
    loaders: dict[str, MakeLoader]
    close_enough: float
    sizes: tuple[Size, ...] = SIZES
    seen: Callable[[Loader], np.ndarray[Any, Any]] = pictures


def cases(transform: Any | None) -> list[Case]:
    """What is compared; ``transform`` is torchvision's composition, None where torchvision is not installed."""
    classify: dict[str, MakeLoader] = {
        "ours": lambda paths, workers: our_loader(CLASSIFY, paths, workers=workers),
        "ours, normalized in torch": lambda paths, workers: our_loader(
            CLASSIFY, paths, workers=workers, normalize="torch"
        ),
        "Pillow": lambda paths, workers: plain_loader(PillowDataset(paths), workers=workers),
    }
    if transform is not None:
        classify["torchvision"] = lambda paths, workers: plain_loader(
            TransformDataset(paths, transform), workers=workers
        )
    whole: dict[str, MakeLoader] = {
        "ours": lambda paths, workers: our_loader(WHOLE, paths, workers=workers),
        "OpenCV": lambda paths, workers: plain_loader(OpenCvDataset(paths), workers=workers),
    }
    scaled: dict[str, MakeLoader] = {
        "ours": lambda paths, workers: our_loader(SCALED, paths, workers=workers),
        "whole decoding": classify["ours"],
        "Pillow with draft": lambda paths, workers: plain_loader(PillowDataset(paths, scaled=True), workers=workers),
        "Pillow": classify["Pillow"],
    }
    # A level of 255, over the smallest standard deviation, is 0.018; the two resizes differ in a tenth of the values.
    return [
        Case("resize 256, crop 224, normalize", classify, close_enough=0.01),
        # OpenCV does not antialias, so its pictures differ by several levels wherever they are shrunk.
        Case("resize 640, no crop", whole, close_enough=8.0),
        # Half a level on average.
        Case("resize 256, crop 224, normalize, dct_scaling", scaled, close_enough=0.01, sizes=(SIZES[-1], PHONE)),
    ]


def torchvision_transform() -> Any | None:
    """torchvision's evaluation transforms of the same definition; None where it is not installed."""
    try:
        from torchvision.transforms import v2
    except (ImportError, RuntimeError):
        return None
    return v2.Compose(
        [
            v2.Resize(256),
            v2.CenterCrop(224),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )


def differences(case: Case, paths: Sequence[Path], workers: int) -> dict[str, float]:
    """Mean difference of what is seen of each loader from what is seen of the first.

    Raises ``ValueError`` naming the loader that is not close enough.
    """
    torch.manual_seed(0)
    found: dict[str, float] = {}
    expected: np.ndarray[Any, Any] | None = None
    for name, make in case.loaders.items():
        loader = make(paths, workers)
        seen = case.seen(loader)
        _close(loader)
        expected = seen if expected is None else expected
        if seen.shape != expected.shape:
            raise ValueError(f"{case.name}: {name} gives {seen.shape}, expected {expected.shape}")
        found[name] = float(np.abs(seen - expected).mean())
        if found[name] > case.close_enough:
            raise ValueError(
                f"{case.name}: {name} differs by {found[name]:.3g}, at most {case.close_enough} is allowed"
            )
    return found


def rounds(
    case: Case, paths: Sequence[Path], workers: int, *, count: int, progress: Callable[[str], None]
) -> dict[str, list[float]]:
    """Images per second of each loader, by round. The workers are started, and one epoch is run, before."""
    loaders = {name: make(paths, workers) for name, make in case.loaders.items()}
    for loader in loaders.values():
        _epoch(loader)
    found: dict[str, list[float]] = {name: [] for name in loaders}
    for index in range(count):
        for name in rotated([*loaders], index):
            began = time.perf_counter()
            images = _epoch(loaders[name])
            found[name].append(images / (time.perf_counter() - began))
            progress(f"  {name:<26}{found[name][-1]:8.1f} images/s")
    for loader in loaders.values():
        _close(loader)
    return found


def share_equal_to_serving(pipeline: Pipeline, paths: Sequence[Path]) -> float:
    """Share of the images for which the loader gives, bit by bit, what the served definition computes."""
    definition = pipeline.preprocess
    served = compile(definition, backend="dali", max_batch_size=4).run([path.read_bytes() for path in paths])
    loader = our_loader(definition, paths, workers=2)
    loaded = torch.cat(list(images_of(loader))).numpy()
    _close(loader)
    equal = [
        not isinstance(one, BadImage) and bool((one == other).all()) for one, other in zip(served, loaded, strict=True)
    ]
    return sum(equal) / len(equal)


def parity(pipeline: Pipeline, network: Path, paths: Sequence[Path]) -> Parity:
    """DALI on the CPU against the reference after the crop, and whether the network's best class changes."""
    contents = [path.read_bytes() for path in paths]
    engine = OnnxRuntimeEngine(network, threads=0)
    pixels: list[np.ndarray[Any, Any]] = []
    for backend in BACKENDS:
        compiled = compile(pipeline.preprocess.pixels(), backend=backend, limits=pipeline.limits)
        pixels.append(np.stack([one for one in compiled.run(contents) if not isinstance(one, BadImage)]))
    difference = np.abs(pixels[0].astype(int) - pixels[1].astype(int))
    best = [next(iter(engine.run({PIXELS: one}).values())).argmax(axis=1) for one in pixels]
    return Parity(
        images=len(paths),
        largest_level=int(difference.max()),
        share_equal=float((difference == 0).mean()),
        share_within_one=float((difference <= 1).mean()),
        flipped=int((best[0] != best[1]).sum()),
    )


def files(folder: Path, contents: Sequence[bytes], *, repeat: int) -> Files:
    """Write the photos, and list each ``repeat`` times."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, content in enumerate(contents):
        path = folder / f"{number:03}.jpg"
        if not path.exists():
            path.write_bytes(content)
        paths.append(path)
    return Files(paths * repeat, [0] * (len(paths) * repeat))


def _epoch(loader: Loader) -> int:
    return sum(len(images) for images in images_of(loader))


def _close(loader: Loader) -> None:
    close = getattr(loader, "close", None)
    if close is not None:
        close()
