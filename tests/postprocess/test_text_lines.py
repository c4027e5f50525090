"""Lines in a map of probabilities: as OpenCV finds them, where they lie in the picture, and how they are read."""

from __future__ import annotations

import random
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy

from onestream.postprocess.kinds import Opening
from onestream.postprocess.kinds.text_lines import TextLines
from onestream.postprocess.text.lines import Lines, clockwise_from_top_left, find_lines
from onestream.postprocess.text.reading_order import reading_order
from onestream.preprocess import Decode, Definition, Letterbox
from onestream.preprocess.geometry import Mapping

Map = np.ndarray[Any, np.dtype[np.float32]]
# OpenCV computes in float32, on coordinates up to 60.
TOLERANCE = 1e-3
MARGIN = 20
"""A rectangle that is turned reaches beyond its cells, by its shorter side at most; borders would cut it."""

masks = of_numpy.arrays(np.bool_, st.tuples(st.integers(4, 20), st.integers(4, 60)), elements=st.booleans())


def found(probabilities: Map, *, scale: float = 1.0, **options: Any) -> Lines:
    """Lines of a map that is the network's input, of a picture that is ``scale`` times as large."""
    height, width = probabilities.shape
    size_hw = round(height * scale), round(width * scale)
    mapping = Mapping(size_hw, (height, width), (1 / scale, 1 / scale), (0.0, 0.0))
    return find_lines(probabilities, mapping, **TextLines(**options).model_dump(exclude={"kind"}))


def drawn(hw: tuple[int, int], *rectangles: tuple[float, float, float, float, float], value: float = 0.9) -> Map:
    """A map with rectangles of one probability: x and y of the centre, width, height, degrees clockwise."""
    values = np.zeros(hw, np.float32)
    rows, columns = np.mgrid[: hw[0], : hw[1]] + 0.5
    for x, y, width, height, degrees in rectangles:
        turn = np.deg2rad(degrees)
        along = (columns - x) * np.cos(turn) + (rows - y) * np.sin(turn)
        across = (rows - y) * np.cos(turn) - (columns - x) * np.sin(turn)
        values[(abs(along) <= width / 2) & (abs(across) <= height / 2)] = value
    return values


def areas(quads: np.ndarray) -> np.ndarray:
    """Signed: above 0 where the corners go clockwise."""
    x, y = quads[..., 0].astype(float), quads[..., 1].astype(float)
    return (x * np.roll(y, -1, axis=1) - np.roll(x, -1, axis=1) * y).sum(axis=1) / 2


@given(mask=masks, dilation=st.booleans())
def test_the_lines_are_opencvs(mask: np.ndarray, dilation: bool) -> None:
    """Of its outer contours, the rectangles of the least area: as many, and of the same areas, round every cell."""
    mask = np.pad(mask, MARGIN)
    dilated = cv2.dilate(mask.astype(np.uint8), np.ones((2, 2), np.uint8)) if dilation else mask.astype(np.uint8)
    contours, _ = cv2.findContours(dilated, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    expected = [cv2.minAreaRect(contour)[1] for contour in contours]
    # Of a small corner, an upright and a slanted rectangle have the same area and other sides: either is right.
    sides = sorted(w * h for w, h in expected if min(w, h) > 1.5)
    on_the_edge = sum(0.5 < min(w, h) <= 1.5 for w, h in expected)
    lines = found(mask.astype(np.float32), dilation=dilation, min_side=1, box_threshold=0, unclip_ratio=0)
    ours = sorted(areas(lines.quads))
    assert len(sides) <= len(ours) <= len(sides) + on_the_edge
    if not on_the_edge:
        np.testing.assert_allclose(ours, sides, rtol=TOLERANCE)


@given(probabilities=of_numpy.arrays(np.float32, (12, 14), elements=st.floats(0, 1, width=32)), dilation=st.booleans())
def test_the_score_is_the_mean_in_the_rectangle(probabilities: Map, dilation: bool) -> None:
    probabilities = np.pad(probabilities, MARGIN)
    lines = found(probabilities, dilation=dilation, threshold=0.8, min_side=1, box_threshold=0, unclip_ratio=0)
    rows, columns = np.indices(probabilities.shape) + (0.0 if dilation else 0.5)
    for quad, score in zip(lines.quads.astype(float), lines.scores, strict=True):
        edges = np.roll(quad, -1, axis=0) - quad
        inside = np.ones(probabilities.shape, bool)
        for (x, y), (dx, dy) in zip(quad, edges, strict=True):
            distance = ((rows - y) * dx - (columns - x) * dy) / np.hypot(dx, dy)
            inside &= distance >= -TOLERANCE
        np.testing.assert_allclose(score, probabilities[inside].mean(dtype=float), rtol=1e-5)


@given(side=st.tuples(st.floats(3, 60), st.floats(3, 20)), degrees=st.floats(-80, 80), ratio=st.floats(0, 3))
def test_rectangles_grow_with_round_joins(side: tuple[float, float], degrees: float, ratio: float) -> None:
    """The rectangle of the least area round all points as near to the rectangle as the offset."""
    values = drawn((160, 200), (100, 80, *side, degrees))
    before, after = (found(values, unclip_ratio=one, min_side=1, box_threshold=0) for one in (0, ratio))
    for old, new in zip(before.quads.astype(float), after.quads, strict=True):
        wide, tall = np.linalg.norm(old[1] - old[0]), np.linalg.norm(old[2] - old[1])
        distance = wide * tall * ratio / (2 * (wide + tall))
        around = np.stack([np.cos(np.arange(0, 6.28, 0.005)), np.sin(np.arange(0, 6.28, 0.005))], axis=1) * distance
        offset = (old[:, None] + around).reshape(-1, 2).astype(np.float32)
        expected = cv2.boxPoints(cv2.minAreaRect(offset))
        # Points of the circle are 0.005 radians apart, and OpenCV computes in float32.
        np.testing.assert_allclose(areas(new[None]), abs(areas(expected[None])), rtol=5e-3)
        np.testing.assert_allclose(new.mean(axis=0), old.mean(axis=0), atol=0.01)
        gaps = np.linalg.norm(new[:, None] - expected[None], axis=2).min(axis=1)
        if abs(wide - tall) > 1:
            assert gaps.max() < 0.1 + distance * 0.01


@given(
    values=of_numpy.arrays(np.float32, (20, 30), elements=st.floats(0, 1, width=32)),
    bad=of_numpy.arrays(np.int8, (20, 30), elements=st.integers(0, 6)),
)
def test_what_is_not_finite_is_no_text(values: Map, bad: np.ndarray) -> None:
    hurt, clean = values.copy(), values.copy()
    for number, one in enumerate((np.nan, np.inf, -np.inf)):
        hurt[bad == number], clean[bad == number] = one, 0
    one, other = found(hurt, min_side=1), found(clean, min_side=1)
    np.testing.assert_array_equal(one.quads, other.quads)
    np.testing.assert_array_equal(one.scores, other.scores)


def test_no_line() -> None:
    for value in (0.3, np.nan):
        lines = found(np.full((32, 64), value, np.float32))
        assert (lines.quads.shape, lines.scores.shape) == ((0, 4, 2), (0,))
        assert lines.quads.dtype == lines.scores.dtype == np.float32


@given(
    width=st.floats(30, 90), height=st.floats(6, 15), degrees=st.floats(-75, 75), scale=st.sampled_from([0.5, 1, 2.5])
)
def test_a_line_is_found_where_it_is(width: float, height: float, degrees: float, scale: float) -> None:
    """Its corners begin at the top left of what is written, and go clockwise, until it is nearly upright."""
    assume(abs(degrees) < np.rad2deg(np.arctan(width / height)) - 8)
    lines = found(drawn((180, 200), (100, 90, width, height, degrees)), scale=scale, unclip_ratio=0)
    (quad,) = lines.quads.astype(float)
    turn = np.deg2rad(degrees)
    along, across = np.array([np.cos(turn), np.sin(turn)]), np.array([-np.sin(turn), np.cos(turn)])
    expected = [
        [100, 90] + x * width / 2 * along + y * height / 2 * across for x, y in ((-1, -1), (1, -1), (1, 1), (-1, 1))
    ]
    # The edge of a rectangle that is drawn cell by cell lies up to a cell's diagonal from where it is.
    np.testing.assert_allclose(quad, np.array(expected) * scale, atol=2.2 * scale)


def test_lines_are_within_the_picture() -> None:
    """A line at the border grows beyond it, and is cut there; one in the border of a letterbox is none."""
    definition = Definition(operations=[Decode(), Letterbox(size=(64, 128), align="top_left")])
    postprocess = TextLines().open(Opening(definition))
    values = drawn((64, 128), (30, 4, 60, 8, 0), (60, 55, 60, 8, 0))
    # The picture covers the upper 32 rows.
    (answer,) = postprocess({"maps": values[None, None]}, [(100, 400)])
    assert {name: (value.dtype.name, value.shape) for name, value in answer.items()} == {
        "quads": ("float32", (1, 1, 4, 2)),
        "scores": ("float32", (1, 1)),
        "image_size": ("int32", (1, 2)),
        "left_out": ("int32", (1, 1)),
    }
    (quad,) = answer["quads"][0]
    assert quad[:, 0].min() == quad[:, 1].min() == 0
    assert areas(quad[None])[0] > 0
    np.testing.assert_allclose(quad.max(axis=0), [(60 + 5.65) * 3.125, (8 + 5.65) * 3.125], atol=0.1)


def test_each_picture_of_a_batch_has_its_own_and_a_map_may_be_a_quarter_of_the_input() -> None:
    definition = Definition(operations=[Decode(), Letterbox(size=(256, 512))])
    maps = np.stack([drawn((64, 128)), drawn((64, 128), (60, 30, 40, 8, 0))])
    for batch in (maps, maps[:, None]):
        postprocess = TextLines(unclip_ratio=0).open(Opening(definition))
        none, one = postprocess({"maps": batch}, [(64, 128), (256, 512)])
        assert none["quads"].shape == (1, 0, 4, 2)
        assert one["quads"].shape == (1, 1, 4, 2)
        np.testing.assert_allclose(one["quads"][0, 0, [0, 2]], [[160, 104], [320, 136]])
        assert one["image_size"].tolist() == [[256, 512]]


def test_thresholds_and_sizes() -> None:
    values = drawn((100, 100), (50, 20, 60, 8, 0)) + drawn((100, 100), (50, 50, 60, 8, 0), value=0.6)
    values += drawn((100, 100), (50, 80.5, 60, 3, 0), value=0.4)
    # The mean counts the cells on two edges of the rectangle, which are empty.
    assert len(found(values, box_threshold=0).quads) == 3
    assert len(found(values, box_threshold=0, threshold=0.5).quads) == 2
    assert len(found(values, box_threshold=0.5).quads) == 2
    assert len(found(values, box_threshold=0.7).quads) == 1
    assert len(found(values, box_threshold=0, min_side=4).quads) == 2
    # At half the size what is left of the thinnest has less than 3 pixels.
    assert len(found(values, box_threshold=0, unclip_ratio=0, scale=0.5).quads) == 2


def test_of_many_lines_the_best_stay_in_reading_order() -> None:
    rows = [(50, 12 + 25 * row, 60, 8, 0) for row in range(4)]
    values = sum(drawn((100, 100), row, value=value) for row, value in zip(rows, (0.6, 0.9, 0.5, 0.8), strict=True))
    lines = found(values, box_threshold=0, max_lines=2)
    tops = lines.quads[:, 0, 1].astype(int).tolist()
    assert tops == sorted(tops)
    assert [round(score, 1) for score in lines.scores.tolist()] == [0.8, 0.7]
    assert lines.left_out == 2
    assert found(values, box_threshold=0, max_lines=4).left_out == 0


def test_dilation_joins_cells_with_one_between() -> None:
    for gap, count in ((1, 1), (2, 2)):
        values = drawn((40, 100), (20, 20, 30, 10, 0), (50 + gap, 20, 30, 10, 0))
        assert len(found(values).quads) == count
        assert len(found(values, dilation=False).quads) == 2


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
    found = clockwise_from_top_left(turned(PAGE, degrees))
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
def test_lines_that_cancel_out_are_read_row_by_row(which: list[int], degrees: float, shuffled: list[int]) -> None:
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


SHAPES = st.tuples(st.integers(0, 9), st.just(4), st.just(2))


@given(of_numpy.arrays(np.float32, SHAPES, elements=st.floats(0, 99, width=32)), st.randoms())
@example(np.zeros((2, 4, 2), np.float32), random.Random(0))
def test_the_order_is_the_same_however_lines_come(quads: np.ndarray, chance: random.Random) -> None:
    order, shuffled = reading_order(quads), list(range(len(quads)))
    assert sorted(order.tolist()) == shuffled
    chance.shuffle(shuffled)
    np.testing.assert_array_equal(quads[shuffled][reading_order(quads[shuffled])], quads[order])
