"""The objects in a picture and the points of each, such as the joints of persons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, Field, model_validator

from onestream.postprocess.kinds.base import Tensors, one_line
from onestream.postprocess.kinds.detection import Detector
from onestream.preprocess.geometry import Mapping
from onestream.wire.comparing import SEEN
from onestream.wire.tensor_names import (
    CANDIDATE_VALUES,
    CANDIDATES,
    CLASS_IDS,
    KEYPOINTS,
    POINT_NAMES,
    POINT_SCORES,
    SKELETON,
)

if TYPE_CHECKING:
    from onestream.postprocess.detection.detect import Detections
    from onestream.postprocess.detection.drawing import Lines

_COCO_POINTS = (
    *("nose", "left_eye", "right_eye", "left_ear", "right_ear", "left_shoulder", "right_shoulder", "left_elbow"),
    *("right_elbow", "left_wrist", "right_wrist", "left_hip", "right_hip", "left_knee", "right_knee", "left_ankle"),
    "right_ankle",
)
_COCO_SKELETON = (
    *((15, 13), (13, 11), (16, 14), (14, 12), (11, 12), (5, 11), (6, 12), (5, 6), (5, 7), (6, 8), (7, 9), (8, 10)),
    *((1, 2), (0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 6)),
)
"""Names and skeleton of COCO's ``person_keypoints_val2017.json``, from 0."""


class Keypoints(Detector):
    """Objects, their boxes and their points, from the outputs of a network such as YOLO-pose."""

    network_gives: ClassVar[tuple[str, ...]] = (*CANDIDATES, CANDIDATE_VALUES)

    kind: Literal["keypoints"] = "keypoints"
    family: Literal["yolo", "boxes"] = Field(
        description="what the network's outputs mean, each box's points after its other values: *yolo* (YOLOv8-pose to "
        "YOLO26-pose); *boxes*, which are decoded and suppressed already"
    )
    points: Literal["coco"] | Annotated[tuple[Annotated[str, AfterValidator(one_line)], ...], Field(min_length=1)] = (
        Field(
            default="coco",
            description="the names of an object's points, in the network's order; *coco*: the 17 of persons",
        )
    )
    point_scores: bool = Field(
        default=True,
        description="whether the network gives a score after x and y of each point; without it every score is 1",
    )
    skeleton: tuple[tuple[str, str], ...] | None = Field(
        default=None,
        description="pairs of points between which lines are drawn, by their names; without it COCO's for *coco*, and "
        "none for other points",
    )

    @model_validator(mode="after")
    def _known_points(self) -> Keypoints:
        if len(set(self.point_names)) < len(self.point_names):
            raise ValueError("points has a name twice")
        for pair in self.skeleton or ():
            for name in pair:
                if name not in self.point_names:
                    raise ValueError(f"skeleton has {name!r}, which is not among the points")
        return self

    @property
    def point_names(self) -> tuple[str, ...]:
        """The name of each point."""
        return _COCO_POINTS if self.points == "coco" else self.points

    @property
    def bones(self) -> tuple[tuple[int, int], ...]:
        """The skeleton by the places of the points."""
        if self.skeleton is None:
            return _COCO_SKELETON if self.points == "coco" else ()
        return tuple((self.point_names.index(one), self.point_names.index(other)) for one, other in self.skeleton)

    @property
    def more_values(self) -> int:
        """See ``DetectorFamily.more_values``: x, y and perhaps a score for each point."""
        return len(self.point_names) * (3 if self.point_scores else 2)

    @property
    def not_in_a_stage(self) -> str:
        return "later stages take boxes, and no points: write kind detection for it, or serve it by itself"

    @property
    def not_given(self) -> tuple[str, ...]:
        return () if self.bones else (SKELETON,)

    def read_more(
        self, values: npt.NDArray[np.float32], found: Detections, mapping: Mapping, *maps: npt.NDArray[np.float32]
    ) -> Tensors:
        """See ``Detector.read_more``: points are in the picture, at its border where the network sees them beyond."""
        each = values.reshape(len(values), len(self.point_names), 3 if self.point_scores else 2)
        points = mapping.points_to_source(each[..., :2].astype(np.float64)).clip(0, mapping.source_hw[::-1])
        scores = each[..., 2] if self.point_scores else np.ones(each.shape[:2], np.float32)
        told: Tensors = {
            KEYPOINTS: points.astype(np.float32)[None],
            POINT_SCORES: np.ascontiguousarray(scores)[None],
            POINT_NAMES: np.array([[name.encode() for name in self.point_names]], object),
        }
        return told | ({SKELETON: np.array([self.bones], np.int32)} if self.bones else {})

    def lines(self, results: Tensors) -> Lines:
        """See ``Detector.lines``: the skeletons, as far as their points are seen, and the points."""
        from onestream.postprocess.detection.drawing import Lines

        points, seen = results[KEYPOINTS], results[POINT_SCORES] >= SEEN
        joined = np.array(self.bones, np.int64).reshape(-1, 2)
        objects, bones = np.nonzero(seen[:, joined].all(axis=2))
        ends = points[objects[:, None], joined[bones]].reshape(-1, 4)
        return Lines(ends, results[CLASS_IDS][objects], points[seen], results[CLASS_IDS][np.nonzero(seen)[0]])
