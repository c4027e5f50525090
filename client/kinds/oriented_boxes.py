"""The objects in one picture and boxes around them that are turned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from onestream.client.kinds.base import Array, Schema
from onestream.client.kinds.detection import Detection, Detections
from onestream.client.kinds.listed import Quad
from onestream.wire.tensor_names import QUADS


@dataclass(frozen=True, slots=True, kw_only=True)
class OrientedBox(Detection):
    """One object and the corners of its box, clockwise, x and y in pixels of the picture; ``box`` is around them."""

    corners: Quad

    @property
    def quad(self) -> Quad:
        """The corners."""
        return self.corners


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class OrientedBoxes(Detections):
    """The objects in one picture, best first; there may be none. Iteration gives an ``OrientedBox`` for each.

    Beside the fields of ``Detections``: ``quads`` is float32 (n, 4, 2), the corners of each object, clockwise, x and y
    in pixels of the picture, perhaps beyond it. ``boxes`` are upright, around them, within the picture.
    """

    quads: npt.NDArray[np.float32]

    kind: ClassVar[str] = "oriented_boxes"
    rows: ClassVar[tuple[str, ...]] = (*Detections.rows, QUADS)

    def __iter__(self) -> Iterator[OrientedBox]:
        for one, quad in zip(Detections.__iter__(self), self.quads.tolist(), strict=True):
            corners = tuple((x, y) for x, y in quad)
            yield OrientedBox(one.box, one.label, one.class_id, one.score, one.track_id, corners=corners)

    @classmethod
    def fields_of(cls, found: dict[str, Array], model: str) -> dict[str, Any]:
        return Detections.fields_of(found, model) | {QUADS: found[QUADS]}

    def values(self) -> dict[str, Any]:
        return Detections.values(self) | {QUADS: self.quads.tolist()}

    def schema(self, *, top: int = 1, is_flat: bool = False) -> Schema:
        """See ``Result.schema``: a flat table has eight columns of corners."""
        corners = dict.fromkeys(_CORNERS, float) if is_flat else {QUADS: list[list[tuple[float, float]]]}
        return Detections.schema(self, top=top, is_flat=is_flat) | corners

    def records(self, *, is_flat: bool = False) -> list[dict[str, Any]]:
        found = Detections.records(self, is_flat=is_flat)
        for record, corners in zip(found, self.quads.reshape(-1, 8).tolist(), strict=False) if is_flat else ():
            record |= dict(zip(_CORNERS, corners, strict=True))
        return found

    def to_dota(self, image_id: str) -> dict[str, list[str]]:
        """The lines of DOTA's results for a picture, by class: its name, score and corners.

        They belong into ``Task1_CLASS.txt``: https://captain-whu.github.io/DOTA/tasks.html.
        """
        lines: dict[str, list[str]] = {}
        for one in self:
            corners = " ".join(f"{value:.2f}" for corner in one.corners for value in corner)
            lines.setdefault(one.label, []).append(f"{image_id} {one.score:.4f} {corners}")
        return lines


_CORNERS = tuple(f"corner{number}_{axis}" for number in range(1, 5) for axis in "xy")
