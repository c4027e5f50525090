"""Pascal VOC's XML files, one for each picture (VOC2012 development kit, section 8)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from onestream.preprocess.errors import BadDataset, BadSample
from onestream.preprocess.training.detection.files import DetectionFiles, DetectionSample, FoundObject
from onestream.preprocess.training.sources.annotations import inside, read_bounded

MAX_BYTES = 4 * 1024**2
"""Of one XML file; an object takes some 300 bytes."""
MAX_DEPTH = 16
"""Elements inside each other; VOC's have 4."""
Coordinates = Literal["pixels", "edges"]


@dataclass(frozen=True, slots=True)
class _Object:
    where: str
    name: str
    box: tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class _Picture:
    path: Path
    size_hw: tuple[int, int]
    objects: list[_Object]


def read_voc(
    folder: str | os.PathLike[str],
    *,
    images: str | os.PathLike[str] | None = None,
    classes: Sequence[str] | None = None,
    coordinates: Coordinates = "pixels",
) -> DetectionFiles:
    """Read a folder of Pascal VOC XML files.

    ``folder`` holds the XML files, or ``Annotations`` with them and ``JPEGImages``, as VOC itself. ``images`` is the
    folder of the pictures; None is ``JPEGImages``, or beside the XML files. ``classes``: names of the classes 0, 1, …;
    None takes the names that appear, sorted. ``coordinates``: *pixels* are VOC's own, where 1 is the first pixel and
    the last one is inside; *edges* count from 0 at the picture's border, as other tools write them.

    An object marked ``difficult`` is left out, as in VOC's own evaluation. Raises ``BadDataset`` where there is no XML
    file. A picture with a bad file, box or class, or that is not there, keeps its ``problem``.
    """
    if coordinates not in ("pixels", "edges"):
        raise ValueError(f"coordinates must be 'pixels' or 'edges', got {coordinates!r}")
    root = Path(folder)
    annotations = root / "Annotations" if (root / "Annotations").is_dir() else root
    beside = root / "JPEGImages" if annotations != root else root
    pictures = beside if images is None else Path(images)
    for needed in (annotations, pictures):
        if not needed.is_dir():
            raise BadDataset(f"{needed} is not a folder")
    files = sorted(path for path in annotations.iterdir() if path.suffix.lower() == ".xml")
    if not files:
        raise BadDataset(f"no XML file in {annotations}; expected one for each picture")
    read: list[_Picture | DetectionSample] = [_read(path, pictures, coordinates) for path in files]
    if classes is None:
        classes = sorted({one.name for picture in read if isinstance(picture, _Picture) for one in picture.objects})
    samples = [one if isinstance(one, DetectionSample) else _sample(one, classes) for one in read]
    return DetectionFiles(samples, classes)


def _sample(picture: _Picture, classes: Sequence[str]) -> DetectionSample:
    places = {name: place for place, name in enumerate(classes)}
    try:
        for one in picture.objects:
            if one.name not in places:
                raise BadSample(f"{one.where}: got the class {one.name[:80]!r}; allowed: {', '.join(classes)}")
        objects = [FoundObject(one.where, places[one.name], one.box) for one in picture.objects]
        return DetectionSample.of(picture.path, picture.size_hw, objects)
    except BadSample as error:
        return DetectionSample(picture.path, problem=str(error))


def _read(path: Path, pictures: Path, coordinates: Coordinates) -> _Picture | DetectionSample:
    picture = path
    try:
        root = _parse(read_bounded(path, MAX_BYTES), path.name)
        picture = inside(pictures, _text(root, "filename", path.name))
        size = int(_number(root, "size/height", path.name)), int(_number(root, "size/width", path.name))
        return _Picture(picture, size, list(_objects(root, path.name, coordinates)))
    except BadSample as error:
        return DetectionSample(picture, problem=str(error))


def _objects(root: Element, file: str, coordinates: Coordinates) -> Iterator[_Object]:
    first = 1 if coordinates == "pixels" else 0
    for number, element in enumerate(root.findall("object"), start=1):
        where = f"{file}, object {number}"
        if (element.findtext("difficult") or "0").strip() not in ("", "0"):
            continue
        x0, y0, x1, y1 = (_number(element, f"bndbox/{side}", where) for side in ("xmin", "ymin", "xmax", "ymax"))
        yield _Object(where, _text(element, "name", where), (x0 - first, y0 - first, x1, y1))


def _text(element: Element, tag: str, where: str) -> str:
    text = (element.findtext(tag) or "").strip()
    if not text:
        raise BadSample(f"{where}: there is no <{tag.replace('/', '><')}>")
    return text


def _number(element: Element, tag: str, where: str) -> float:
    text = _text(element, tag, where)
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not abs(number) < 1e9:
        raise BadSample(f"{where}: <{tag.replace('/', '><')}> is {text[:40]!r}; expected a number of pixels")
    return number


def _parse(data: bytes, name: str) -> Element:
    """The tree of an XML file of bounded depth without a document type.

    Entities can only be declared in a document type, so none is expanded and nothing outside is read; annotation tools
    write none. The standard library's parser is enough for that.
    """
    builder, parser, depth = TreeBuilder(), expat.ParserCreate(), 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > MAX_DEPTH:
            raise BadSample(f"{name} nests more than {MAX_DEPTH} elements")
        builder.start(tag, attributes)

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(tag)

    def refuse(*_: object) -> NoReturn:
        raise BadSample(f"{name} declares a document type; expected plain XML without one")

    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, builder.data
    parser.StartDoctypeDeclHandler = refuse
    parser.buffer_text = True
    try:
        parser.Parse(data, True)
        return builder.close()
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise BadSample(f"{name} is not XML: {' '.join(str(error).split())[:200]}") from None
