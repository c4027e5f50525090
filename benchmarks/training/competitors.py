"""Loaders that are compared, each as most people write it: a PyTorch ``DataLoader`` with a Pillow or OpenCV dataset."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from onestream.preprocess import CenterCrop, Decode, Definition, Normalize, Output, Resize
from onestream.preprocess.training import Files, ImageLoader

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLASSIFY = Definition(
    operations=(
        Decode(),
        Resize(mode="shorter", size=256),
        CenterCrop(size=(224, 224)),
        Normalize(mean=MEAN, std=STD),
    )
)
SIDE = 640
WHOLE = Definition(operations=(Decode(), Resize(mode="exact", size=(SIDE, SIDE)), Output(layout="NHWC", dtype="uint8")))
"""Resized to 640x640 without a crop, as public comparisons of DALI and OpenCV do."""

BATCH = 32


class PillowDataset(Dataset[torch.Tensor]):  # type: ignore[misc]
    """Pillow and NumPy: what torchvision's evaluation transforms do to a PIL image."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        """Number of files."""
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        """float32 (3, 224, 224)."""
        image = Image.open(self.paths[index]).convert("RGB")
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
