"""YOLO's text files: a line ``class x y width height`` for each object, in shares of the picture's size, centre first
(https://docs.ultralytics.com/datasets/detect/)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from onestream.preprocess.errors import BadDataset, BadSample
from onestream.preprocess.geometry import Size
from onestream.preprocess.limits import Limits
from onestream.preprocess.training.detection.files import DetectionFiles, DetectionSample, FoundObject
from onestream.preprocess.training.sources.annotations import picture_size, read_bounded
from onestream.preprocess.training.sources.samples import image_files
from onestream.preprocess.user_files import BadYaml, read_plain_yaml

MAX_BYTES = 4 * 1024**2
"""Of one text file; an object takes some 40 bytes."""


def read_yolo(source: str | os.PathLike[str], *, split: str = "train", limits: Limits | None = None) -> DetectionFiles:
    """Read a YOLO data set: ``source`` is its ``data.yaml``, or the folder with it.

    ``split`` is an entry of ``data.yaml`` that says where pictures are, such as ``train: images/train``, relative to
    its ``path`` or to the file itself; without that entry they are in ``images``. The text file of a picture lies under
    ``labels`` where the picture lies under ``images``; a picture without one has no objects. The headers of all
    pictures are read, within ``limits``, since only they tell the size.

    Raises ``BadDataset`` where ``data.yaml`` is not as expected, or there is no picture. A picture with a bad text
    file, box or class, or with a bad header, keeps its ``problem``.
    """
    path = Path(source)
    file = path / "data.yaml" if path.is_dir() else path
    try:
        content = read_plain_yaml(read_bounded(file, MAX_BYTES).decode("utf-8"))
    except (BadSample, BadYaml, UnicodeDecodeError) as error:
        raise BadDataset(f"{file} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise BadDataset(f"{file}: expected a mapping with names, got {type(content).__name__}")
    classes = _names(file, content.get("names"))
    folder = _pictures(file, content, split)
    paths = image_files(folder)
    if not paths:
        raise BadDataset(f"no picture in {folder}, where {file} has the split {split!r}")
    return DetectionFiles([_sample(one, classes, limits or Limits()) for one in paths], classes)


def _names(file: Path, names: Any) -> list[str]:
    """The names of the classes, from a list or from a mapping of 0, 1, … to names."""
    if isinstance(names, dict) and set(names) == set(range(len(names))):
        names = [names[number] for number in range(len(names))]
    if not isinstance(names, list) or not names:
        raise BadDataset(f"{file}: expected names, a list or a mapping of 0, 1, … to names, got {str(names)[:80]!r}")
    return [str(name) for name in names]


def _pictures(file: Path, content: dict[Any, Any], split: str) -> Path:
    entry, base = content.get(split, "images"), content.get("path", ".")
    if not isinstance(entry, str) or not isinstance(base, str):
        raise BadDataset(
            f"{file}: expected path and {split} to be folders, got {str(base)[:80]!r}, {str(entry)[:80]!r}"
        )
    # Roboflow writes ../train/images for the train/images beside its data.yaml.
    for name in (entry, entry.removeprefix("../")):
        folder = file.parent / base / name
        if folder.is_dir():
            return folder
    raise BadDataset(f"{file}: {split} is {entry[:80]!r}, which is no folder in {file.parent / base}")


def _sample(picture: Path, classes: Sequence[str], limits: Limits) -> DetectionSample:
    try:
        size_hw = picture_size(picture, limits)
        labels = _labels(picture)
        objects = _objects(labels, size_hw, classes) if labels.is_file() else ()
        return DetectionSample.of(picture, size_hw, objects)
    except BadSample as error:
        return DetectionSample(picture, problem=str(error))


def _labels(picture: Path) -> Path:
    """The text file of a picture: the last folder called ``images`` becomes ``labels``."""
    parts = list(picture.with_suffix(".txt").parts)
    for place in reversed(range(len(parts) - 1)):
        if parts[place] == "images":
            parts[place] = "labels"
            return Path(*parts)
    raise BadSample("it is in no folder 'images', beside which 'labels' would be")


def _objects(file: Path, size_hw: Size, classes: Sequence[str]) -> Iterator[FoundObject]:
    height, width = size_hw
    try:
        lines = read_bounded(file, MAX_BYTES).decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise BadSample(f"{file.name} is not text in UTF-8") from None
    for number, line in enumerate(lines, start=1):
        values = line.split()
        if not values:
            continue
        where = f"{file.name} line {number}"
        try:
            class_id, (x, y, w, h) = int(values[0]), (float(value) for value in values[1:])
        except ValueError:
            raise BadSample(f"{where}: expected class x y width height, got {line[:60]!r}") from None
        if not 0 <= class_id < len(classes):
            raise BadSample(f"{where}: got the class {class_id}; allowed: 0 to {len(classes) - 1}")
        box = ((x - w / 2) * width, (y - h / 2) * height, (x + w / 2) * width, (y + h / 2) * height)
        yield FoundObject(where, class_id, box)
