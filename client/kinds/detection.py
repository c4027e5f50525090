"""The objects in one picture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from onestream.client.kinds.base import Array, Line, Schema, box_text, size_of
from onestream.client.kinds.classification import best_first
from onestream.client.kinds.listed import Box, Located, Quad
from onestream.wire.install import install_command
from onestream.wire.tensor_names import BOXES, CLASS_IDS, IMAGE_SIZE, LABELS, SCORES

NO_TRACK = -1
"""The track id of an object that belongs to no track."""
TRACK_IDS = "track_ids"


@dataclass(frozen=True, slots=True)
class Detection:
    """One object: its class, its score and its box, (x0, y0, x1, y1) in pixels of the picture.

    ``track_id`` is its number across the frames of a tracked video (``onestream.client.video.tracked``), from 1 on.
    """

    box: tuple[float, float, float, float]
    label: str
    class_id: int
    score: float
    track_id: int = NO_TRACK

    @property
    def quad(self) -> Quad:
        """The corners of the box, clockwise."""
        x0, y0, x1, y1 = self.box
        return (x0, y0), (x1, y0), (x1, y1), (x0, y1)

    def __str__(self) -> str:
        track = "" if self.track_id == NO_TRACK else f" #{self.track_id}"
        return f"{self.label}{track} {self.score:.2f}"


@dataclass(frozen=True, slots=True, eq=False)
class Detections(Located[Detection]):
    """The objects in one picture, best first; there may be none. Iteration gives a ``Detection`` for each.

    ``boxes`` is float32 (n, 4): x0, y0, x1, y1 in pixels of the picture after its EXIF orientation, from the outer
    corner of the first, within the picture. ``scores`` float32 (n), ``class_ids`` int32 (n), ``labels`` n names, the id
    as text where the pipeline has none. ``image_size`` is (height, width) of the picture. ``track_ids`` int32 (n) are
    there where a video is tracked; ``NO_TRACK`` stands for an object of no track.
    """

    boxes: npt.NDArray[np.float32]
    scores: npt.NDArray[np.float32]
    class_ids: npt.NDArray[np.int32]
    labels: tuple[str, ...]
    track_ids: npt.NDArray[np.int32] | None = None

    kind: ClassVar[str] = "detection"
    noun: ClassVar[str] = "objects"
    rows: ClassVar[tuple[str, ...]] = (BOXES, SCORES, CLASS_IDS, LABELS, TRACK_IDS)
    where: ClassVar[str] = "box"
    nothing: ClassVar[str] = "no objects"
    nothing_found: ClassVar[str] = "No object with a score above the pipeline's threshold."

    def __iter__(self) -> Iterator[Detection]:
        track_ids = [NO_TRACK] * len(self) if self.track_ids is None else self.track_ids.tolist()
        for box, label, class_id, score, track_id in zip(
            self.boxes.tolist(), self.labels, self.class_ids.tolist(), self.scores.tolist(), track_ids, strict=True
        ):
            yield Detection((box[0], box[1], box[2], box[3]), label, class_id, score, track_id)

    @classmethod
    def fields_of(cls, found: dict[str, Array], model: str) -> dict[str, Any]:
        scores, class_ids = best_first(found, model)
        tracks = found.get(TRACK_IDS)
        return {
            "boxes": found[BOXES],
            "scores": scores,
            "class_ids": class_ids.astype(np.int32, copy=False),
            "labels": tuple(found[LABELS].tolist()),
            "image_size": size_of(found, model),
            "track_ids": None if tracks is None else tracks.astype(np.int32, copy=False),
        }

    def values(self) -> dict[str, Any]:
        return {
            BOXES: self.boxes.tolist(),
            SCORES: self.scores.tolist(),
            CLASS_IDS: self.class_ids.tolist(),
            LABELS: list(self.labels),
            IMAGE_SIZE: list(self.image_size),
        } | ({} if self.track_ids is None else {TRACK_IDS: self.track_ids.tolist()})

    def schema(self, *, top: int = 1, is_flat: bool = False) -> Schema:
        if not is_flat:
            lists = {SCORES: list[float], CLASS_IDS: list[int], LABELS: list[str], IMAGE_SIZE: list[int]}
            return {BOXES: list[Box], **lists}
        corners = dict.fromkeys(("x0", "y0", "x1", "y1"), float)
        return {"label": str, "class_id": int, "score": float, **corners, "image_height": int, "image_width": int}

    def records(self, *, is_flat: bool = False) -> list[dict[str, Any]]:
        """Flat: one for each object; where there is none, one without a label."""
        if not is_flat:
            return [self.values()]
        height, width = self.image_size
        size = {"image_height": height, "image_width": width}
        return [
            {"label": one.label, "class_id": one.class_id, "score": one.score}
            | dict(zip(("x0", "y0", "x1", "y1"), one.box, strict=True))
            | size
            for one in self
        ] or [size]

    def summary(self) -> list[Line]:
        return [Line(one.label, one.score, box_text(*one.box)) for one in self]

    def to_coco(self, image_id: int | str) -> list[dict[str, Any]]:
        """The entries of COCO's results format (https://cocodataset.org/#format-results) for a picture with this id.

        ``bbox`` is x, y, width, height in pixels; ``category_id`` the class id as the pipeline gives it.
        """
        return [
            {
                "image_id": image_id,
                "category_id": one.class_id,
                "bbox": [one.box[0], one.box[1], one.box[2] - one.box[0], one.box[3] - one.box[1]],
                "score": one.score,
            }
            for one in self
        ]

    def to_supervision(self) -> Any:
        """A ``supervision.Detections``, with the names as ``class_name``.

        Needs the package supervision, which the extra ``detect`` installs; raises ImportError without it.
        """
        try:
            import supervision
        except ImportError as error:
            raise ImportError(f"to_supervision needs the package supervision: {install_command('detect')}") from error

        return supervision.Detections(
            xyxy=self.boxes.copy(),
            confidence=self.scores.copy(),
            class_id=self.class_ids.astype(np.int64),
            tracker_id=None if self.track_ids is None else self.track_ids.astype(np.int64),
            data={"class_name": np.array(self.labels, dtype=str)},
        )
