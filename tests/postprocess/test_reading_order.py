"""Lines are read in the same order however the page lies."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy

from onestream.postprocess.text.lines import clockwise_from_top_left
from onestream.postprocess.text.reading_order import reading_order


def box(x: float, y: float, width: float, height: float) -> list[list[float]]:
    return [[x, y], [x + width, y], [x + width, y + height], [x, y + height]]


# Words of one row lie up to a third of their height apart, as detectors find them; rows a height apart.
PAGE = np.array(
    [
        *(box(10, 10, 80, 20), box(100, 14, 60, 18), box(170, 6, 90, 20)),
        *(box(12, 50, 150, 20), box(180, 53, 50, 20)),
        *(box(10, 90, 40, 18), box(60, 86, 200, 20)),
    ]
)


def turned(quads: np.ndarray, degrees: float) -> np.ndarray:
    turn = np.deg2rad(degrees)
    return quads @ np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]]) + 500


@given(degrees=st.floats(-50, 50), shuffled=st.permutations(range(len(PAGE))))
def test_a_page_that_lies_askew(degrees: float, shuffled: list[int]) -> None:
    quads = clockwise_from_top_left(turned(PAGE, degrees))[shuffled]
    assert [shuffled[place] for place in reading_order(quads)] == list(range(len(PAGE)))


@pytest.mark.parametrize("degrees", [85, 90, 95])
def test_a_page_that_lies_on_its_side_is_read_from_the_top_to_the_bottom_of_the_picture(degrees: float) -> None:
    """Turned clockwise; its short words are no guide, and its first row is at the right."""
    quads = clockwise_from_top_left(turned(PAGE, degrees))
    assert reading_order(quads).tolist() == list(range(len(PAGE)))


@pytest.mark.parametrize("degrees", [180, 170, -90])
def test_quads_that_say_how_they_are_turned_are_read_from_their_own_top(degrees: float) -> None:
    """A classifier finds lines upside down; when their corners begin where the text does, so does the page."""
    quads = turned(PAGE, degrees)
    found = clockwise_from_top_left(quads)
    assert reading_order(found).tolist() == list(range(len(PAGE)))[::-1]
    assert reading_order(np.roll(found, 2, axis=1)).tolist() == list(range(len(PAGE)))


def test_one_upright_word_changes_nothing() -> None:
    quads = np.concatenate([PAGE, [box(300, 10, 20, 100)]])
    order = [place for place in reading_order(quads).tolist() if place < len(PAGE)]
    assert order == list(range(len(PAGE)))


def upside_down(quads: np.ndarray, which: list[int]) -> np.ndarray:
    """The same page, of whose lines some begin at their lower right corner."""
    rolled = quads.copy()
    rolled[which] = np.roll(quads[which], 2, axis=1)
    return rolled


EQUAL = np.array([box(10, 10 + 40 * row, 200, 20) for row in range(6)])


@given(
    which=st.lists(st.integers(0, 5), min_size=3, max_size=3, unique=True), degrees=st.floats(-50, 50),
    shuffled=st.permutations(range(6)),
)  # fmt: skip
def test_lines_that_cancel_out_are_read_row_by_row_in_the_same_order_however_they_come(
    which: list[int], degrees: float, shuffled: list[int]
) -> None:
    quads = upside_down(turned(EQUAL, degrees), which)
    order = reading_order(quads).tolist()
    assert order in (list(range(6)), list(range(6))[::-1])
    assert [shuffled[place] for place in reading_order(quads[shuffled])] == order


@given(lengths=st.lists(st.integers(30, 300), min_size=2, max_size=9), data=st.data(), degrees=st.floats(-180, 180))
def test_the_heavier_half_says_where_above_is(lengths: list[int], data: st.DataObject, degrees: float) -> None:
    which = data.draw(st.lists(st.integers(0, len(lengths) - 1), unique=True))
    against = sum(lengths[at] for at in which)
    assume(2 * against != sum(lengths))
    page = np.array([box(10, 40 * row, length, 20) for row, length in enumerate(lengths)])
    order = reading_order(upside_down(turned(page, degrees), which)).tolist()
    assert order == list(range(len(lengths)))[:: -1 if 2 * against > sum(lengths) else 1]


@given(
    of_numpy.arrays(
        np.float32, st.tuples(st.integers(2, 9), st.just(4), st.just(2)), elements=st.floats(0, 99, width=32)
    ),
    st.randoms(),
)
def test_any_lines_have_the_same_order_however_they_come(quads: np.ndarray, chance: random.Random) -> None:
    shuffled = list(range(len(quads)))
    chance.shuffle(shuffled)
    np.testing.assert_array_equal(quads[shuffled][reading_order(quads[shuffled])], quads[reading_order(quads)])


def test_none_and_points() -> None:
    assert reading_order(np.empty((0, 4, 2), np.float32)).tolist() == []
    assert reading_order(np.zeros((2, 4, 2), np.float32)).tolist() == [0, 1]


@given(
    of_numpy.arrays(
        np.float32, st.tuples(st.integers(0, 9), st.just(4), st.just(2)), elements=st.floats(0, 4096, width=32)
    )
)
def test_every_line_has_its_place(quads: np.ndarray) -> None:
    assert sorted(reading_order(quads).tolist()) == list(range(len(quads)))
