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
from onestream.preprocess.storage import remote
from onestream.preprocess.storage.files import read_file
from onestream.preprocess.training.sources.labels import (
    NO_LABEL,
    Label,
    LabelKind,
    Labels,
    class_label,
    class_labels,
    labels_like,
)
from onestream.preprocess.training.sources.paths import Paths, entries_behind, files_below

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp")


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
    """Encoded images with labels.

    These are class numbers unless there is an attribute ``kind``, a ``Labels`` other than None.
    """

    def label(self, index: int) -> Any:
        """The label of a sample."""
        ...


class Files:
    """Image files, at paths or addresses, with labels; see ``from_folder``, ``from_list`` and ``read_labels``.

    ``kind`` is how labels are read, None as class numbers.
    """

    def __init__(
        self,
        paths: Iterable[str | os.PathLike[str]],
        labels: Sequence[Any],
        classes: Sequence[str] = (),
        *,
        kind: Labels | None = None,
    ) -> None:
        self.paths = Paths(paths)
        if len(self.paths) != len(labels):
            raise BadDataset(f"{len(self.paths)} files have {len(labels)} labels")
        self.labels: tuple[Label, ...]
        if kind is None:
            self.labels = class_labels(labels, self.name)
        else:
            self.labels = tuple(kind.value(label, self.name(index)) for index, label in enumerate(labels))
        self.classes, self.kind = tuple(classes), kind

    @classmethod
    def from_folder(cls, folder: str | os.PathLike[str]) -> Files:
        """One folder of images per class, labelled in the order of their names; files in a flat folder have no label.

        The folder is a path or an address. Raises ``BadDataset`` where there is no such folder or no image in it.
        """
        classes, loose = _inside(os.fspath(folder))
        found: list[str] = []
        labels: list[int] = []
        for label, below in enumerate(classes.values()):
            found += files_below(below, SUFFIXES)
            labels += [label] * (len(found) - len(labels))
        if classes and loose:
            raise BadDataset(f"{folder} has folders of classes and images beside them, such as {loose[0]}")
        if not classes:
            found += files_below(folder, SUFFIXES)
            labels += [NO_LABEL] * len(found)
        if not found:
            raise BadDataset(f"no image in {folder}; expected files that end in {', '.join(SUFFIXES)}")
        return cls(found, labels, tuple(classes))

    @classmethod
    def from_list(cls, file: Path) -> Files:
        """Lines of a path or an address, a space or tab and a label; # starts a comment.

        Paths are relative to the list's folder. Raises ``BadDataset`` naming the line where it is anything else.
        """
        paths, labels = [], []
        try:
            lines = file.read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise BadDataset(f"{file} cannot be read as a list of images: {error}") from None
        for number, line in enumerate(lines, start=1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            found = re.fullmatch(r"(.*\S)[ \t]+([0-9]{1,18})", line.strip())
            if found is None:
                raise BadDataset(f"{file} line {number}: expected a path and a label of 0 or more, got {line!r}")
            path = found[1]
            paths.append(path if remote.is_address(path) else os.path.join(file.parent, path))
            labels.append(int(found[2]))
        if not paths:
            raise BadDataset(f"{file} names no image")
        return cls(paths, labels)

    def __len__(self) -> int:
        """Number of files."""
        return len(self.paths)

    def read(self, index: int) -> Encoded:
        """See ``Samples.read``."""
        return read_file(self.name(index))

    def label(self, index: int) -> Label:
        """See ``Samples.label``."""
        return self.labels[index]

    def name(self, index: int) -> str:
        """The file's path."""
        return self.paths.name(index)


class InMemory:
    """Encoded images that are in memory already, with or without labels."""

    def __init__(self, items: Iterable[Encoded | tuple[Encoded, Any]], *, kind: Labels | None = None) -> None:
        self.classes: tuple[str, ...] = () if kind is None else kind.classes
        self.kind = kind
        self._items: list[tuple[Encoded, Label]] = []
        read = class_label if kind is None else kind.value
        for position, item in enumerate(items):
            image, label = item if isinstance(item, tuple) else (item, NO_LABEL)
            if not isinstance(image, bytes | bytearray | memoryview | np.ndarray):
                raise BadDataset(f"item {position} is {type(image).__name__}; expected bytes, or (bytes, label)")
            self._items.append((image, read(label, f"item {position}")))
        if not self._items:
            raise BadDataset("got no image")

    def __len__(self) -> int:
        """Number of images."""
        return len(self._items)

    def read(self, index: int) -> Encoded:
        """See ``Samples.read``."""
        return self._items[index][0]

    def label(self, index: int) -> Label:
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

    def __getitem__(self, index: int, /) -> tuple[Encoded | str | os.PathLike[str], Any]:
        """The image and the label."""
        ...


class FromDataset:
    """The items of a ``torch.utils.data.Dataset``: (bytes or path, label), read when they are needed.

    Several threads ask it. A label comes with its item, which is asked for again where another process read it.
    """

    def __init__(self, dataset: Items, *, kind: Labels | None = None) -> None:
        self.classes = tuple(getattr(dataset, "classes", ()) if kind is None else kind.classes)
        self.kind = kind
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

    def label(self, index: int) -> Label:
        """See ``Samples.label``."""
        label = self._labels.pop(index) if index in self._labels else self._item(index)[1]
        return (class_label if self.kind is None else self.kind.value)(label, self.name(index))

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


def is_map_style(source: object) -> bool:
    """Whether something is a ``torch.utils.data.Dataset`` whose items are asked for by their indices."""
    is_dataset = isinstance(source, torch.utils.data.Dataset) and hasattr(source, "__len__")
    return is_dataset and not isinstance(source, torch.utils.data.IterableDataset)


def with_labels(
    source: Items | Iterable[tuple[Encoded, Any]], labels: LabelKind, *, classes: Sequence[str] | None = None
) -> Samples:
    """The samples of a ``torch.utils.data.Dataset`` of (bytes or path, label), or of an iterable of (bytes, label).

    ``labels`` is the kind of label and ``classes`` are the names of all classes: see ``Labels``. Raises ``BadDataset``
    naming the sample for a label that is none of this kind: of a dataset when it is read.
    """
    is_dataset = is_map_style(source)
    items: Any = source if is_dataset else list(source)  # type: ignore[arg-type]
    if not len(items):
        raise BadDataset("got no image")
    first = items[0]
    if not isinstance(first, tuple) or len(first) != 2:
        raise BadDataset(f"item 0 is {type(first).__name__}; expected (bytes, label)")
    kind = labels_like(labels, first[1], classes or getattr(source, "classes", None), "item 0")
    return FromDataset(items, kind=kind) if is_dataset else InMemory(items, kind=kind)


def _inside(folder: str) -> tuple[dict[str, str], list[str]]:
    """The folders in a folder by their names, in the order of these, and the names of the images beside them."""
    if remote.is_address(folder):
        found = [(one.name, one.address, one.is_folder) for one in entries_behind(folder)]
    elif os.path.isdir(folder):
        with os.scandir(folder) as entries:
            found = sorted((one.name, one.path, one.is_dir()) for one in entries)
    else:
        raise BadDataset(f"{folder} is not a folder")
    folders = {name: path for name, path, is_folder in found if is_folder and not name.startswith(".")}
    return folders, [name for name, _, is_folder in found if not is_folder and name.lower().endswith(SUFFIXES)]


def image_files(folder: Path) -> list[Path]:
    """The image files in a folder and those below it, in the order of their paths."""
    return [Path(path) for path in files_below(folder, SUFFIXES)]
