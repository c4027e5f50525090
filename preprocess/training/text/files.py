"""Lines of text in picture files: one value, whatever format they were written in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from onestream.preprocess.errors import BadSample
from onestream.preprocess.geometry import Quads, Size
from onestream.preprocess.limits import Limits
from onestream.preprocess.quads import clipped_quads
from onestream.preprocess.training.sources.annotations import ROUNDING, ListedFiles, picture_size


@dataclass(frozen=True, slots=True)
class TextLine:
    """One line of text in a picture.

    ``quad``, float32 (4, 2), are the corners x y of the line in pixels of the picture after its EXIF orientation,
    clockwise from the top left corner of the text, and ``size_hw`` is that picture's size. ``where`` is the line's
    place in the file that lists it. ``problem`` says why the line cannot be trained on; it is empty where it can.
    """

    path: Path
    where: str
    size_hw: Size = (0, 0)
    quad: Quads = field(default_factory=lambda: np.zeros((4, 2), np.float32))
    text: str = ""
    problem: str = ""

    @property
    def name(self) -> str:
        """The picture's path, and where the line is listed."""
        return f"{self.path}: {self.where}"


@dataclass(frozen=True, slots=True)
class FoundLine:
    """One line as a file lists it: ``where`` in the file, x y of four corners in pixels, and its text.

    ``problem`` says what is wrong with it already in the file.
    """

    where: str
    corners: Sequence[tuple[float, float]] = ()
    text: str = ""
    problem: str = ""


def lines_of(path: Path, found: Iterable[FoundLine], limits: Limits) -> list[TextLine]:
    """The lines of a picture, whose header is read within ``limits``. Those that cannot be keep a problem.

    The corners of a line are those of a convex area, run clockwise, and lie in the picture; by up to ``ROUNDING``
    pixels they may lie beyond and are moved in.
    """
    listed = list(found)
    if not listed:
        return []
    try:
        size_hw = picture_size(path, limits)
    except BadSample as error:
        return [TextLine(path, one.where, problem=str(error)) for one in listed]
    return [_line(path, one, size_hw) for one in listed]


def _line(path: Path, found: FoundLine, size_hw: Size) -> TextLine:
    try:
        if found.problem:
            raise BadSample(found.problem)
        if not found.text.strip():
            raise BadSample("the text is empty; leave out a line whose text is not known")
        quad = _quad(found.corners, size_hw)
    except BadSample as error:
        return TextLine(path, found.where, problem=str(error))
    return TextLine(path, found.where, size_hw, quad, found.text)


def _quad(corners: Sequence[tuple[float, float]], size_hw: Size) -> Quads:
    seen = "the corners x y = " + ", ".join(f"{x:g} {y:g}" for x, y in corners)
    height, width = size_hw
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and refused as that
        points = np.array(corners, np.float64).astype(np.float32)
    if not np.isfinite(points).all():
        raise BadSample(f"{seen} are not finite; expected eight numbers in pixels")
    quad: Quads = clipped_quads(points[None], size_hw)[0]
    if (np.abs(points - quad) > ROUNDING).any():
        raise BadSample(
            f"{seen} are outside the picture of {width}x{height}; they may lie {ROUNDING:g} pixel beyond at most"
        )
    if _least_turn(points) <= 0 or _least_turn(quad) <= 0:
        raise BadSample(
            f"{seen} are not those of a convex area, clockwise from the top left corner of the text: "
            "top left, top right, bottom right, bottom left"
        )
    return quad


def _least_turn(quad: Quads) -> float:
    """Above 0 where every corner turns right, as seen on a screen, whose y runs down."""
    sides = np.roll(quad, -1, axis=0).astype(np.float64) - quad
    after = np.roll(sides, -1, axis=0)
    return float((sides[:, 0] * after[:, 1] - sides[:, 1] * after[:, 0]).min())


class TextFiles(ListedFiles[TextLine]):
    """Lines of text, each a sample; see ``ListedFiles``, ``read_text_lines`` and ``read_icdar``."""

    thing, things = "line of text", "lines of text"

    def name(self, index: int) -> str:
        """The picture's path, and where the line is listed."""
        return self.samples[index].name
