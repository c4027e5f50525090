"""From a network's candidates to boxes in pixels of the picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from onestream.postprocess.detection.suppression import suppress

_Floats = npt.NDArray[np.float32]
_Ids = npt.NDArray[np.int32]


class ToSource(Protocol):
    """Where boxes on the network's input lie in the picture: ``onestream.preprocess.geometry.Mapping``."""

    @property
    def source_hw(self) -> tuple[int, int]:
        """Height and width of the picture after its EXIF orientation."""

    def to_source(self, boxes: npt.NDArray[np.float32], /) -> npt.NDArray[np.float32]:
        """Boxes (n, 4), x0 y0 x1 y1 in pixels of the network's input, in pixels of the picture."""


@dataclass(frozen=True, slots=True, eq=False)
class Detections:
    """The objects found in one picture, best first.

    ``boxes`` is (n, 4) float32, x0 y0 x1 y1 in pixels of the picture after its EXIF orientation, within it and with an
    area above 0; ``scores`` (n,) float32; ``classes`` (n,) int32, from 0; ``image_size`` the picture's (height, width).
    ``dropped`` counts the candidates with a NaN or an infinity, or of a class that is not known.
    """

    boxes: npt.NDArray[np.float32]
    scores: npt.NDArray[np.float32]
    classes: npt.NDArray[np.int32]
    image_size: tuple[int, int]
    dropped: int


def detect(
    boxes: npt.NDArray[np.float32],
    scores: npt.NDArray[np.float32],
    classes: npt.NDArray[np.int32],
    mapping: ToSource,
    *,
    score_threshold: float,
    iou_threshold: float | None,
    class_aware: bool = True,
    max_detections: int,
    classes_known: int | None = None,
) -> Detections:
    """The objects among one picture's candidates, which a detector's exit gives best first.

    ``boxes`` is (k, 4) float32, x0 y0 x1 y1 in pixels of the network's input; ``scores`` (k,) float32; ``classes`` (k,)
    int32, from 0. Candidates with a score above ``score_threshold`` are suppressed as in ``suppress``, where
    ``iou_threshold`` is not None; the best ``max_detections`` are mapped to the picture and clipped to it, and those of
    which nothing is left there go. ``classes_known`` is how many classes there are, where that is known.
    """
    valid = np.isfinite(scores) & np.isfinite(boxes).all(axis=1)
    if classes_known is not None:
        valid &= (classes >= 0) & (classes < classes_known)
    dropped = len(valid) - int(np.count_nonzero(valid))
    chosen = np.flatnonzero(valid & (scores > score_threshold))
    if iou_threshold is None:
        chosen = chosen[np.argsort(-scores[chosen], kind="stable")[:max_detections]]
    else:
        chosen = chosen[
            suppress(
                boxes[chosen],
                scores[chosen],
                classes[chosen],
                iou_threshold=iou_threshold,
                class_aware=class_aware,
                max_detections=max_detections,
            )
        ]
    height, width = mapping.source_hw
    mapped = np.clip(mapping.to_source(boxes[chosen]), 0, (width, height, width, height)).astype(np.float32)
    visible = (mapped[:, 2:] > mapped[:, :2]).all(axis=1)
    found = chosen[visible]
    return Detections(mapped[visible], scores[found], classes[found], (height, width), dropped)
