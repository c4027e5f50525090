"""JSON lines, an object a picture: ``{"path": "a.jpg", "lines": [{"quad": [[x, y], …], "text": "abc"}, …]}``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from onestream.preprocess.errors import BadDataset, BadSample
from onestream.preprocess.limits import Limits
from onestream.preprocess.training.sources.annotations import first_problem, inside, read_bounded
from onestream.preprocess.training.text.files import FoundLine, TextFiles, TextLine, lines_of

MAX_BYTES = 2 * 1024**3
"""Of the list; a line of text takes some 100 bytes."""

_Point = tuple[float, float]


@dataclass(slots=True)
class _Line:
    text: str
    quad: tuple[_Point, _Point, _Point, _Point] | None = None
    box: tuple[float, float, float, float] | None = None


@dataclass(slots=True)
class _Picture:
    path: str
    lines: list[_Line]


_PICTURE = TypeAdapter(_Picture)


def read_text_lines(
    file: str | os.PathLike[str], *, images: str | os.PathLike[str] | None = None, limits: Limits | None = None
) -> TextFiles:
    """Read a list of pictures with lines of text: UTF-8, a JSON object a line.

    ``path`` is that of a picture within the folder ``images``, without that within the list's own. Each of its
    ``lines`` has a ``text`` and a ``quad``, four corners [x, y], clockwise from the top left corner of the text, or a
    ``box``, [x0, y0, x1, y1]: in pixels of the picture after its EXIF orientation. Other fields are left alone. The
    headers of all pictures are read, within ``limits``, since only they tell the size.

    Raises ``BadDataset`` naming the line where it is no such object. A line of text that cannot be trained on, since
    it is empty, outside its picture, or the picture is missing, keeps its ``problem``.
    """
    path = Path(file)
    folder = path.parent if images is None else Path(images)
    if not folder.is_dir():
        raise BadDataset(f"{folder} is not a folder; expected that of the pictures of {path.name}")
    try:
        # Not splitlines(), which also splits at characters that a text may contain.
        entries = read_bounded(path, MAX_BYTES).removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except BadSample as error:
        raise BadDataset(f"{path}: {error}") from None
    samples: list[TextLine] = []
    for number, entry in enumerate(entries, start=1):
        if entry.strip():
            samples += _lines(path, number, entry, folder, limits or Limits())
    return TextFiles(samples)


def _lines(path: Path, number: int, entry: bytes, folder: Path, limits: Limits) -> list[TextLine]:
    where = f"{path.name} line {number}"
    try:
        listed = _PICTURE.validate_json(entry)
    except ValidationError as error:
        raise BadDataset(f"{path} line {number}: {first_problem(error)}") from None
    try:
        picture = inside(folder, listed.path)
    except BadSample as error:
        return [TextLine(folder, where, problem=str(error))]
    return lines_of(picture, _found(where, listed.lines), limits)


def _found(entry: str, lines: list[_Line]) -> Iterator[FoundLine]:
    for position, line in enumerate(lines, start=1):
        where = f"{entry}, text {position}"
        if line.box is not None and line.quad is None:
            x0, y0, x1, y1 = line.box
            yield FoundLine(where, ((x0, y0), (x1, y0), (x1, y1), (x0, y1)), line.text)
        elif line.quad is not None and line.box is None:
            yield FoundLine(where, line.quad, line.text)
        else:
            yield FoundLine(where, problem=f"expected either quad or box, got {'neither' if not line.box else 'both'}")
