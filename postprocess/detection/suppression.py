"""Greedy non-maximum suppression, compiled by Numba when this module is first imported and cached on disk.

The global interpreter lock is released.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onestream.preprocess.cpu.loops import compiled

_Floats = npt.NDArray[np.float32]
_Ids = npt.NDArray[np.int32]
_Indices = npt.NDArray[np.int64]

_ZERO = np.float32(0)
_SLACK = 1e-7
"""Keeps divisors above 0, as in ultralytics."""


def suppress(
    boxes: npt.NDArray[np.float32],
    class_ids: npt.NDArray[np.int32],
    order: npt.NDArray[np.int64],
    *,
    iou_threshold: float,
    class_aware: bool = True,
) -> npt.NDArray[np.int64]:
    """The indices of the boxes that stay, in ``order``: each is dropped that overlaps an earlier one that stays.

    ``boxes`` is (n, 4) float32, x0 y0 x1 y1; ``class_ids`` (n,) int32; ``order`` has their indices, best first. All are
    finite and C-contiguous. Boxes overlap where their intersection over union is above ``iou_threshold``. With
    ``class_aware`` boxes of different classes never overlap.

    The same boxes stay, in the same order, as by ``torchvision.ops.nms`` on a CPU for each class, which takes the lower
    index first as well. Overlaps are computed in float32 in its order of operations. ``batched_nms`` does more: up to
    1000 boxes it moves the classes apart first, which costs precision; above, it leaves the order of equal scores open.
    """
    kept = np.empty(len(order), np.int64)
    return kept[: _suppress(boxes, class_ids, order, iou_threshold, class_aware, kept)]


@compiled("int64(float32[:,::1], int32[::1], int64[::1], float64, boolean, int64[::1])")
def _suppress(
    boxes: _Floats, class_ids: _Ids, order: _Indices, iou_threshold: float, class_aware: bool, kept: _Indices
) -> int:
    """Fill ``kept`` from ``order``; how many were kept."""
    # The kept boxes lie beside each other, so that the loop over them reads memory in order.
    corners = np.empty((kept.size, 4), np.float32)
    areas = np.empty(kept.size, np.float32)
    classes = np.empty(kept.size, np.int32)
    count = 0
    for index in order:
        x0, y0, x1, y1 = boxes[index, 0], boxes[index, 1], boxes[index, 2], boxes[index, 3]
        area, own = (x1 - x0) * (y1 - y0), class_ids[index]
        overlaps = False
        for better in range(count):
            if class_aware and classes[better] != own:
                continue
            width = max(_ZERO, min(corners[better, 2], x1) - max(corners[better, 0], x0))
            height = max(_ZERO, min(corners[better, 3], y1) - max(corners[better, 1], y0))
            intersection = width * height
            union = areas[better] + area - intersection
            # Without any area this is NaN, which is above nothing.
            if intersection / union > iou_threshold:
                overlaps = True
                break
        if not overlaps:
            kept[count] = index
            corners[count, 0], corners[count, 1], corners[count, 2], corners[count, 3] = x0, y0, x1, y1
            areas[count], classes[count] = area, own
            count += 1
    return count


def suppress_turned(
    angles: npt.NDArray[np.float32],
    boxes: npt.NDArray[np.float32],
    class_ids: npt.NDArray[np.int32],
    order: npt.NDArray[np.int64],
    *,
    iou_threshold: float,
    class_aware: bool,
) -> npt.NDArray[np.int64]:
    """As ``suppress``, of boxes that are turned by ``angles`` (n,) in radians about their middles.

    They overlap by the probabilistic IoU (https://arxiv.org/abs/2106.06072), and a box is dropped that overlaps any
    better one, whether that stays or not: Fast NMS (https://arxiv.org/abs/1904.02689). Both as ultralytics does.
    """
    middles, sides = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
    cos, sin = np.cos(angles), np.sin(angles)
    a, b = sides.T**2 / 12
    spread = np.stack([a * cos**2 + b * sin**2, a * sin**2 + b * cos**2, (a - b) * cos * sin], axis=1)
    found = np.concatenate([middles, spread], axis=1, dtype=np.float64)
    kept = np.empty(len(order), np.int64)
    return kept[: _suppress_turned(found, class_ids, order, iou_threshold, class_aware, kept)]


@compiled("int64(float64[:,::1], int32[::1], int64[::1], float64, boolean, int64[::1])")
def _suppress_turned(
    found: npt.NDArray[np.float64],
    class_ids: _Ids,
    order: _Indices,
    iou_threshold: float,
    class_aware: bool,
    kept: _Indices,
) -> int:
    """Fill ``kept`` from ``order``; how many were kept. ``found`` are x, y and the covariance of each: xx, yy, xy."""
    count = 0
    for place in range(order.size):
        one, overlaps = order[place], False
        for before in range(place):
            other = order[before]
            if class_aware and class_ids[one] != class_ids[other]:
                continue
            x, y = found[one, 0] - found[other, 0], found[one, 1] - found[other, 1]
            xx, yy, xy = (
                found[one, 2] + found[other, 2],
                found[one, 3] + found[other, 3],
                found[one, 4] + found[other, 4],
            )
            both = xx * yy - xy**2
            own = max(0.0, found[one, 2] * found[one, 3] - found[one, 4] ** 2)
            its = max(0.0, found[other, 2] * found[other, 3] - found[other, 4] ** 2)
            distance = (xx * y**2 + yy * x**2 - 2 * xy * x * y) / (both + _SLACK) / 4
            distance += np.log(both / (4 * np.sqrt(own * its) + _SLACK) + _SLACK) / 2
            distance = min(max(distance, _SLACK), 100.0)
            if 1 - np.sqrt(1 - np.exp(-distance) + _SLACK) > iou_threshold:
                overlaps = True
                break
        if not overlaps:
            kept[count] = one
            count += 1
    return count
