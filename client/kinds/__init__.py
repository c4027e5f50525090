"""The results of pipelines by their kinds: a file each, and one table."""

from __future__ import annotations

from onestream.client._transports.base import Tensors
from onestream.client.kinds.base import Result
from onestream.client.kinds.classification import Classification
from onestream.client.kinds.dense_map import DenseMap
from onestream.client.kinds.detection import Detections
from onestream.client.kinds.embedding import Embedding
from onestream.client.kinds.instance_masks import InstanceMasks
from onestream.client.kinds.keypoints import Keypoints
from onestream.client.kinds.oriented_boxes import OrientedBoxes
from onestream.client.kinds.outputs import Matte, Outputs
from onestream.client.kinds.regions import Reading, Regions, TextLines
from onestream.client.kinds.segmentation import Segmentation
from onestream.client.kinds.text import Rotation, Text

__all__ = [
    "RESULTS",
    "Classification",
    "DenseMap",
    "Detections",
    "Embedding",
    "InstanceMasks",
    "Keypoints",
    "Matte",
    "OrientedBoxes",
    "Outputs",
    "Reading",
    "Regions",
    "Result",
    "Rotation",
    "Segmentation",
    "Text",
    "read",
]

_CLASSES: tuple[type[Result], ...] = (
    Classification,
    DenseMap,
    Detections,
    Embedding,
    InstanceMasks,
    Keypoints,
    Matte,
    OrientedBoxes,
    Outputs,
    Reading,
    Regions,
    Rotation,
    Segmentation,
    Text,
    TextLines,
)
RESULTS: dict[str, type[Result]] = {result.kind: result for result in _CLASSES}
"""What ``predict`` gives by the kind that a model says; ``Outputs`` of others, and where it says none."""


def read(kind: str | None, model: str, tensors: Tensors, request_id: str, latency_ms: float) -> Result:
    """The result in the outputs of a pipeline of a kind.

    Raises UnexpectedResponse for outputs that are not as they must be.
    """
    return RESULTS.get(kind or "", Outputs).from_tensors(model, tensors, request_id, latency_ms)
