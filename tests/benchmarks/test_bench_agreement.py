"""Nothing is timed unless all competitors give the same answers."""

from __future__ import annotations

import pytest

from benchmarks.agreement import Answer, check
from onestream.measure.agreement import Disagreement

PHOTOS = ["cat.jpg", "coffee.jpg"]
CAT = Answer((285, 282), (0.5, 0.3))
COFFEE = Answer((967, 968), (0.95, 0.01))


def test_equal_answers_agree_and_the_largest_difference_is_returned() -> None:
    close = [Answer((285, 282), (0.51, 0.3)), Answer((967, 968), (0.93, 0.01))]
    worst = check({"plain": [CAT, COFFEE], "fused": close, "same": [CAT, COFFEE]}, PHOTOS, tolerance=0.03)
    assert worst == {"fused": pytest.approx(0.02), "same": 0.0}


def test_another_best_class_is_a_disagreement_even_with_equal_scores() -> None:
    wrong = Answer((504, 968), (0.95, 0.01))
    with pytest.raises(Disagreement, match=r"fused and plain disagree about coffee\.jpg: class 504.*class 967"):
        check({"plain": [CAT, COFFEE], "fused": [CAT, wrong]}, PHOTOS)


def test_a_score_beyond_the_tolerance_is_a_disagreement() -> None:
    off = Answer((285, 282), (0.5, 0.34))
    with pytest.raises(Disagreement, match=r"cat\.jpg"):
        check({"plain": [CAT, COFFEE], "fused": [off, COFFEE]}, PHOTOS, tolerance=0.03)
    check({"plain": [CAT, COFFEE], "fused": [off, COFFEE]}, PHOTOS, tolerance=0.05)


def test_two_classes_within_the_tolerance_are_a_tie() -> None:
    first, swapped = Answer((1, 2), (0.31, 0.30)), Answer((2, 1), (0.31, 0.30))
    check({"plain": [first], "fused": [swapped]}, ["tie.jpg"], tolerance=0.03)
    with pytest.raises(Disagreement):
        check({"plain": [first], "fused": [swapped]}, ["tie.jpg"], tolerance=0.005)


def test_a_missing_answer_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        check({"plain": [CAT, COFFEE], "fused": [CAT]}, PHOTOS)
