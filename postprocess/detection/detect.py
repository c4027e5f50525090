"""From a network's candidates to boxes in pixels of the picture."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from onestream.postprocess.detection.suppression import suppress, suppress_turned
from onestream.preprocess.cpu.loops import compiled
from onestream.preprocess.geometry import Mapping, bounding_boxes

_Floats = npt.NDArray[np.float32]
_Ids = npt.NDArray[np.int32]
_Indices = npt.NDArray[np.int64]

_ZERO = np.float32(0)
_ANY_CLASS = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, eq=False)
class Detections:
    """The objects found in one picture, best first.

    ``boxes`` is (n, 4) float32, x0 y0 x1 y1 in pixels of the picture after its EXIF orientation, within it and with an
    area above 0; ``scores`` (n,) float32; ``classes`` (n,) int32, from 0; ``image_size`` the picture's (height, width);
    ``places`` (n,) where each was among the candidates. ``quads`` (n, 4, 2) are the corners of boxes that are turned,
    which may be outside the picture, and ``boxes`` those around them.
    ``dropped`` counts the candidates with a NaN or an infinity, and those above the threshold of no known class;
    ``left_out`` the objects beyond the most that there may be. ``is_full``: every candidate was above the threshold, so
    that the network's exit may have cut some off.
    """

    boxes: npt.NDArray[np.float32]
    scores: npt.NDArray[np.float32]
    classes: npt.NDArray[np.int32]
    image_size: tuple[int, int]
    places: npt.NDArray[np.int64]
    quads: npt.NDArray[np.float32] | None
    dropped: int
    left_out: int
    is_full: bool


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
    angles: npt.NDArray[np.float32] | None = None,
) -> Detections:
    """The objects among one picture's candidates, which a detector's exit gives best first.

    ``boxes`` is (k, 4) float32, x0 y0 x1 y1 in pixels of the network's input; ``scores`` (k,) float32; ``classes`` (k,)
    int32, from 0. Candidates with a score above ``score_threshold`` are suppressed as in ``suppress``, where
    ``iou_threshold`` is not None; the best ``max_detections`` are mapped to the picture and clipped to it, and those of
    which nothing is left there go. ``classes_known`` is how many classes there are, where that is known. ``angles``
    (k,) turn boxes about their middles, clockwise in radians; these are suppressed as in ``suppress_turned``.
    """
    boxes, scores = np.ascontiguousarray(boxes, np.float32), np.ascontiguousarray(scores, np.float32)
    classes = np.ascontiguousarray(classes, np.int32)
    chosen = np.empty(len(scores), np.int64)
    unknown_from = _ANY_CLASS if classes_known is None else classes_known
    count, dropped = _choose(boxes, scores, classes, np.float32(score_threshold), unknown_from, chosen)
    is_full = 0 < count == len(scores)
    chosen = chosen[:count]
    if iou_threshold is not None:
        drop = suppress if angles is None else partial(suppress_turned, angles)
        chosen = drop(boxes, classes, chosen, iou_threshold=iou_threshold, class_aware=class_aware)
    left_out = max(0, len(chosen) - max_detections)
    chosen = chosen[:max_detections]
    height, width = mapping.source_hw
    quads = None if angles is None else mapping.quads_to_source(corners(boxes[chosen], angles[chosen]))
    around = mapping.to_source(boxes[chosen]) if quads is None else bounding_boxes(quads)
    mapped = np.ascontiguousarray(around, np.float32)
    places = np.arange(len(chosen))
    places = places[: _clip(mapped, places, np.float32(height), np.float32(width))]
    chosen = chosen[places]
    quads = None if quads is None else quads[places]
    return Detections(
        mapped[: len(places)],
        scores[chosen],
        classes[chosen],
        (height, width),
        chosen,
        quads,
        dropped,
        left_out,
        is_full,
    )


def corners(boxes: npt.NDArray[np.float32], angles: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The corners (n, 4, 2) of boxes that are turned about their middles: clockwise from what was the top left one."""
    middles, halves = (boxes[:, :2] + boxes[:, 2:]) / 2, (boxes[:, 2:] - boxes[:, :2]) / 2
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    across = halves[:, :1] * np.concatenate([cos, sin], axis=1)
    down = halves[:, 1:] * np.concatenate([-sin, cos], axis=1)
    return np.stack(
        [middles - across - down, middles + across - down, middles + across + down, middles - across + down], 1
    )


# One loop in the place of a dozen NumPy calls each, whose own code is never in the processor's caches when a network
# has just run: that took five times what it takes in a loop of its own.


@compiled("UniTuple(int64, 2)(float32[:,::1], float32[::1], int32[::1], float32, int64, int64[::1])")
def _choose(
    boxes: _Floats, scores: _Floats, classes: _Ids, score_threshold: np.float32, unknown_from: int, chosen: _Indices
) -> tuple[int, int]:
    """Fill ``chosen`` with the indices of the candidates above the threshold, best first; of equals the lower is first.

    Returns how many these are, and how many are dropped: not finite, or above the threshold and of a class below 0 or
    from ``unknown_from`` on. Networks fill rows up, with scores of 0 and any class.
    """
    count = dropped = 0
    for index in range(scores.size):
        score = scores[index]
        finite = np.isfinite(score)
        for side in range(4):
            finite = finite and np.isfinite(boxes[index, side])
        if not finite or (score > score_threshold and not 0 <= classes[index] < unknown_from):
            dropped += 1
        elif score > score_threshold:
            # They come best first but for those that an exit moves forward; so this loop ends at once.
            place = count
            while place > 0 and scores[chosen[place - 1]] < score:
                chosen[place] = chosen[place - 1]
                place -= 1
            chosen[place] = index
            count += 1
    return count, dropped


@compiled("int64(float32[:,::1], int64[::1], float32, float32)")
def _clip(boxes: _Floats, indices: _Indices, height: np.float32, width: np.float32) -> int:
    """Clip boxes to the picture, move those of which something is left to the front with their indices; how many."""
    count = 0
    for index in range(indices.size):
        x0, x1 = max(_ZERO, min(boxes[index, 0], width)), max(_ZERO, min(boxes[index, 2], width))
        y0, y1 = max(_ZERO, min(boxes[index, 1], height)), max(_ZERO, min(boxes[index, 3], height))
        if x1 > x0 and y1 > y0:
            boxes[count, 0], boxes[count, 1], boxes[count, 2], boxes[count, 3] = x0, y0, x1, y1
            indices[count] = indices[index]
            count += 1
    return count
