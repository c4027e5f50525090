"""COCO's JSON files of objects (https://cocodataset.org/#format-data)."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, TypeVar

from pydantic import BeforeValidator, TypeAdapter, ValidationError, ValidationInfo

from onestream.preprocess.errors import BadDataset, BadSample
from onestream.preprocess.training.detection.files import DetectionFiles, DetectionSample, FoundObject
from onestream.preprocess.training.sources.annotations import first_problem, inside, read_bounded

MAX_BYTES = 2 * 1024**3
"""COCO's largest file, instances_train2017.json, has 0.45 GB; LVIS's and Objects365's about 1.2 GB."""


def _if_read(keypoints: object, info: ValidationInfo) -> object:
    """Keypoints that nobody reads may be anything; the context says whether they are read."""
    return keypoints if info.context else None


@dataclass(slots=True)
class _Image:
    id: int
    file_name: str
    height: int
    width: int


@dataclass(slots=True)
class _Annotation:
    image_id: int
    category_id: int
    bbox: tuple[float, float, float, float]
    id: int | None = None
    iscrowd: int = 0
    keypoints: Annotated[list[float] | None, BeforeValidator(_if_read)] = None


@dataclass(slots=True)
class _Category:
    id: int
    name: str
    keypoints: Annotated[list[str] | None, BeforeValidator(_if_read)] = None


@dataclass(slots=True)
class _Coco:
    """The part that is read; the rest, as segmentations and licences, is left alone."""

    images: list[_Image]
    annotations: list[_Annotation]
    categories: list[_Category]


_COCO = TypeAdapter(_Coco)
_EntryT = TypeVar("_EntryT", _Image, _Category)
_MIDDLE = 0.5
"""Of a pixel. COCO counts the pixels that are keypoints, in whole numbers from 0; its boxes are in edges of pixels."""


class CocoFile:
    """A COCO JSON file that was read; see ``read_coco``. ``keypoints``: whether they are read, too."""

    def __init__(self, path: Path, *, keypoints: bool = False) -> None:
        self._path = path
        try:
            self._content = content = _COCO.validate_json(read_bounded(path, MAX_BYTES), context=keypoints)
        except BadSample as error:
            raise BadDataset(f"{path}: {error}") from None
        except ValidationError as error:
            raise BadDataset(f"{path} is no COCO file: {first_problem(error)}") from None
        self._categories = sorted(content.categories, key=lambda category: category.id)
        listed = _by_id(path, "image", content.images)
        _by_id(path, "category", self._categories)
        self._by_image: dict[int, list[tuple[int, _Annotation]]] = defaultdict(list)
        for position, annotation in enumerate(content.annotations):
            if annotation.image_id not in listed:
                raise BadDataset(
                    f"{path}: annotation {_name(position, annotation)} is of image {annotation.image_id}, "
                    f"which is none of its {len(listed)} images"
                )
            self._by_image[annotation.image_id].append((position, annotation))
        self._by_name = {PurePosixPath(image.file_name).parts: image for image in content.images}
        self._class_ids = {category.id: place for place, category in enumerate(self._categories)}
        self._keypoints = _keypoints(path, self._categories)

    def pictures(self, folder: Path, flip_pairs: Iterable[tuple[str, str]] = ()) -> DetectionFiles:
        """All pictures, in a folder. Raises ``BadDataset`` where there is none, or for pairs of other keypoints."""
        return DetectionFiles(
            [self._sample(folder, image) for image in self._content.images],
            [category.name for category in self._categories],
            [category.id for category in self._categories],
            keypoints=self._keypoints,
            flip_pairs=flip_pairs,
        )

    def picture(self, path: Path) -> DetectionSample | None:
        """The picture of which the file names the end of this path, the longest there is; None where it names none."""
        parts = path.absolute().parts
        for count in range(len(parts) - 1, 0, -1):
            image = self._by_name.get(parts[-count:])
            if image is not None:
                return self._sample(Path(*parts[:-count]), image)
        return None

    def _sample(self, folder: Path, image: _Image) -> DetectionSample:
        picture = folder
        try:
            picture = inside(folder, image.file_name)
            objects = _objects(self._path, self._by_image[image.id], self._class_ids, self._keypoints)
            size_hw = image.height, image.width
            return DetectionSample.of(picture, size_hw, objects, image_id=image.id, keypoints=self._keypoints)
        except BadSample as error:
            return DetectionSample(picture, image_id=image.id, problem=str(error))


def read_coco(
    file: str | os.PathLike[str],
    *,
    images: str | os.PathLike[str],
    flip_pairs: Iterable[tuple[str, str]] | None = None,
) -> DetectionFiles:
    """Read a COCO JSON file; ``images`` is the folder of its pictures.

    Classes are the categories in the order of their ids. An annotation with ``iscrowd`` set marks many objects by one
    box and is left out, as torchvision's and Detectron2's training do.

    Keypoints are read where ``flip_pairs`` says which of them change places in a mirror, by their names, such as
    ``[("left_eye", "right_eye")]``; it may be empty. They are in the middle of the pixel that the file says. Objects
    without any have keypoints that are not labelled.

    Raises ``BadDataset`` naming the file where it is no such JSON, or contradicts itself. A picture with a bad box or
    keypoint or an unknown category, or that is not there, keeps its ``problem``.
    """
    path, folder = Path(file), Path(images)
    if not folder.is_dir():
        raise BadDataset(f"{folder} is not a folder; expected that of the pictures of {path.name}")
    return CocoFile(path, keypoints=flip_pairs is not None).pictures(folder, flip_pairs or ())


def _keypoints(path: Path, categories: Sequence[_Category]) -> tuple[str, ...]:
    """The names of the keypoints that objects have, if any do."""
    named = {tuple(category.keypoints): category.name for category in categories if category.keypoints}
    if len(named) > 1:
        raise BadDataset(
            f"{path}: the categories {', '.join(named.values())} have other keypoints each; expected the same of all"
        )
    return next(iter(named), ())


def _objects(
    path: Path, annotations: list[tuple[int, _Annotation]], class_ids: dict[int, int], names: tuple[str, ...]
) -> Iterator[FoundObject]:
    for position, annotation in annotations:
        where = f"{path.name}, annotation {_name(position, annotation)}"
        if annotation.category_id not in class_ids:
            known = ", ".join(str(number) for number in list(class_ids)[:10]) + (", …" if len(class_ids) > 10 else "")
            raise BadSample(f"{where}: got the category {annotation.category_id}; the file lists {known or 'none'}")
        if not annotation.iscrowd:
            x, y, width, height = annotation.bbox
            keypoints: Sequence[float] = ()
            if names:
                given = annotation.keypoints or [0.0] * 3 * len(names)
                keypoints = [number + _MIDDLE if place % 3 < 2 else number for place, number in enumerate(given)]
            yield FoundObject(where, class_ids[annotation.category_id], (x, y, x + width, y + height), keypoints)


def _by_id(path: Path, kind: str, entries: Sequence[_EntryT]) -> dict[int, _EntryT]:
    found: dict[int, _EntryT] = {}
    for entry in entries:
        if entry.id in found:
            raise BadDataset(f"{path}: two entries have the {kind} id {entry.id}; expected each once")
        found[entry.id] = entry
    return found


def _name(position: int, annotation: _Annotation) -> str:
    return f"{position} of the list" if annotation.id is None else f"id {annotation.id}"
