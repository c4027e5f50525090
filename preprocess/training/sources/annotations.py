"""Shared by the readers of annotations: bounded files, the samples that they list, and what is said of bad ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import ClassVar, Generic, Protocol, TypeVar

import numpy as np
from pydantic import ValidationError

from onestream.preprocess.errors import BadDataset, BadImage, BadSample
from onestream.preprocess.geometry import Size
from onestream.preprocess.headers.reader import Encoded
from onestream.preprocess.limits import Limits

ROUNDING = 1.0
"""Pixels by which a corner may lie beyond its picture and is moved in: tools round to whole pixels."""
_SHOWN = 10
"""Bad samples that an error lists."""


class Listed(Protocol):
    """A sample as its file lists it."""

    @property
    def path(self) -> Path:
        """Of the picture."""
        ...

    @property
    def problem(self) -> str:
        """Why it cannot be trained on; empty where it can."""
        ...


ListedT = TypeVar("ListedT", bound=Listed)


class ListedFiles(Generic[ListedT]):
    """Base of the samples that files list, in the order of their pictures' paths; see ``samples.Pictures``.

    Those that cannot be trained on keep a ``problem``, and a loader fails or skips them. Raises ``BadDataset`` where
    there is none at all.
    """

    thing: ClassVar[str] = "picture"
    things: ClassVar[str] = "pictures"
    """What to call samples in a message."""

    def __init__(self, samples: Sequence[ListedT], classes: Sequence[str] = ()) -> None:
        if not samples:
            raise BadDataset(f"got no {self.thing}")
        self.samples = tuple(sorted(samples, key=lambda sample: sample.path))
        self.classes = tuple(classes)

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.samples)

    def read(self, index: int) -> Encoded:
        """The bytes of a sample's picture; see ``Pictures.read``."""
        sample = self.samples[index]
        if sample.problem:
            raise BadSample(sample.problem)
        return sample.path.read_bytes()

    def name(self, index: int) -> str:
        """The picture's path."""
        return str(self.samples[index].path)

    def refuse_bad(self) -> None:
        """Raise ``BadSample`` where a sample cannot be trained on, with a line for each of the first ten."""
        problems = [f"{self.name(index)}: {one.problem}" for index, one in enumerate(self.samples) if one.problem]
        if len(problems) == 1:
            raise BadSample(problems[0])
        if problems:
            lines = [f"{len(problems)} of {len(self)} {self.things} cannot be used:", *problems[:_SHOWN]]
            if len(problems) > _SHOWN:
                lines.append(f"and {len(problems) - _SHOWN} more")
            raise BadSample("\n  ".join(lines))


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """The bytes of an annotation file. Raises ``BadSample`` where it cannot be read or is larger than allowed."""
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise BadSample(f"{path.name} has {size} bytes; at most {max_bytes} are read")
        return path.read_bytes()
    except OSError as error:
        raise BadSample(f"{path.name} cannot be read: {error.strerror or error}") from None


def inside(folder: Path, name: str) -> Path:
    """The path of a picture that a file names. Raises ``BadSample`` where the name leads out of the folder."""
    relative = PurePosixPath(name)
    if not name or "\0" in name or relative.is_absolute() or ".." in relative.parts:
        raise BadSample(f"the file names the picture {name[:80]!r}; expected a path within the pictures' folder")
    return folder / relative


def refuse_missing(picture: Path) -> None:
    """Raise ``BadSample`` where there is no file of a picture."""
    try:
        is_file = picture.is_file()
    except OSError as error:  # a name that is too long
        raise BadSample(f"the picture cannot be read: {error.strerror or error}") from None
    if not is_file:
        raise BadSample("there is no such picture")


def picture_size(picture: Path, limits: Limits) -> Size:
    """(height, width) of a picture after its EXIF orientation. Raises ``BadSample``.

    The file is mapped: of a large one only the header's pages are read.
    """
    refuse_missing(picture)
    try:
        if picture.stat().st_size == 0:
            return limits.check(b"").oriented_hw
        return limits.check(np.memmap(picture, np.uint8, mode="r")).oriented_hw
    except OSError as error:
        raise BadSample(f"the file cannot be read: {error.strerror or error}") from None
    except BadImage as error:
        raise BadSample(str(error)) from None


def first_problem(error: ValidationError) -> str:
    """Where and why, in one line; pydantic lists every entry."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}" if place else first["msg"]
