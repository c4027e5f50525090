"""The objects in a picture and boxes around them that are turned, such as ships seen from above."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from onestream.postprocess.kinds.base import Tensors
from onestream.postprocess.kinds.detection import Detector
from onestream.preprocess.geometry import Mapping
from onestream.wire.tensor_names import CANDIDATE_VALUES, CANDIDATES, CLASS_IDS, QUADS

if TYPE_CHECKING:
    from onestream.postprocess.detection.detect import Detections
    from onestream.postprocess.detection.drawing import Lines


class OrientedBoxes(Detector):
    """Objects and boxes that are turned, from the outputs of a network such as YOLO-OBB."""

    network_gives: ClassVar[tuple[str, ...]] = (*CANDIDATES, CANDIDATE_VALUES)

    kind: Literal["oriented_boxes"] = "oriented_boxes"
    family: Literal["yolo", "boxes"] = Field(
        description="what the network's outputs mean, each box's angle after its other values: *yolo* (YOLOv8-obb to "
        "YOLO26-obb); *boxes*, which are decoded and suppressed already, with `box_format: cxcywh`"
    )

    @property
    def more_values(self) -> int:
        """See ``DetectorFamily.more_values``: the angle, clockwise in radians."""
        return 1

    @property
    def not_in_a_stage(self) -> str:
        return "later stages take upright boxes: serve it by itself"

    def angles(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return values[:, 0]

    def read_more(
        self, values: npt.NDArray[np.float32], found: Detections, mapping: Mapping, *maps: npt.NDArray[np.float32]
    ) -> Tensors:
        """See ``Detector.read_more``: the corners, which may be outside the picture as in ultralytics."""
        assert found.quads is not None
        return {QUADS: found.quads[None]}

    def lines(self, results: Tensors) -> Lines:
        """See ``Detector.lines``: the sides, in the place of boxes."""
        from onestream.postprocess.detection.drawing import NO_LINES

        quads = results[QUADS]
        ends = np.concatenate([quads, np.roll(quads, -1, axis=1)], axis=2).reshape(-1, 4)
        return NO_LINES._replace(ends=ends, class_ids=results[CLASS_IDS].repeat(4), in_place_of_boxes=True)
