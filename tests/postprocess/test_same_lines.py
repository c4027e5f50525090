"""Which lines of text of two answers are the same, and how many characters apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onestream.postprocess.same_lines import Line, edit_distance, lines_of, quad_iou, same_lines
from onestream.postprocess.same_objects import iou

SQUARE = np.array([[0, 0], [10, 0], [10, 10], [0, 10]], float)
SIDE = st.integers(0, 40)
BOX = st.tuples(SIDE, SIDE, SIDE, SIDE).map(lambda box: (box[0], box[1], box[0] + box[2], box[1] + box[3]))


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


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [("kitten", "sitting", 3), ("", "abc", 3), ("espresso", "expresso", 1), ("ab", "ba", 2)],
)
def test_edit_distances_that_are_known(one: str, other: str, expected: int) -> None:
    assert edit_distance(one, other) == expected


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
