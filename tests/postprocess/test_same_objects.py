"""Which objects of two answers are the same: each once at most, the nearest first, in any order of the boxes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onestream.postprocess.same_objects import Found, compare, iou

SIDES = st.integers(0, 40)


@st.composite
def found(draw: st.DrawFn) -> Found:
    boxes = [
        (x, y, x + draw(SIDES), y + draw(SIDES))
        for x, y in draw(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=6))
    ]
    return made(boxes, [draw(st.integers(0, 2)) for _ in boxes])


def made(boxes: list[tuple[float, float, float, float]], class_ids: list[int]) -> Found:
    return Found(
        np.array(boxes, float).reshape(-1, 4),
        np.linspace(0.9, 0.5, len(boxes)),
        np.array(class_ids, np.int32),
        [str(one) for one in class_ids],
    )


@given(one=found(), other=found())
def test_overlap_is_the_share_of_whole_pixels_in_both(one: Found, other: Found) -> None:
    def pixels(box: np.ndarray) -> set[tuple[int, int]]:
        x0, y0, x1, y1 = box.astype(int)
        return {(x, y) for x in range(x0, x1) for y in range(y0, y1)}

    expected = np.zeros((len(one), len(other)))
    for i, a in enumerate(one.boxes):
        for j, b in enumerate(other.boxes):
            both, either = len(pixels(a) & pixels(b)), len(pixels(a) | pixels(b))
            expected[i, j] = both / either if either else 0
    np.testing.assert_allclose(iou(one.boxes, other.boxes), expected, rtol=1e-12)


@given(one=found(), other=found(), data=st.data())
def test_every_object_is_either_the_same_or_in_one_answer_only(one: Found, other: Found, data: st.DataObject) -> None:
    compared = compare(one, other)
    overlap = iou(one.boxes, other.boxes)
    assert sorted([pair.one for pair in compared.same] + compared.only_one) == list(range(len(one)))
    assert sorted([pair.other for pair in compared.same] + compared.only_other) == list(range(len(other)))
    for pair in compared.same:
        assert one.class_ids[pair.one] == other.class_ids[pair.other]
        assert pair.iou == overlap[pair.one, pair.other] >= 0.5
        corners = [(x, y) for x in (0, 2) for y in (1, 3)]
        first, second = one.boxes[pair.one], other.boxes[pair.other]
        farthest = max(np.hypot(*(first[list(corner)] - second[list(corner)])) for corner in corners)
        assert pair.moved_px == pytest.approx(farthest)
    # What is left of one class on both sides overlaps too little.
    for i in compared.only_one:
        for j in compared.only_other:
            assert one.class_ids[i] != other.class_ids[j] or overlap[i, j] < 0.5
    for i, j in compared.became.items():
        assert i in compared.only_one
        assert j in compared.only_other
        assert overlap[i, j] >= 0.5
    order = data.draw(st.permutations(range(len(other))))
    again = compare(one, made([tuple(other.boxes[j]) for j in order], [int(other.class_ids[j]) for j in order]))
    assert sorted(pair.iou for pair in again.same) == sorted(pair.iou for pair in compared.same)


def test_the_nearest_box_is_the_same_object_and_a_box_is_so_once() -> None:
    one = made([(0, 0, 10, 10)], [1])
    near, nearer = (0, 0, 10, 8), (0, 0, 10, 9)
    compared = compare(one, made([near, nearer], [1, 1]))
    assert [(pair.one, pair.other, pair.moved_px) for pair in compared.same] == [(0, 1, 1.0)]
    assert compared.only_other == [0]


def test_an_object_of_another_class_at_the_same_place_is_what_it_became() -> None:
    compared = compare(made([(0, 0, 10, 10), (50, 50, 60, 60)], [1, 1]), made([(0, 0, 10, 9)], [2]))
    assert (compared.same, compared.only_one, compared.only_other) == ([], [0, 1], [0])
    assert compared.became == {0: 0}


def test_nothing_and_nothing_are_the_same() -> None:
    compared = compare(made([], []), made([], []))
    assert (compared.same, compared.only_one, compared.only_other, compared.became) == ([], [], [], {})
