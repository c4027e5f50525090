"""Nothing is timed unless all competitors give the same answers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from benchmarks.agreement import Answer, same_best_classes, same_boxes, same_texts
from onestream.measure.agreement import Disagreement

PHOTOS = ["cat.jpg", "coffee.jpg"]
Object = tuple[int, float, tuple[float, float, float, float]]


def classes(class_ids: Sequence[int], scores: Sequence[float]) -> Answer:
    return {"class_ids": np.array([class_ids], np.int32), "scores": np.array([scores], np.float32)}


def objects(*found: Object) -> Answer:
    boxes = np.array([box for _, _, box in found], np.float32).reshape(1, -1, 4)
    return classes([number for number, _, _ in found], [score for _, score, _ in found]) | {"boxes": boxes}


def lines(*texts: str, score: float = 0.9, first_x: float = 0) -> Answer:
    """Lines below each other, 100 wide and 20 high, 30 apart."""
    corners = np.array([[0, 0], [100, 0], [100, 20], [0, 20]], np.float32) + np.array([first_x, 0], np.float32)
    return {
        "quads": np.array([corners + np.array([0, 30 * n]) for n in range(len(texts))]).reshape(1, -1, 4, 2),
        "texts": np.array([[text.encode() for text in texts]], object),
        "scores": np.full((1, len(texts)), score, np.float32),
    }


CAT, COFFEE = classes((285, 282), (0.5, 0.3)), classes((967, 968), (0.95, 0.01))
BOX = (10.0, 20.0, 110.0, 220.0)
SEEN_CAT, SEEN_CUP = (17, 0.9, BOX), (47, 0.6, (200.0, 20.0, 300.0, 90.0))
FAINT = (62, 0.26, (0.0, 0.0, 400.0, 300.0))
SWAPPED_CAT, SECOND_CAT = (17, 0.9, (20.0, 10.0, 220.0, 110.0)), (17, 0.7, (300.0, 20.0, 400.0, 90.0))

boxes_agree = partial(same_boxes, score_threshold=0.25)


def test_equal_answers_agree_and_the_largest_difference_is_returned() -> None:
    close = [classes((285, 282), (0.51, 0.3)), classes((967, 968), (0.93, 0.01))]
    agreed = same_best_classes({"plain": [CAT, COFFEE], "fused": close, "same": [CAT, COFFEE]}, PHOTOS, tolerance=0.03)
    assert agreed.largest_difference == {"fused": pytest.approx(0.02, abs=1e-6), "same": 0.0}
    assert agreed.best_classes_equal == 2


def test_scores_and_best_classes_agree_within_the_tolerance() -> None:
    off = {"plain": [CAT, COFFEE], "fused": [classes((285, 282), (0.5, 0.34)), COFFEE]}
    with pytest.raises(Disagreement, match=r"cat\.jpg"):
        same_best_classes(off, PHOTOS, tolerance=0.03)
    same_best_classes(off, PHOTOS, tolerance=0.05)
    other = {"plain": [CAT, COFFEE], "fused": [CAT, classes((504, 968), (0.95, 0.01))]}
    with pytest.raises(Disagreement, match=r"fused and plain disagree about coffee\.jpg: class 504.*class 967"):
        same_best_classes(other, PHOTOS)
    tie = {"plain": [classes((1, 2), (0.31, 0.30))], "fused": [classes((2, 1), (0.31, 0.30))]}
    assert same_best_classes(tie, ["tie.jpg"], tolerance=0.03).best_classes_equal == 0
    with pytest.raises(Disagreement):
        same_best_classes(tie, ["tie.jpg"], tolerance=0.005)


@pytest.mark.parametrize("agree", [same_best_classes, boxes_agree, same_texts])
def test_a_missing_answer_is_an_error(agree: object) -> None:
    seen = objects(SEEN_CAT) | lines("cat")
    with pytest.raises(ValueError, match="zip"):
        agree({"plain": [seen, seen], "fused": [seen]}, PHOTOS)  # type: ignore[operator]


def test_objects_agree_in_any_order_and_the_worst_of_them_is_returned() -> None:
    """One just above the threshold may be missing."""
    moved = (17, 0.89, (10.0, 20.0, 110.0, 216.0))
    plain, fused = [objects(SEEN_CAT, SEEN_CUP, FAINT), objects()], [objects(SEEN_CUP, moved), objects()]
    agreed = boxes_agree({"plain": plain, "fused": fused}, PHOTOS)
    assert agreed.largest_difference == {"fused": pytest.approx(0.01, abs=1e-6)}
    assert agreed.least_overlap == {"fused": pytest.approx(0.98)}
    assert agreed.best_classes_equal == 1


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(objects((18, 0.9, BOX), SEEN_CUP), id="another class"),
        pytest.param(objects((17, 0.8, BOX), SEEN_CUP), id="another score"),
        pytest.param(objects(SWAPPED_CAT, SEEN_CUP), id="sides swapped"),
        pytest.param(objects(SEEN_CUP), id="an object too few"),
        pytest.param(objects(SEEN_CAT, SECOND_CAT, SEEN_CUP), id="one too many"),
    ],
)
def test_objects_that_differ_are_a_disagreement(other: Answer) -> None:
    answers = {"plain": [objects(FAINT), objects(SEEN_CAT, SEEN_CUP)], "fused": [objects(FAINT), other]}
    with pytest.raises(Disagreement, match=r"fused and plain disagree about coffee\.jpg"):
        boxes_agree(answers, PHOTOS)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lines("one", "tvo", "three"), id="another text"),
        pytest.param(lines("one", "two"), id="a line too few"),
        pytest.param(lines("one", "two", "three", "four"), id="a line too many"),
        pytest.param(lines("one", "two", "three", first_x=60), id="elsewhere"),
    ],
)
def test_texts_that_differ_are_a_disagreement(other: Answer) -> None:
    answers = {"plain": [lines("a"), lines("one", "two", "three")], "fused": [lines("a"), other]}
    with pytest.raises(Disagreement, match=r"fused and plain read . of . lines equally.* is coffee\.jpg: \['one'"):
        same_texts(answers, PHOTOS)


def test_texts_agree_and_scores_overlap_and_share_are_returned() -> None:
    plain, ours = [lines("one", "two"), lines()], [lines("one", "two", score=0.875, first_x=10), lines()]
    agreed = same_texts({"plain": plain, "fused": ours, "same": plain}, PHOTOS)
    assert agreed.best_classes_equal == 2
    assert agreed.largest_difference == {"fused": pytest.approx(0.025, abs=1e-6), "same": 0.0}
    assert agreed.least_overlap == {"fused": pytest.approx(90 / 110), "same": 1.0}
    assert agreed.equal_texts == {"fused": 1.0, "same": 1.0}
    # A few other texts are allowed, and counted.
    read = [str(number) for number in range(20)]
    answers = {"plain": [lines(*read), lines("x")], "fused": [lines(*read[:19], "another"), lines("x")]}
    agreed = same_texts(answers, PHOTOS)
    assert (agreed.equal_texts, agreed.best_classes_equal) == ({"fused": 20 / 21}, 1)
    with pytest.raises(Disagreement, match="20 of 21 lines equally; allowed is no less than 96%"):
        same_texts(answers, PHOTOS, least_equal=0.96)
