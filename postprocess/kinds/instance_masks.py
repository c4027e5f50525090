"""The objects in a picture and the pixels of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from onestream.postprocess.kinds.base import Tensors
from onestream.postprocess.kinds.detection import Detector
from onestream.preprocess.geometry import Mapping
from onestream.wire.run_lengths import decode, encode
from onestream.wire.tensor_names import CANDIDATE_VALUES, CANDIDATES, CLASS_IDS, PROTOTYPES, RUN_LENGTHS

if TYPE_CHECKING:
    from onestream.postprocess.detection.detect import Detections
    from onestream.postprocess.detection.drawing import Lines


class InstanceMasks(Detector):
    """Objects, their boxes and their pixels, from the outputs of a network such as YOLO-seg."""

    network_gives: ClassVar[tuple[str, ...]] = (*CANDIDATES, CANDIDATE_VALUES, PROTOTYPES)

    kind: Literal["instance_masks"] = "instance_masks"
    family: Literal["yolo", "boxes"] = Field(
        description="what the network's first output means, each box's values for the prototypes, which are the second "
        "output, after all others: *yolo* (YOLOv8-seg to YOLO26-seg); *boxes*, which are decoded and suppressed already"
    )

    @property
    def has_prototypes(self) -> bool:
        return True

    @property
    def not_in_a_stage(self) -> str:
        return "later stages take boxes, and no masks: write kind detection for it, or serve it by itself"

    def read_more(
        self, values: npt.NDArray[np.float32], found: Detections, mapping: Mapping, *maps: npt.NDArray[np.float32]
    ) -> Tensors:
        """See ``Detector.read_more``: masks of the picture's pixels, within the boxes."""
        from onestream.postprocess.detection.masks import run_lengths

        runs = run_lengths(values, found.boxes, maps[0], mapping)
        told = np.empty((1, len(runs)), object)
        told[0, :] = [encode(one) for one in runs]
        return {RUN_LENGTHS: told}

    def lines(self, results: Tensors) -> Lines:
        """See ``Detector.lines``: no line, and the pixels in the colours of their classes."""
        from onestream.postprocess.detection.drawing import NO_LINES

        return NO_LINES._replace(runs=[decode(one) for one in results[RUN_LENGTHS]], run_class_ids=results[CLASS_IDS])
