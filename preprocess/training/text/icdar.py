"""ICDAR 2015's text files of lines in pictures: ``x1,y1,x2,y2,x3,y3,x4,y4,text``
(https://rrc.cvc.uab.es/?ch=4&com=tasks)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from onestream.preprocess.errors import BadDataset, BadSample
from onestream.preprocess.limits import Limits
from onestream.preprocess.training.sources.annotations import read_bounded
from onestream.preprocess.training.sources.samples import image_files
from onestream.preprocess.training.text.files import FoundLine, TextFiles, TextLine, lines_of

MAX_BYTES = 4 * 1024**2
"""Of one text file; a line takes some 60 bytes."""
DO_NOT_CARE = "###"
"""The text of a line that nobody could read, and that the competition does not count."""
_PREFIX = "gt_"


def read_icdar(
    folder: str | os.PathLike[str], *, images: str | os.PathLike[str], limits: Limits | None = None
) -> TextFiles:
    """Read ICDAR 2015's files: ``folder`` holds a ``gt_NAME.txt`` for each picture ``NAME`` of the folder ``images``.

    Each line of a file is x y of four corners, clockwise from the top left corner of the text, in pixels of the picture
    after its EXIF orientation, and the text, which may hold commas. Files are UTF-8, with or without a byte-order mark.
    Lines whose text is ``###`` ("do not care") are left out. The headers of all pictures are read, within ``limits``,
    since only they tell the size.

    Raises ``BadDataset`` where there are no such folders or files. A line that cannot be trained on keeps its
    ``problem``, and so does a file that cannot be read.
    """
    texts, pictures = Path(folder), Path(images)
    for one, what in ((texts, "the text files"), (pictures, "the pictures")):
        if not one.is_dir():
            raise BadDataset(f"{one} is not a folder; expected that of {what}")
    by_name = {path.stem: path for path in image_files(pictures)}
    files = sorted(texts.glob(f"{_PREFIX}*.txt"))
    if not files:
        raise BadDataset(f"no text file in {texts}; expected {_PREFIX}NAME.txt for each picture NAME")
    samples: list[TextLine] = []
    for file in files:
        name = file.stem.removeprefix(_PREFIX)
        picture = by_name.get(name, pictures / name)
        try:
            found = list(_found(file))
        except BadSample as error:
            samples.append(TextLine(picture, file.name, problem=str(error)))
            continue
        samples += lines_of(picture, found, limits or Limits())
    return TextFiles(samples)


def _found(file: Path) -> Iterator[FoundLine]:
    content = read_bounded(file, MAX_BYTES)
    try:
        # Not splitlines(), which also splits at characters that a text may contain.
        lines = content.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise BadSample(
            f"the file is not UTF-8: byte {error.start} is 0x{content[error.start]:02x}; "
            "a file in Latin-1 must be written anew in UTF-8"
        ) from None
    for number, line in enumerate(lines, start=1):
        where = f"{file.name} line {number}"
        values = line.rstrip("\r").split(",", 8)
        if not line.strip() or values[8:] == [DO_NOT_CARE]:
            continue
        try:
            *numbers, text = values
            x0, y0, x1, y1, x2, y2, x3, y3 = (float(value) for value in numbers)
        except ValueError:
            yield FoundLine(where, problem=f"expected x1,y1,x2,y2,x3,y3,x4,y4,text, got {line.strip()[:60]!r}")
            continue
        yield FoundLine(where, ((x0, y0), (x1, y1), (x2, y2), (x3, y3)), text)
