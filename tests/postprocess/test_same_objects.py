"""Which objects and lines of text of two answers are the same: each once at most, the nearest first, in any order."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onestream.postprocess.same_lines import Line, edit_distance, lines_of, same_lines
from onestream.wire.comparing import Compared, Found, compare_found, iou, quad_iou
from onestream.wire.kinds import KINDS

SIDES = st.integers(0, 40)


BOX = st.tuples(SIDES, SIDES, SIDES, SIDES).map(lambda box: (box[0], box[1], box[0] + box[2], box[1] + box[3]))


def made(boxes: list[tuple[float, float, float, float]], class_ids: list[int]) -> Found:
    corners, scores = np.array(boxes, float).reshape(-1, 4), np.linspace(0.9, 0.5, len(boxes))
    return Found(corners, scores, np.array(class_ids, np.int32), [str(one) for one in class_ids])


def found() -> st.SearchStrategy[Found]:
    rows = st.lists(st.tuples(BOX, st.integers(0, 2)), max_size=6)
    return rows.map(lambda rows: made([box for box, _ in rows], [class_id for _, class_id in rows]))


def compared_of(one: Found, other: Found) -> Compared:
    return compare_found(KINDS["detection"], one, other)


@given(one=found(), other=found())
def test_overlap_is_the_share_of_whole_pixels_in_both(one: Found, other: Found) -> None:
    def pixels(box: np.ndarray) -> set[tuple[int, int]]:
        x0, y0, x1, y1 = box.astype(int)
        return {(x, y) for x in range(x0, x1) for y in range(y0, y1)}

    overlap = iou(one.boxes, other.boxes)
    assert overlap.shape == (len(one), len(other))
    for (i, a), (j, b) in product(enumerate(one.boxes), enumerate(other.boxes)):
        both, either = len(pixels(a) & pixels(b)), len(pixels(a) | pixels(b))
        assert overlap[i, j] == pytest.approx(both / either if either else 0, rel=1e-12)


@given(one=found(), other=found(), data=st.data())
def test_every_object_is_either_the_same_or_in_one_answer_only(one: Found, other: Found, data: st.DataObject) -> None:
    compared = compared_of(one, other)
    overlap = iou(one.boxes, other.boxes)
    assert sorted([pair.one for pair in compared.same] + compared.lost) == list(range(len(one)))
    assert sorted([pair.other for pair in compared.same] + compared.added) == list(range(len(other)))
    for pair in compared.same:
        assert one.class_ids[pair.one] == other.class_ids[pair.other]
        assert pair.iou == overlap[pair.one, pair.other] >= 0.5
        corners = [(x, y) for x in (0, 2) for y in (1, 3)]
        first, second = one.boxes[pair.one], other.boxes[pair.other]
        farthest = max(np.hypot(*(first[list(corner)] - second[list(corner)])) for corner in corners)
        assert pair.moved_px == pytest.approx(farthest)
    # What is left of one class on both sides overlaps too little.
    for i in compared.lost:
        for j in compared.added:
            assert one.class_ids[i] != other.class_ids[j] or overlap[i, j] < 0.5
    for pair in compared.became:
        assert pair.one in compared.lost
        assert pair.other in compared.added
        assert pair.iou == overlap[pair.one, pair.other] >= 0.5
    order = data.draw(st.permutations(range(len(other))))
    shuffled = made([tuple(other.boxes[j]) for j in order], [int(other.class_ids[j]) for j in order])
    again = compared_of(one, shuffled)
    assert sorted(pair.iou for pair in again.same) == sorted(pair.iou for pair in compared.same)


def test_the_nearest_box_is_the_same_object_once_and_what_it_became_where_its_class_is_another() -> None:
    near, nearer = (0, 0, 10, 8), (0, 0, 10, 9)
    compared = compared_of(made([(0, 0, 10, 10)], [1]), made([near, nearer], [1, 1]))
    assert [(pair.one, pair.other, pair.moved_px) for pair in compared.same] == [(0, 1, 1.0)]
    assert compared.added == [0]
    compared = compared_of(made([(0, 0, 10, 10), (50, 50, 60, 60)], [1, 1]), made([nearer], [2]))
    assert (compared.same, compared.lost, compared.added) == ([], [0, 1], [0])
    assert [(pair.one, pair.other) for pair in compared.became] == [(0, 0)]


SQUARE = np.array([[0, 0], [10, 0], [10, 10], [0, 10]], float)


def quad(box: tuple[float, float, float, float]) -> np.ndarray:
    x0, y0, x1, y1 = box
    return np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]], float)


def turned(points: np.ndarray, degrees: float) -> np.ndarray:
    cos, sin = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    return points @ np.array([[cos, sin], [-sin, cos]]) + (300, 200)


@given(one=BOX, other=BOX, degrees=st.floats(-180, 180), first=st.integers(0, 3), mirrored=st.booleans())
def test_quads_overlap_as_boxes_do_however_they_are_turned(
    one: tuple[int, ...], other: tuple[int, ...], degrees: float, first: int, mirrored: bool
) -> None:
    """Nor does it matter at which corner a quad begins, and which way round it goes."""
    theirs = np.roll(turned(quad(other), degrees), first, axis=0)
    overlap = quad_iou([turned(quad(one), degrees)], [theirs[::-1] if mirrored else theirs])
    expected = iou(np.array([one], float), np.array([other], float))
    # Coordinates of some hundreds with rounding errors of 1e-13, and areas of at least 1 where they are not 0.
    np.testing.assert_allclose(overlap, expected, rtol=0, atol=1e-9)


def test_a_diamond_in_a_square_has_half_its_area() -> None:
    diamond = np.array([[5, 0], [10, 5], [5, 10], [0, 5]], float)
    assert quad_iou([SQUARE], [diamond])[0, 0] == pytest.approx(0.5)
    # A square and the same one turned by 45 degrees about its centre share an octagon: 2(√2 − 1) of the side's square.
    turned_square = (SQUARE - 5) @ np.array([[1, 1], [-1, 1]]) / np.sqrt(2) + 5
    octagon = 2 * (np.sqrt(2) - 1)
    assert quad_iou([SQUARE], [turned_square])[0, 0] == pytest.approx(octagon / (2 - octagon))
    assert quad_iou([], [SQUARE]).shape == (0, 1)


def line(text: str, box: tuple[float, float, float, float]) -> Line:
    return Line(quad(box), text, 0.9)


def test_lines_are_paired_once_by_their_place_whatever_they_say() -> None:
    one = [line("first", (0, 0, 100, 20)), line("second", (0, 30, 100, 50)), line("only here", (0, 90, 100, 99))]
    other = [line("second!", (0, 31, 100, 51)), line("first", (0, 0, 100, 20)), line("half", (0, 0, 60, 20))]
    assert sorted(same_lines(one, other)) == [(0, 1), (1, 0)]
    assert same_lines([], other) == same_lines(one, []) == []


TEXT = st.text("abc ", max_size=8)


@given(one=TEXT, other=TEXT, third=TEXT)
def test_the_edit_distance_is_a_distance(one: str, other: str, third: str) -> None:
    distance = edit_distance(one, other)
    assert distance == edit_distance(other, one)
    assert (distance == 0) == (one == other)
    assert abs(len(one) - len(other)) <= distance <= max(len(one), len(other))
    assert distance <= edit_distance(one, third) + edit_distance(third, other)
    assert edit_distance("kitten", "sitting") == 3
    assert edit_distance("ab", "ba") == 2


def test_an_answer_of_a_text_pipeline_is_read() -> None:
    answer = {
        "quads": np.stack([SQUARE, SQUARE + 20])[None].astype(np.float32),
        "texts": np.array([["Größe".encode(), b"42"]], object),
        "scores": np.array([[0.5, 0.25]], np.float32),
    }
    first, second = lines_of(answer)
    assert (first.text, second.text, second.score) == ("Größe", "42", 0.25)
    np.testing.assert_array_equal(second.quad, SQUARE + 20)
    nothing = {"quads": np.zeros((1, 0, 4, 2)), "texts": np.zeros((1, 0), object), "scores": np.zeros((1, 0))}
    assert lines_of(nothing) == []
