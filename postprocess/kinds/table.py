"""The table of kinds. A served model imports its own kind alone."""

from __future__ import annotations

from typing import get_args

from onestream.postprocess.kinds.base import Options
from onestream.postprocess.kinds.classification import Classification
from onestream.postprocess.kinds.dense_map import DenseMap
from onestream.postprocess.kinds.detection import Detection
from onestream.postprocess.kinds.embedding import Embedding
from onestream.postprocess.kinds.instance_masks import InstanceMasks
from onestream.postprocess.kinds.keypoints import Keypoints
from onestream.postprocess.kinds.matte import Matte
from onestream.postprocess.kinds.oriented_boxes import OrientedBoxes
from onestream.postprocess.kinds.raw import Raw
from onestream.postprocess.kinds.rotation import Rotation
from onestream.postprocess.kinds.segmentation import Segmentation
from onestream.postprocess.kinds.text import Text
from onestream.postprocess.kinds.text_lines import TextLines

AnyPostprocess = (
    Classification
    | DenseMap
    | Detection
    | Embedding
    | InstanceMasks
    | Keypoints
    | Matte
    | OrientedBoxes
    | Raw
    | Rotation
    | Segmentation
    | Text
    | TextLines
)
"""The table of kinds."""

OPTIONS: tuple[type[Options], ...] = get_args(AnyPostprocess)
"""The same, to be gone through."""
