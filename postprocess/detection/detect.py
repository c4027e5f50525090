"""From a network's candidates to boxes in pixels of the picture."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onestream.postprocess.detection.suppression import suppress
from onestream.preprocess.geometry import Mapping, clipped


@dataclass(frozen=True, slots=True, eq=False)
class Detections:
    """The objects found in one picture, best first.

    ``boxes`` is (n, 4) float32, x0 y0 x1 y1 in pixels of the picture after its EXIF orientation, within it and with an
    area above 0; ``scores`` (n,) float32; ``classes`` (n,) int32, from 0; ``image_size`` the picture's (height, width).
    ``dropped`` counts the candidates with a NaN or an infinity, and those above the threshold of no known class.
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
    mapping: Mapping,
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
    finite = np.isfinite(scores) & np.isfinite(boxes).all(axis=1)
    known = (classes >= 0) & (classes < (np.inf if classes_known is None else classes_known))
    wanted = finite & (scores > score_threshold)
    # Networks fill rows up, with scores of 0 and any class.
    dropped = int(np.count_nonzero(~finite | (wanted & ~known)))
    chosen = np.flatnonzero(wanted & known)
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
    mapped = clipped(mapping.to_source(boxes[chosen]), mapping.source_hw)
    visible = (mapped[:, 2:] > mapped[:, :2]).all(axis=1)
    found = chosen[visible]
    return Detections(mapped[visible], scores[found], classes[found], mapping.source_hw, dropped)
