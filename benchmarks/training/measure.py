"""Measures loaders by turns: an epoch of each in every round, and first that their pictures agree."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.training.competitors import (
    CLASSIFY,
    WHOLE,
    OpenCvDataset,
    PillowDataset,
    TransformDataset,
    images_of,
    our_loader,
    plain_loader,
)
from benchmarks.training.results import Parity
from onestream.preprocess import BadImage, compile
from onestream.preprocess.backends.base import BackendName
from onestream.preprocess.training import Files
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.pipeline import Pipeline

Loader = Iterable[Any]
MakeLoader = Callable[[Sequence[Path], int], Loader]
BACKENDS: tuple[BackendName, BackendName] = ("reference", "dali")


def pictures(batches: Loader) -> np.ndarray[Any, Any]:
    """All images of an epoch, in their order."""
    seen: np.ndarray[Any, Any] = np.concatenate([images.numpy() for images in images_of(batches)])
    return seen.astype(np.float32)


@dataclass(frozen=True, slots=True)
class Case:
    """Loaders that do the same work.

    ``seen`` is what is compared of an epoch's batches; ``close_enough`` bounds the mean difference from the first.
    """

    name: str
    loaders: dict[str, MakeLoader]
    close_enough: float
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
    # A level of 255, over the smallest standard deviation, is 0.018; the two resizes differ in a tenth of the values.
    return [
        Case("resize 256, crop 224, normalize", classify, close_enough=0.01),
        # OpenCV does not antialias, so its pictures differ by several levels wherever they are shrunk.
        Case("resize 640, no crop", whole, close_enough=8.0),
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
            v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
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
        names = list(loaders)
        for name in names[index % len(names) :] + names[: index % len(names)]:
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
    best = [next(iter(engine.run(one).values())).argmax(axis=1) for one in pixels]
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
