"""The objects in one picture and the points of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from onestream.client.errors import UnexpectedResponse
from onestream.client.kinds.base import Array, Line, Schema, box_text
from onestream.client.kinds.detection import Detection, Detections
from onestream.wire.comparing import SEEN
from onestream.wire.tensor_names import KEYPOINTS, POINT_NAMES, POINT_SCORES, SKELETON

if TYPE_CHECKING:
    from PIL.Image import Image


class Point(NamedTuple):
    """One point: x and y in pixels of the picture, and its score, 0 to 1."""

    x: float
    y: float
    score: float

    @property
    def is_seen(self) -> bool:
        """Whether its score is high enough for it to be drawn."""
        return self.score >= SEEN


@dataclass(frozen=True, slots=True, kw_only=True)
class Pose(Detection):
    """One object, and its points by their names."""

    points: Mapping[str, Point]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Keypoints(Detections):
    """The objects in one picture and their points, best first; there may be none. Iteration gives a ``Pose`` for each.

    Beside the fields of ``Detections``: ``keypoints`` is float32 (n, points, 2), x and y of each point in pixels of the
    picture, within it; ``point_scores`` float32 (n, points), 0 to 1; ``point_names`` their names; ``skeleton`` pairs of
    points, by their places, that a line joins when drawn.
    """

    keypoints: npt.NDArray[np.float32]
    point_scores: npt.NDArray[np.float32]
    point_names: tuple[str, ...]
    skeleton: tuple[tuple[int, int], ...] = ()

    kind: ClassVar[str] = "keypoints"
    rows: ClassVar[tuple[str, ...]] = (*Detections.rows, KEYPOINTS, POINT_SCORES)

    @property
    def points(self) -> list[list[Point]]:
        """The points of each object."""
        each = np.concatenate([self.keypoints, self.point_scores[..., None]], axis=2).tolist()
        return [[Point(*point) for point in points] for points in each]

    def __iter__(self) -> Iterator[Pose]:
        for one, points in zip(Detections.__iter__(self), self.points, strict=True):
            named = dict(zip(self.point_names, points, strict=True))
            yield Pose(one.box, one.label, one.class_id, one.score, one.track_id, points=named)

    @classmethod
    def fields_of(cls, found: dict[str, Array], model: str) -> dict[str, Any]:
        joined, count = found.get(SKELETON, np.empty((0, 2), np.int32)), len(found[POINT_NAMES])
        if (joined >= count).any():
            raise UnexpectedResponse(f"model {model!r} answered a {SKELETON} of {joined.tolist()} for {count} points")
        return Detections.fields_of(found, model) | {
            KEYPOINTS: found[KEYPOINTS],
            POINT_SCORES: found[POINT_SCORES],
            POINT_NAMES: tuple(found[POINT_NAMES].tolist()),
            SKELETON: tuple((one, other) for one, other in joined.tolist()),
        }

    def values(self) -> dict[str, Any]:
        return Detections.values(self) | {
            KEYPOINTS: self.keypoints.tolist(),
            POINT_SCORES: self.point_scores.tolist(),
            POINT_NAMES: list(self.point_names),
            **({SKELETON: [list(pair) for pair in self.skeleton]} if self.skeleton else {}),
        }

    def schema(self, *, top: int = 1, is_flat: bool = False) -> Schema:
        """See ``Result.schema``: in a flat table each point has three columns."""
        found = Detections.schema(self, top=top, is_flat=is_flat)
        if is_flat:
            return found | {f"{name}_{part}": float for name in self.point_names for part in Point._fields}
        lists = {KEYPOINTS: list[list[tuple[float, float]]], POINT_SCORES: list[list[float]], POINT_NAMES: list[str]}
        return found | lists | ({SKELETON: list[tuple[int, int]]} if self.skeleton else {})

    def records(self, *, is_flat: bool = False) -> list[dict[str, Any]]:
        found = Detections.records(self, is_flat=is_flat)
        for record, one in zip(found, self, strict=False) if is_flat else ():
            for name, point in one.points.items():
                record |= {f"{name}_{part}": value for part, value in point._asdict().items()}
        return found

    def summary(self) -> list[Line]:
        seen = [sum(point.is_seen for point in points) for points in self.points]
        return [
            Line(one.label, one.score, f"{box_text(*one.box)}, {count} of {len(self.point_names)} points")
            for one, count in zip(self, seen, strict=True)
        ]

    def _draw_below(self, picture: Image) -> None:
        """The skeleton, as far as its points are seen."""
        from onestream.client.kinds.drawing import draw_skeletons

        found = []
        for class_id, points in zip(self.class_ids.tolist(), self.points, strict=True):
            pairs = [(points[i], points[j]) for i, j in self.skeleton if points[i].is_seen and points[j].is_seen]
            found.append((pairs, [point for point in points if point.is_seen], class_id))
        draw_skeletons(picture, found)

    def to_coco(self, image_id: int | str) -> list[dict[str, Any]]:
        """See ``Detections.to_coco``; ``keypoints`` are x, y and score of each point, one after the other."""
        return [
            entry | {"keypoints": [value for point in one.points.values() for value in point]}
            for entry, one in zip(Detections.to_coco(self, image_id), self, strict=True)
        ]
