"""Suppression keeps what torchvision keeps, in its order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torchvision_alone
from hypothesis import given
from hypothesis import strategies as st

from onestream.postprocess.detection import suppress as suppress_ordered

THRESHOLDS = st.sampled_from([0.0, 0.25, 0.3, 0.45, 0.5, 0.7, 1.0])
EXACT = st.integers(0, 256).map(lambda quarters: np.float32(quarters / 4))
"""Coordinates that stay exact when ``batched_nms`` moves the classes apart."""
ANY = st.floats(-1e4, 1e4, width=32)
SCORES = st.one_of(st.sampled_from([0.25, 0.5, 1.0]), st.floats(0, 1, width=32))
"""Equal ones are frequent."""


def candidates(coordinates: st.SearchStrategy[float]) -> st.SearchStrategy[tuple[np.ndarray, ...]]:
    """Boxes with corners in either order, with and without area, scores and classes."""
    rows = st.lists(st.tuples(st.tuples(*[coordinates] * 4), SCORES, st.integers(0, 3)), max_size=40)
    return rows.map(
        lambda rows: (
            np.array([row[0] for row in rows], np.float32).reshape(-1, 4),
            np.array([row[1] for row in rows], np.float32),
            np.array([row[2] for row in rows], np.int32),
        )
    )


def plain_nms(boxes: Any, scores: Any, iou_threshold: float) -> Any:
    """What torchvision's compiled ``nms`` does on a CPU: each box that stays marks the worse ones that it overlaps."""
    import torch

    x0, y0, x1, y1 = boxes.numpy().T
    areas = (x1 - x0) * (y1 - y0)
    marked, kept = np.zeros(len(boxes), bool), []
    for index in np.argsort(-scores.numpy(), kind="stable"):
        if marked[index]:
            continue
        kept.append(index)
        width = np.maximum(0, np.minimum(x1[index], x1) - np.maximum(x0[index], x0))
        height = np.maximum(0, np.minimum(y1[index], y1) - np.maximum(y0[index], y0))
        with np.errstate(divide="ignore", invalid="ignore"):
            overlap = width * height / (areas[index] + areas - width * height)
        # A float32 beside a float64 in C++ becomes one: 0.3 in float32 is above 0.3.
        marked |= overlap.astype(np.float64) > iou_threshold
    return torch.tensor(np.array(kept, np.int64))


def suppress(boxes: Any, scores: Any, class_ids: Any, *, max_detections: int, **options: Any) -> np.ndarray:
    order = np.argsort(-scores, kind="stable")
    return suppress_ordered(boxes, class_ids, order, **options)[:max_detections]


@pytest.fixture(scope="module", autouse=True)
def compiled_nms() -> Iterator[None]:
    """torchvision's own, or the plain one where its operators do not suit the installed PyTorch."""
    torch = pytest.importorskip("torch")
    torchvision_alone.load()
    extension = pytest.importorskip("torchvision.extension")
    if extension._has_ops():
        yield
        return
    library = torch.library.Library("torchvision", "IMPL")
    library.impl("nms", plain_nms, "CPU")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extension, "_has_ops", lambda: True)
        yield
    library._destroy()


def nms(*rows: np.ndarray, iou_threshold: float) -> np.ndarray:
    """``torchvision.ops.nms`` of boxes and scores; with classes, ``batched_nms``."""
    import torch
    from torchvision import ops

    kept = (ops.nms if len(rows) == 2 else ops.batched_nms)(*map(torch.tensor, rows), iou_threshold)
    return kept.numpy()


def per_class(boxes: np.ndarray, scores: np.ndarray, class_ids: np.ndarray, iou_threshold: float) -> np.ndarray:
    """``torchvision.ops.nms`` of each class by itself, best first."""
    kept = [
        own[nms(boxes[own], scores[own], iou_threshold=iou_threshold)]
        for own in (np.flatnonzero(class_ids == class_id) for class_id in np.unique(class_ids))
    ]
    indices = np.sort(np.concatenate([np.empty(0, np.int64), *kept]))
    return indices[np.argsort(-scores[indices], kind="stable")]


def check(expected: np.ndarray, *rows: np.ndarray, **options: Any) -> None:
    """All that are kept, and the best of them where fewer are asked for."""
    for most in (100, 1, len(expected) // 2):
        np.testing.assert_array_equal(suppress(*rows, max_detections=most, **options), expected[:most])


@given(candidates(EXACT), THRESHOLDS)
def test_as_batched_nms(rows: tuple[np.ndarray, ...], iou_threshold: float) -> None:
    corners, *others = rows
    low, high = np.minimum(corners[:, :2], corners[:, 2:]), np.maximum(corners[:, :2], corners[:, 2:])
    boxes = np.concatenate([low, high], axis=1)
    check(nms(boxes, *others, iou_threshold=iou_threshold), boxes, *others, iou_threshold=iou_threshold)


@given(candidates(ANY), THRESHOLDS)
def test_each_class_and_all_together_as_nms(rows: tuple[np.ndarray, ...], iou_threshold: float) -> None:
    check(per_class(*rows, iou_threshold), *rows, iou_threshold=iou_threshold)
    check(nms(*rows[:2], iou_threshold=iou_threshold), *rows, iou_threshold=iou_threshold, class_aware=False)


@pytest.mark.parametrize("count", [1000, 3840])
@pytest.mark.parametrize("spread", [20.0, 2000.0], ids=["heaped", "apart"])
def test_many_boxes(count: int, spread: float) -> None:
    """More than 1000 boxes take another way through ``batched_nms``, which leaves the order of equal scores open."""
    draw = np.random.default_rng(count)
    corners = draw.uniform(0, spread, (count, 2)).astype(np.float32)
    boxes = np.concatenate([corners, corners + draw.uniform(1, 100, (count, 2)).astype(np.float32)], axis=1)
    scores = draw.uniform(0, 1, count).astype(np.float32).round(2)
    class_ids = draw.integers(0, 80, count).astype(np.int32)
    found = suppress(boxes, scores, class_ids, iou_threshold=0.5, max_detections=count)
    np.testing.assert_array_equal(found, per_class(boxes, scores, class_ids, 0.5))
    assert 0 < len(found) < count
    if count > 1000:
        expected = nms(boxes, scores, class_ids, iou_threshold=0.5)
        np.testing.assert_array_equal(np.sort(found), np.sort(expected))
        np.testing.assert_array_equal(scores[found], scores[expected])


def test_no_box_and_one_box() -> None:
    none = np.empty((0, 4), np.float32), np.empty(0, np.float32), np.empty(0, np.int32)
    assert suppress(*none, iou_threshold=0.5, max_detections=10).tolist() == []
    one = np.ones((1, 4), np.float32), np.ones(1, np.float32), np.zeros(1, np.int32)
    assert suppress(*one, iou_threshold=0.5, max_detections=10).tolist() == [0]
    assert suppress(*one, iou_threshold=0.5, max_detections=0).tolist() == []


@pytest.mark.parametrize(("iou_threshold", "kept"), [(0.3, [0]), (0.30000002, [0, 1]), (0.7, [0, 1])])
def test_an_overlap_is_float32_and_the_threshold_is_not(iou_threshold: float, kept: list[int]) -> None:
    """3 of 10 in float32 is 0.300000012."""
    boxes = np.float32([[0, 0, 10, 1], [0, 0, 3, 1]])
    scores, class_ids = np.float32([0.9, 0.8]), np.zeros(2, np.int32)
    assert nms(boxes, scores, iou_threshold=iou_threshold).tolist() == kept
    assert suppress(boxes, scores, class_ids, iou_threshold=iou_threshold, max_detections=9).tolist() == kept


def test_far_classes_keep_their_precision() -> None:
    """Moved apart by class 80 000 the two boxes would have float32's steps of 8 pixels, and not overlap."""
    boxes = np.float32([[0, 0, 1000, 3], [0, 0, 1000, 3.25]])
    scores, class_ids = np.float32([0.9, 0.8]), np.int32([80_000, 80_000])
    assert suppress(boxes, scores, class_ids, iou_threshold=0.9, max_detections=10).tolist() == [0]
