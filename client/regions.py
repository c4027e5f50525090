"""What a cascade answers: regions of one picture, and what its stages said of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from onestream.client._transports.base import Tensors
from onestream.client.plain_values import plain
from onestream.wire.tensor_names import BOXES, CLASS_IDS, IMAGE_SIZE, LABELS, LEFT_OUT, QUADS, SCORES, TEXTS

if TYPE_CHECKING:
    from PIL.Image import Image

Quad = tuple[tuple[float, float], ...]
"""Four corners, x and y in pixels of the upright picture, clockwise from the top left one of what is in it."""


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
class Regions:
    """The regions of one picture that went through every stage of a cascade; there may be none.

    Iteration gives a ``Region`` for each. ``quads`` is float32 (n, 4, 2): the corners of each, x and y in pixels of the
    picture after its EXIF orientation, from the outer corner of the first, clockwise from the top left corner of what
    is in the region. ``boxes`` is float32 (n, 4), x0, y0, x1, y1, where the pipeline finds boxes, whose corners
    ``quads`` are then. ``tensors`` holds what the stages said, by the names of the answer's tensors, with a row for
    each region: names as they are of the last stage, ``STAGE_NAME`` of those before it; labels and texts are ``str``.
    ``left_out`` counts the regions that were found and not looked at, since the pipeline takes only so many a picture,
    and so many pixels. ``image_size`` is (height, width) of the picture. The rest is as of ``Classification``.
    """

    quads: npt.NDArray[np.float32]
    tensors: Tensors = field(repr=False)
    left_out: int
    image_size: tuple[int, int]
    model: str
    request_id: str
    latency_ms: float
    boxes: npt.NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.quads)

    def __iter__(self) -> Iterator[Region]:
        values = {name: array.tolist() for name, array in self.tensors.items()}
        for index, corners in enumerate(self.quads.tolist()):
            quad = tuple((x, y) for x, y in corners)
            yield Region(quad, {name: rows[index] for name, rows in values.items()})

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON, under the names that they have on the wire."""
        return {
            "model": self.model,
            "request_id": self.request_id,
            "latency_ms": self.latency_ms,
            **({QUADS: self.quads.tolist()} if self.boxes is None else {BOXES: self.boxes.tolist()}),
            **{name: plain(array) for name, array in self.tensors.items()},
            IMAGE_SIZE: list(self.image_size),
            LEFT_OUT: self.left_out,
        }

    def draw(self, image: Image) -> Image:
        """A copy of ``image``, upright and in RGB, with outlines, and texts or names and scores. Needs Pillow.

        Raises ValueError where the picture is not of ``image_size``.
        """
        from onestream.client.drawing import draw_quads

        objects = [(one.quad, one.class_id, str(one)) for one in self]
        drawn: Image = draw_quads(image, objects, image_size=self.image_size, spare_others=True)
        return drawn


@dataclass(frozen=True, slots=True, eq=False)
class Reading(Regions):
    """The text in one picture: the ``Regions`` are its lines, in reading order, each with its text and its score."""

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
