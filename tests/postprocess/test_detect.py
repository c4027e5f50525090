"""Candidates become boxes in pixels of the picture."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onestream.postprocess.detection import Detections, detect
from onestream.preprocess.geometry import Mapping

LETTERBOX = Mapping((200, 400), (420, 840), scale=(2.0, 2.0), offset=(10.0, 20.0))
"""A picture of 400 x 200 pixels, doubled, 10 pixels below the canvas' upper edge and 20 beside its left one."""


def found(rows: list[tuple[Any, ...]], **options: Any) -> Detections:
    """``rows`` are x0, y0, x1, y1, score, class."""
    table = np.array(rows, np.float64).reshape(-1, 6)
    options = {"score_threshold": 0.25, "iou_threshold": 0.5, "max_detections": 100} | options
    boxes, scores = table[:, :4].astype(np.float32), table[:, 4].astype(np.float32)
    return detect(boxes, scores, table[:, 5].astype(np.int32), LETTERBOX, **options)


def test_boxes_are_in_pixels_of_the_picture() -> None:
    result = found([(40, 30, 60, 70, 0.9, 2), (120, 10, 140, 20, 0.5, 0)])
    assert result.boxes.tolist() == [[10, 10, 20, 30], [50, 0, 60, 5]]
    assert result.scores.tolist() == pytest.approx([0.9, 0.5])
    assert result.classes.tolist() == [2, 0]
    assert result.image_size == (200, 400)
    assert (result.boxes.dtype, result.scores.dtype, result.classes.dtype) == (np.float32, np.float32, np.int32)


def test_boxes_are_clipped_and_those_with_nothing_left_go() -> None:
    clipped = [(0, 0, 60, 70, 0.9, 0), (800, 390, 9000, 9000, 0.8, 0)]
    result = found([*clipped, (0, 0, 20, 400, 0.7, 0), (900, 30, 990, 70, 0.6, 0), (60, 30, 40, 70, 0.5, 1)])
    assert result.boxes.tolist() == [[0, 0, 20, 30], [390, 190, 400, 200]]
    assert result.dropped == 0


def test_objects_beyond_the_most_are_counted() -> None:
    rows = [(40 + 60 * place, 30, 60 + 60 * place, 70, 0.9 - place / 10, 0) for place in range(5)]
    # Each once more, which the better one removes.
    rows += [(*row[:4], row[4] - 0.01, 0) for row in rows]
    for most in (1, 2, 5, 9):
        result = found(rows, max_detections=most)
        assert (len(result.boxes), result.left_out) == (min(most, 5), max(0, 5 - most))
        assert result.is_full
    assert found(rows, max_detections=2, iou_threshold=None).left_out == 8
    assert not found(rows, score_threshold=0.7).is_full


@pytest.mark.parametrize("iou_threshold", [0.5, None])
def test_no_candidate_and_none_above_the_threshold(iou_threshold: float | None) -> None:
    for rows in ([], [(40, 30, 60, 70, 0.25, 0)]):
        result = found(rows, iou_threshold=iou_threshold)
        assert (result.boxes.shape, result.scores.shape, result.classes.shape) == ((0, 4), (0,), (0,))
        assert (result.boxes.dtype, result.scores.dtype, result.classes.dtype) == (np.float32, np.float32, np.int32)


def test_suppression_is_by_class_or_for_all_or_none() -> None:
    rows = [(40, 30, 60, 70, 0.9, 0), (40, 30, 60, 70, 0.8, 1), (40, 30, 60, 69, 0.7, 0)]
    assert found(rows).classes.tolist() == [0, 1]
    assert found(rows, class_aware=False).classes.tolist() == [0]
    assert found(rows, iou_threshold=None).classes.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("score_and_class", "known", "stay", "dropped"),
    [
        ([(0.9, 2), (0.8, 0), (0.7, 3), (0.7, -1)], 3, [2, 0], 2),
        # Rows that only fill up are not counted.
        ([(0.9, 1), (0, -1), (0, -1), (0.1, 9)], 3, [1], 0),
        # Where it is not known how many there are, none is below zero.
        ([(0.9, -1), (0.8, 5000)], None, [5000], 1),
    ],
)
def test_a_class_that_is_not_known_is_dropped(
    score_and_class: list[tuple[float, int]], known: int | None, stay: list[int], dropped: int
) -> None:
    rows = [(40 + 100 * i, 30, 60 + 100 * i, 70, *row) for i, row in enumerate(score_and_class)]
    result = found(rows, classes_known=known)
    assert (result.classes.tolist(), result.classes.dtype, result.dropped) == (stay, np.int32, dropped)


ROW = st.tuples(*[st.floats(allow_nan=True, allow_infinity=True, width=32)] * 5, st.integers(0, 3))


@given(st.lists(ROW, max_size=20), st.sampled_from([None, 0.5]))
def test_whatever_the_network_says_boxes_lie_in_the_picture(rows: list[tuple[Any, ...]], iou: float | None) -> None:
    result = found(rows, iou_threshold=iou)
    x0, y0, x1, y1 = result.boxes.T
    assert ((x0 >= 0) & (x0 < x1) & (x1 <= 400) & (y0 >= 0) & (y0 < y1) & (y1 <= 200)).all()
    assert result.dropped == sum(not np.isfinite(row[:5]).all() for row in rows)
    assert (result.scores > 0.25).all()
    assert (np.diff(result.scores) <= 0).all()
