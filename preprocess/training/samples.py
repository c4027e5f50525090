"""Sources of training images: a folder, a file list, or bytes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch.utils.data

from onestream.preprocess.errors import BadDataset
from onestream.preprocess.headers.reader import Encoded

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp")
NO_LABEL = -1
"""The label of a sample that has none."""
_LARGEST_LABEL = 2**63 - 1
"""Batches hold int64."""


class Pictures(Protocol):
    """Encoded images in a fixed order. Reading must be safe from several threads."""

    classes: tuple[str, ...]
    """Names of the classes 0, 1, …; empty where they have none."""

    def __len__(self) -> int:
        """Number of samples."""
        ...

    def read(self, index: int) -> Encoded:
        """The bytes of a sample's image.

        Raises ``OSError`` where they cannot be read, ``BadSample`` where they must not be used.
        """
        ...

    def name(self, index: int) -> str:
        """The name of a sample, for messages."""
        ...


class Samples(Pictures, Protocol):
    """Encoded images with labels."""

    def label(self, index: int) -> int:
        """The label of a sample."""
        ...


class Files:
    """Image files with labels; see ``from_folder`` and ``from_list``."""

    def __init__(self, paths: Sequence[Path], labels: Sequence[int], classes: Sequence[str] = ()) -> None:
        self.paths = tuple(paths)
        if len(self.paths) != len(labels):
            raise BadDataset(f"{len(self.paths)} files have {len(labels)} labels")
        self.labels = tuple(class_label(label, path) for path, label in zip(self.paths, labels, strict=True))
        self.classes = tuple(classes)

    @classmethod
    def from_folder(cls, folder: Path) -> Files:
        """One folder of images per class, labelled in the order of their names; files in a flat folder have no label.

        Raises ``BadDataset`` where there is no such folder or no image in it.
        """
        if not folder.is_dir():
            raise BadDataset(f"{folder} is not a folder")
        classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
        found: list[tuple[Path, int]] = []
        if classes:
            for label, name in enumerate(classes):
                found += [(path, label) for path in image_files(folder / name)]
            loose = [path.name for path in folder.iterdir() if path.suffix.lower() in SUFFIXES]
            if loose:
                raise BadDataset(f"{folder} has folders of classes and images beside them, such as {loose[0]}")
        else:
            found = [(path, NO_LABEL) for path in image_files(folder)]
        if not found:
            raise BadDataset(f"no image in {folder}; expected files that end in {', '.join(SUFFIXES)}")
        return cls([path for path, _ in found], [label for _, label in found], classes)

    @classmethod
    def from_list(cls, file: Path) -> Files:
        """Lines of a path, a space or tab and a label; paths are relative to the list's folder, # starts a comment.

        Raises ``BadDataset`` naming the line where it is anything else.
        """
        paths, labels = [], []
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise BadDataset(f"{file} cannot be read as a list of images: {error}") from None
        for number, line in enumerate(lines, start=1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            path, _, label = line.strip().replace("\t", " ").rpartition(" ")
            if not path or not re.fullmatch(r"\d{1,18}", label, re.ASCII):
                raise BadDataset(f"{file} line {number}: expected a path and a label of 0 or more, got {line!r}")
            paths.append(file.parent / path.strip())
            labels.append(int(label))
        if not paths:
            raise BadDataset(f"{file} names no image")
        return cls(paths, labels)

    def __len__(self) -> int:
        """Number of files."""
        return len(self.paths)

    def read(self, index: int) -> Encoded:
        """See ``Samples.read``."""
        return self.paths[index].read_bytes()

    def label(self, index: int) -> int:
        """See ``Samples.label``."""
        return self.labels[index]

    def name(self, index: int) -> str:
        """The file's path."""
        return str(self.paths[index])


class InMemory:
    """Encoded images that are in memory already, with or without labels."""

    def __init__(self, items: Iterable[Encoded | tuple[Encoded, int]]) -> None:
        self.classes: tuple[str, ...] = ()
        self._items: list[tuple[Encoded, int]] = []
        for position, item in enumerate(items):
            image, label = item if isinstance(item, tuple) else (item, NO_LABEL)
            if not isinstance(image, bytes | bytearray | memoryview | np.ndarray):
                raise BadDataset(f"item {position} is {type(image).__name__}; expected bytes, or (bytes, label)")
            self._items.append((image, class_label(label, f"item {position}")))
        if not self._items:
            raise BadDataset("got no image")

    def __len__(self) -> int:
        """Number of images."""
        return len(self._items)

    def read(self, index: int) -> Encoded:
        """See ``Samples.read``."""
        return self._items[index][0]

    def label(self, index: int) -> int:
        """See ``Samples.label``."""
        return self._items[index][1]

    def name(self, index: int) -> str:
        """The position in the iterable."""
        return f"item {index}"


class Items(Protocol):
    """A ``torch.utils.data.Dataset`` whose items are (bytes or path, label)."""

    def __len__(self) -> int:
        """Number of items."""
        ...

    def __getitem__(self, index: int, /) -> tuple[Encoded | str | os.PathLike[str], int]:
        """The image and the label."""
        ...


class FromDataset:
    """The items of a ``torch.utils.data.Dataset``: (bytes or path, label), read when they are needed.

    Several threads ask it. A label comes with its item, which is asked for again where another process read it.
    """

    def __init__(self, dataset: Items) -> None:
        self.classes = tuple(getattr(dataset, "classes", ()))
        self._dataset, self._labels = dataset, dict[int, object]()

    def __len__(self) -> int:
        """Number of items."""
        return len(self._dataset)

    def read(self, index: int) -> Encoded:
        """See ``Samples.read``."""
        image, self._labels[index] = self._item(index)
        if isinstance(image, str | os.PathLike):
            return Path(image).read_bytes()
        if isinstance(image, bytes | bytearray | memoryview | np.ndarray):
            return image
        raise BadDataset(f"{self.name(index)} is {type(image).__name__}; expected (bytes, label) or (path, label)")

    def label(self, index: int) -> int:
        """See ``Samples.label``."""
        label = self._labels.pop(index) if index in self._labels else self._item(index)[1]
        return class_label(label, self.name(index))

    def name(self, index: int) -> str:
        """The position in the dataset."""
        return f"item {index} of {type(self._dataset).__name__}"

    def _item(self, index: int) -> tuple[Any, object]:
        item: Any = self._dataset[index]
        if not isinstance(item, tuple) or len(item) != 2:
            raise BadDataset(
                f"{self.name(index)} is {type(item).__name__}; expected (bytes, label) or (path, label), without a "
                "transform: the definition prepares images"
            )
        return item


Source = str | os.PathLike[str] | Samples | Items | Iterable[Encoded | tuple[Encoded, int]]
"""A folder, a file list, samples of one's own, a dataset of (bytes or path, label), or an iterable of bytes or
(bytes, label), which is kept in memory."""


def samples_of(source: Source) -> Samples:
    """The samples that a source stands for. Raises ``BadDataset`` naming what was seen and what is expected."""
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        return Files.from_list(path) if path.is_file() else Files.from_folder(path)
    if all(hasattr(source, name) for name in ("__len__", "read", "label", "name", "classes")):
        return source  # type: ignore[return-value]
    if isinstance(source, torch.utils.data.Dataset) and hasattr(source, "__len__"):
        return FromDataset(source)
    if isinstance(source, bytes | bytearray | memoryview | np.ndarray) or not isinstance(source, Iterable):
        raise BadDataset(f"got {type(source).__name__}; expected a folder, a file list, or an iterable of bytes")
    return InMemory(source)


def class_label(label: object, name: object) -> int:
    """The label of the sample ``name`` as int64. Raises ``BadDataset`` where that would change it."""
    try:
        number = int(label)  # type: ignore[call-overload]
        # The text of a number is none that changes.
        changes = not isinstance(label, str) and bool(number != label)
    except (TypeError, ValueError, OverflowError):
        number, changes = 0, True
    if changes or abs(number) > _LARGEST_LABEL:
        raise BadDataset(f"{name} has the label {str(label)[:60]}; expected a class, which is a whole number")
    return int(number)


def image_files(folder: Path) -> list[Path]:
    """The image files in a folder and those below it, in the order of their paths."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
