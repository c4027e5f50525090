"""Regions of one picture: what a cascade answers, and a pipeline that finds lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from onestream.client._transports.base import Tensors
from onestream.client.errors import UnexpectedResponse
from onestream.client.kinds.base import (
    Array,
    Line,
    Schema,
    Size,
    box_text,
    cell,
    plain,
    size_of,
    type_of,
)
from onestream.client.kinds.listed import Box, Located, Quad
from onestream.wire.tensor_names import BOXES, CLASS_IDS, DEGREES, IMAGE_SIZE, LABELS, LEFT_OUT, QUADS, SCORES, TEXTS

_Point = tuple[float, float]
_QuadCell = tuple[_Point, _Point, _Point, _Point]
_ONE_OF = {TEXTS: "text", LABELS: "label", CLASS_IDS: "class_id", SCORES: "score"}
"""What one value of these tensors is called."""


def quads_of(boxes: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The corners (n, 4, 2) of boxes (n, 4): x0, y0, x1, y1."""
    return boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2)


@dataclass(frozen=True, slots=True)
class Region:
    """One region of a picture: its corners, and what the stages said of it, by the names of the answer's tensors."""

    quad: Quad
    values: Mapping[str, Any]

    @property
    def label(self) -> str:
        """The text in it, or the best of its classes, by the last stage; empty where that gives neither."""
        return str(_first(self.values.get(TEXTS, self.values.get(LABELS)), ""))

    @property
    def score(self) -> float | None:
        """The score of ``label``; None where the last stage gives none."""
        score = _first(self.values.get(SCORES), None)
        return None if score is None else float(score)

    @property
    def class_id(self) -> int:
        """The best class by the last stage; 0 where that gives none, as of text."""
        return int(_first(self.values.get(CLASS_IDS), 0))

    def __str__(self) -> str:
        return self.label if self.score is None or TEXTS in self.values else f"{self.label} {self.score:.2f}"


def _first(value: Any, otherwise: Any) -> Any:
    while isinstance(value, list):
        value = value[0] if value else None
    return otherwise if value is None else value


@dataclass(frozen=True, slots=True, eq=False)
class Regions(Located[Region]):
    """The regions of one picture that went through all stages of a cascade. Iteration gives a ``Region`` for each.

    ``quads`` is float32 (n, 4, 2): the corners of each, x and y in pixels of the picture after its EXIF orientation.
    ``boxes`` is float32 (n, 4), x0, y0, x1, y1, where the pipeline finds boxes, whose corners
    ``quads`` are then. ``tensors`` holds what the stages said, by the names of the answer's tensors, with a row for
    each region: names as they are of the last stage, ``STAGE_NAME`` of those before it; labels and texts are ``str``.
    ``left_out`` counts the regions that were found and not looked at, since the pipeline takes only so many a picture,
    and so many pixels. ``image_size`` is (height, width) of the picture.
    """

    quads: npt.NDArray[np.float32]
    tensors: Tensors = field(repr=False)
    left_out: int
    boxes: npt.NDArray[np.float32] | None = None

    kind: ClassVar[str] = "regions"
    noun: ClassVar[str] = "regions"
    texts_beside: ClassVar[bool] = True
    rows: ClassVar[tuple[str, ...]] = ("quads", "boxes", "tensors")
    nothing_found: ClassVar[str] = "No region."

    def __iter__(self) -> Iterator[Region]:
        values = {name: array.tolist() for name, array in self.tensors.items()}
        for index, corners in enumerate(self.quads.tolist()):
            quad = tuple((x, y) for x, y in corners)
            yield Region(quad, {name: rows[index] for name, rows in values.items()})

    @property
    def titles(self) -> tuple[str, str]:
        return self.what, "quad" if self.boxes is None else "box"

    @classmethod
    def fields_of(cls, found: dict[str, Array], model: str) -> dict[str, Any]:
        if (BOXES in found) == (QUADS in found):
            raise UnexpectedResponse(f"model {model!r} answered {sorted(found)}, expected either {BOXES} or {QUADS}")
        boxes, image_size = found.get(BOXES), size_of(found, model)
        quads = found[QUADS] if boxes is None else quads_of(boxes)
        _check_near(model, quads, image_size)
        left_out = found.get(LEFT_OUT)
        return {
            "quads": quads,
            "boxes": boxes,
            "tensors": {name: one for name, one in found.items() if name not in (BOXES, QUADS, IMAGE_SIZE, LEFT_OUT)},
            "left_out": 0 if left_out is None else int(left_out[0]),
            "image_size": image_size,
        }

    def values(self) -> dict[str, Any]:
        return {
            **({QUADS: self.quads.tolist()} if self.boxes is None else {BOXES: self.boxes.tolist()}),
            **{name: plain(array) for name, array in self.tensors.items()},
            IMAGE_SIZE: list(self.image_size),
            LEFT_OUT: self.left_out,
        }

    @property
    def shows_schema(self) -> bool:
        """Without regions the fields of the stages are unknown."""
        return len(self) > 0

    def schema(self, *, top: int = 1, is_flat: bool = False) -> Schema:
        if is_flat:
            said = dict.fromkeys(map(_name_of_one, self.tensors), Any)
            sizes = {"image_height": int, "image_width": int, LEFT_OUT: int}
            return {**said, **dict.fromkeys(self._corners, float), **sizes}
        places: Schema = {QUADS: list[_QuadCell]} if self.boxes is None else {BOXES: list[Box]}
        said = {name: type_of(array) for name, array in self.tensors.items()}
        return {**places, **said, IMAGE_SIZE: list[int], LEFT_OUT: int}

    def records(self, *, is_flat: bool = False) -> list[dict[str, Any]]:
        """Flat: one for each region, with one value of everything that the stages said of it, and its corners.

        Of classes that is the best; other lists, such as vectors, are JSON. Without a region there is one record.
        """
        if not is_flat:
            return [self.values()]
        height, width = self.image_size
        whole = {"image_height": height, "image_width": width, LEFT_OUT: self.left_out}
        names = {name: _name_of_one(name) for name in self.tensors}
        return [
            {singular: cell(one.values[name], is_best=singular != name) for name, singular in names.items()}
            | dict(zip(self._corners, self._sides(one), strict=True))
            | whole
            for one in self
        ] or [whole]

    def summary(self) -> list[Line]:
        """What the last stage says of each region; in brackets what those before it do."""
        return [self._line(one) for one in self]

    @property
    def note(self) -> str:
        if not self.left_out:
            return ""
        return (
            f"{self.left_out} more were found and left out: the regions of a picture are bounded in number, by the "
            "pipeline's limits.max_regions and max_lines, and in pixels"
        )

    @property
    def _corners(self) -> list[str]:
        """The columns of a region's corners."""
        return [f"{axis}{number}" for number in range(4 if self.boxes is None else 2) for axis in "xy"]

    def _sides(self, one: Region) -> list[float]:
        return [side for point in one.quad[:: 1 if self.boxes is None else 2] for side in point]

    def _line(self, one: Region) -> Line:
        before = "; ".join(_earlier(one))
        what = f"{one.label or 'region'} ({before})" if before else one.label or "region"
        return Line(what, one.score, self._where(one))

    def _where(self, one: Region) -> str:
        if self.boxes is None:
            return " ".join(f"{x:.0f},{y:.0f}" for x, y in one.quad)
        x0, y0, x1, y1 = self._sides(one)
        return box_text(x0, y0, x1, y1)


@dataclass(frozen=True, slots=True, eq=False)
class Reading(Regions):
    """The text in one picture: the ``Regions`` are its lines, in reading order, each with its text and its score."""

    kind: ClassVar[str] = "reading"
    noun: ClassVar[str] = "text"
    what: ClassVar[str] = "text"
    nothing: ClassVar[str] = "no text"
    nothing_found: ClassVar[str] = "No text."
    prints_texts: ClassVar[bool] = True

    @property
    def texts(self) -> tuple[str, ...]:
        """The text of each line."""
        return tuple(self.tensors[TEXTS].tolist())

    @property
    def scores(self) -> npt.NDArray[np.float32]:
        """How sure the network is of each text, float32 (n), 0 to 1."""
        return self.tensors[SCORES]

    @property
    def text(self) -> str:
        """The texts in reading order, a line each; empty where there is none."""
        return "\n".join(self.texts)

    def caption(self) -> list[str]:
        return [" / ".join(self.texts) or self.nothing]

    def _line(self, one: Region) -> Line:
        return Line(one.label or "region", one.score, self._where(one))


@dataclass(frozen=True, slots=True, eq=False)
class TextLines(Regions):
    """Where the lines of text of one picture are, in reading order, by a pipeline that does not read them."""

    kind: ClassVar[str] = "text_lines"


def _check_near(model: str, quads: npt.NDArray[np.float32], image_size: Size) -> None:
    """Refuse corners further from the picture than its longer side: turned regions reach out of it, but not so far."""
    height, width = image_size
    far = max(height, width)
    corners = quads.reshape(-1, 2)
    outside = ((corners < -far) | (corners > (width + far, height + far))).any(axis=1)
    if outside.any():
        raise UnexpectedResponse(
            f"model {model!r} answered a region with a corner at {corners[outside][0].tolist()} for a picture of "
            f"{width}x{height} pixels, expected no corner further from it than its longer side"
        )


def _earlier(one: Region) -> Iterator[str]:
    """What each earlier stage named a region, such as *detect: cup 0.96*."""
    for name in sorted(one.values):
        stage, _, kind = name.rpartition("_")
        if stage and kind in (LABELS, TEXTS, DEGREES):
            said = Region(one.quad, {LABELS: one.values[name], SCORES: one.values.get(f"{stage}_{SCORES}")})
            yield f"{stage}: {said}"


def _name_of_one(tensor: str) -> str:
    """What one value of a tensor is called: *detect_label* of *detect_labels*."""
    for several, one in _ONE_OF.items():
        if tensor == several or tensor.endswith(f"_{several}"):
            return tensor.removesuffix(several) + one
    return tensor
