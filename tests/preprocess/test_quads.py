"""Regions: which are taken, what is cut of each, and the transform that rectifies them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from turned import rectangle

from onestream.preprocess import WHOLE_PICTURE, Definition, Limits, Pad, Region, Resize
from onestream.preprocess.geometry import Mapping, Size, bounding_boxes, clipped, quads_of
from onestream.preprocess.projection import homographies
from onestream.preprocess.quads import MAX_REGION_SIDE, Chosen, choose, clipped_quads, cuts, turned

PICTURE = (300, 400)
LIMITS = Limits()
BOX, QUAD = Region(of="find"), Region(of="find", shape="quad")
INSIDE = [[50, 40], [150, 40], [150, 80], [50, 80]]


def chosen(region: Region, some: np.ndarray, *geometry: Any, size_hw: Size = PICTURE, **told: Any) -> Chosen:
    definition = Definition(operations=[region, *geometry])
    return choose(definition, some, size_hw, **{"limits": LIMITS, **told})


def quads(*corners: Any) -> np.ndarray:
    return np.array(corners, np.float32).reshape(-1, 4, 2)


CENTERS = st.tuples(st.floats(0, 400), st.floats(0, 300))
RECTANGLES = st.builds(rectangle, CENTERS, st.floats(2, 300), st.floats(2, 300), st.floats(-180, 180)).map(
    lambda corners: corners[None].astype(np.float32)
)
ODD = st.sampled_from([math.nan, math.inf, -math.inf, 1e38, -1e38, 1e-38, 0.0, -0.0])
NUMBERS = st.floats(-50, 450, width=32) | ODD | st.floats(width=32)
ANY_QUADS = st.lists(st.lists(NUMBERS, min_size=8, max_size=8), max_size=4).map(lambda some: quads(*some))


@st.composite
def convex(draw: st.DrawFn) -> np.ndarray:
    """A quad that no corner of which is nearly straight."""
    corners = draw(RECTANGLES)
    corners = corners + np.array(draw(st.lists(st.floats(-0.3, 0.3), min_size=8, max_size=8))).reshape(1, 4, 2) * min(
        np.hypot(*(corners[0, 1] - corners[0, 0])), np.hypot(*(corners[0, 2] - corners[0, 1]))
    )
    corners = corners.astype(np.float32)
    assume(cuts(QUAD, corners, PICTURE, limits=LIMITS).possible.all())
    return corners


def mapped(transform: np.ndarray, points: Any) -> np.ndarray:
    found = np.column_stack([points, np.ones(len(points))]) @ transform.T
    return found[:, :2] / found[:, 2:]


@given(convex())
def test_a_transform_takes_the_rectangles_corners_to_the_quads_and_back(corners: np.ndarray) -> None:
    found = cuts(QUAD, corners, PICTURE, limits=LIMITS)
    (transform,) = homographies(found.quads, found.sizes)
    height, width = found.sizes[0]
    rectangle = [[0, 0], [width, 0], [width, height], [0, height]]
    np.testing.assert_allclose(mapped(transform, rectangle), corners[0], atol=1e-6, rtol=1e-9)
    np.testing.assert_allclose(mapped(np.linalg.inv(transform), corners[0]), rectangle, atol=1e-4)
    # A point inside stays inside, so that nothing is read far from the quad.
    inside = mapped(transform, [[0.5, 0.5], [width / 2, height / 2], [width - 0.5, height - 0.5]])
    edges = np.roll(corners[0], -1, axis=0) - corners[0]
    for point in inside:
        offsets = point - corners[0]
        assert (edges[:, 0] * offsets[:, 1] - edges[:, 1] * offsets[:, 0] >= -1e-6).all()


@given(corners=convex(), margin=st.floats(0, 1))
def test_the_edges_of_any_quad_move_outwards_by_the_margin(corners: np.ndarray, margin: float) -> None:
    found = cuts(QUAD.model_copy(update={"margin": margin}), corners, PICTURE, limits=LIMITS)
    assume(found.possible.all())
    distance = margin * found.shorter_sides[0]
    edges = np.roll(corners[0], -1, axis=0).astype(float) - corners[0]
    outwards = np.stack([edges[:, 1], -edges[:, 0]], axis=1) / np.hypot(edges[:, 0], edges[:, 1])[:, None]
    for number in range(4):
        for corner in (number, (number + 1) % 4):
            moved = found.quads[0, corner].astype(float) - corners[0, number]
            assert moved @ outwards[number] == pytest.approx(distance, abs=1e-2 + 1e-3 * distance)


@pytest.mark.parametrize(
    ("box", "margin", "window"),
    [
        ([50, 40, 150, 80], 0, (50, 40, 150, 80)),
        ([50.4, 40.5, 149.5, 80.49], 0, (50, 41, 150, 80)),
        ([50, 40, 150, 80], 0.25, (40, 30, 160, 90)),
        ([-30, -20, 10.2, 700], 0, (0, 0, 10, 300)),
        ([399.2, 10, 460, 30], 0, (399, 10, 400, 30)),
        # Less than half a pixel: the pixel at the middle.
        ([10.6, 20.6, 10.8, 20.9], 0, (10, 20, 11, 21)),
        ([-5, 5, 0.3, 9], 0, (0, 5, 1, 9)),
        ([399.9, 299.9, 500, 500], 0, (399, 299, 400, 300)),
    ],
)
def test_boxes_are_cut_at_whole_pixels(box: list[float], margin: float, window: tuple[int, ...]) -> None:
    region = BOX.model_copy(update={"margin": margin})
    found = cuts(region, quads_of(np.array([box], np.float32)), PICTURE, limits=LIMITS)
    assert bounding_boxes(found.quads)[0].tolist() == list(window)
    assert found.sizes.tolist() == [[window[3] - window[1], window[2] - window[0]]]


@pytest.mark.parametrize("region", [BOX, QUAD], ids=["box", "quad"])
def test_what_is_taller_than_wide_is_turned(region: Region) -> None:
    tall = quads([[10, 10], [30, 10], [30, 40], [10, 40]])
    for upright, is_turned in ((None, False), (1.0, True), (1.5, True), (1.51, False)):
        found = cuts(region.model_copy(update={"upright": upright}), tall, PICTURE, limits=LIMITS)
        assert found.turned.tolist() == [is_turned]
        assert found.sizes.tolist() == ([[20, 30]] if is_turned else [[30, 20]])
        # Counterclockwise: what was at the top right is now at the top left.
        assert found.quads[0, 0].tolist() == ([30, 10] if is_turned else [10, 10])


@given(corners=RECTANGLES, quarters=st.integers(-5, 9))
def test_turning_is_numpys_rot90(corners: np.ndarray, quarters: int) -> None:
    names = np.array([["top left", "top right"], ["bottom left", "bottom right"]])
    seen = np.rot90(names, quarters)
    order = {"top left": 0, "top right": 1, "bottom right": 2, "bottom left": 3}
    expected = [order[name] for name in (seen[0, 0], seen[0, 1], seen[1, 1], seen[1, 0])]
    np.testing.assert_array_equal(turned(corners, quarters), corners[:, expected])
    each = turned(np.concatenate([corners, corners]), np.array([quarters, 0]))
    np.testing.assert_array_equal(each, [corners[0, expected], corners[0]])


NO_REGIONS = {
    "not a number": [[math.nan, 0], [9, 0], [9, 9], [0, 9]],
    "infinite": [[0, 0], [math.inf, 0], [9, 9], [0, 9]],
    "a point": [[5, 5]] * 4,
    "a line": [[5, 5], [50, 5], [50, 5], [5, 5]],
    "beside the picture": [[500, 10], [600, 10], [600, 20], [500, 20]],
    "above the picture": [[10, -20], [60, -20], [60, 0], [10, 0]],
}
NO_QUADS = {
    "mirrored": [[150, 40], [50, 40], [50, 80], [150, 80]],
    "counterclockwise": [[50, 40], [50, 80], [150, 80], [150, 40]],
    "crossing itself": [[50, 40], [150, 80], [150, 40], [50, 80]],
    "not convex": [[50, 40], [150, 40], [60, 50], [50, 80]],
    "three corners": [[50, 40], [50, 40], [150, 80], [50, 80]],
    "straight corner": [[50, 40], [100, 40], [150, 40], [50, 80]],
    "too long": [[0, 0], [20_000, 0], [20_000, 20], [0, 20]],
    "too far": [[-1e30, -1e30], [1e30, -1e30], [1e30, 1e30], [-1e30, 1e30]],
    "too many pixels": [[-3000, -3000], [3000, -3000], [3000, 3000], [-3000, 3000]],
}


@pytest.mark.parametrize("name", NO_REGIONS | NO_QUADS)
def test_what_is_no_region_is_left_out_and_hurts_no_other(name: str) -> None:
    bad = (NO_REGIONS | NO_QUADS)[name]
    possible = cuts(QUAD, quads(INSIDE, bad, INSIDE), PICTURE, limits=LIMITS).possible
    assert possible.tolist() == [True, False, True]
    found = chosen(QUAD, quads(INSIDE, bad, INSIDE))
    assert found.indices.tolist() == [0, 2]
    assert found.left_out.tolist() == ([1] if name.startswith("too ") else [])
    assert cuts(BOX, quads(bad), PICTURE, limits=LIMITS).possible.tolist() == [name in NO_QUADS]


TINY = quads([[0, 0], [1e-30, 0], [1e-30, 1e-30], [0, 1e-30]])


@given(
    corners=ANY_QUADS, shape=st.sampled_from(["box", "quad"]), margin=st.sampled_from([0.0, 0.3, 10.0]),
    upright=st.none() | st.floats(1, 3), size_hw=st.tuples(st.integers(1, 600), st.integers(1, 600)),
)  # fmt: skip
@example(corners=TINY, shape="quad", margin=10.0, upright=None, size_hw=(9, 9))
def test_whatever_the_corners_sizes_are_bounded(
    corners: np.ndarray, shape: Any, margin: float, upright: float | None, size_hw: Size
) -> None:
    limits = Limits(max_pixels=size_hw[0] * size_hw[1] + 1000)
    found = cuts(Region(of="find", shape=shape, margin=margin, upright=upright), corners, size_hw, limits=limits)
    taken = found.sizes[found.possible]
    assert (taken >= 1).all()
    assert (taken <= MAX_REGION_SIDE).all()
    assert (taken.prod(axis=1) <= limits.max_pixels).all()
    assert np.isfinite(found.quads[found.possible]).all()
    if shape == "box":
        boxes = bounding_boxes(found.quads[found.possible])
        assert (boxes == np.floor(np.clip(boxes, 0, [*size_hw[::-1]] * 2))).all()
    elif len(taken):
        assert np.isfinite(homographies(found.quads[found.possible], taken)).all()


@given(corners=ANY_QUADS, shape=st.sampled_from(["box", "quad"]), upright=st.sampled_from([1.0, 1.5]))
@example(corners=quads(INSIDE, [[0, 0], [40, 0], [40, 40], [0, 40]]), shape="quad", upright=1.0)
@example(corners=quads([[10, 10], [30, 10], [30, 90], [10, 90]]), shape="box", upright=1.0)
def test_what_is_upright_stays_as_it_is(corners: np.ndarray, shape: Any, upright: float) -> None:
    region = Region(of="find", shape=shape, upright=upright, margin=0.2)
    first = chosen(region, corners)
    before = cuts(region, corners[first.indices], PICTURE, limits=LIMITS)
    np.testing.assert_array_equal(first.quads, turned(corners[first.indices], before.turned.astype(int)))
    again = chosen(region, first.quads)
    assert again.indices.tolist() == list(range(len(first.indices)))
    np.testing.assert_array_equal(again.quads, first.quads)
    after = cuts(region, first.quads, PICTURE, limits=LIMITS)
    assert not after.turned.any()
    # What is cut of the picture is the same, too.
    np.testing.assert_array_equal(after.quads, before.quads)
    np.testing.assert_array_equal(after.sizes, before.sizes)


@given(corners=RECTANGLES, quarters=st.integers(0, 3), shape=st.sampled_from(["box", "quad"]))
def test_what_is_cut_begins_where_the_content_does(corners: np.ndarray, quarters: int, shape: Any) -> None:
    region = Region(of="find", shape=shape)
    plain, rolled = (cuts(region, some, PICTURE, limits=LIMITS) for some in (corners, turned(corners, quarters)))
    np.testing.assert_array_equal(rolled.quads, turned(plain.quads, quarters))


@pytest.mark.parametrize(
    ("fields", "indices"),
    [
        ({}, [0, 1, 2, 3]),
        ({"min_score": 0.2}, [0, 1, 2]),
        ({"min_score": 0.5}, [0, 2]),
        ({"min_side": 9}, [0, 1, 2, 3]),
        ({"min_side": 9.5}, [0, 1, 3]),
        ({"min_side": 9.5, "margin": 1}, [0, 1, 3]),  # before the margin
        ({"classes": (2,)}, [1, 2]),
        ({"classes": ("dog",)}, []),
        ({"classes": ("cat",)}, [0, 1, 2, 3]),
        ({"classes": (0, "dog"), "min_score": 0.5}, [0]),
    ],
)
def test_regions_are_chosen_by_class_score_and_size(fields: dict[str, Any], indices: list[int]) -> None:
    some = quads(INSIDE, INSIDE, [[0, 0], [30, 0], [30, 9], [0, 9]], INSIDE)
    scores, ids, labels = np.float32([0.9, 0.2, 0.8, np.nan]), np.int32([0, 2, 2, 0]), np.array([b"cat"] * 4, object)
    told = {"scores": scores, "class_ids": ids, "labels": labels}
    assert chosen(Region(of="find", **fields), some, **told).indices.tolist() == indices


@given(st.lists(st.floats(0, 1, width=32), max_size=12), st.integers(1, 8))
def test_the_best_stay_in_their_order_and_the_rest_is_counted(scores: list[float], most: int) -> None:
    some = quads(*[INSIDE] * len(scores))
    limits = Limits(max_regions=most)
    found = chosen(BOX, some, limits=limits, scores=np.array(scores, np.float32))
    assert len(found.left_out) == max(len(scores) - most, 0)
    assert sorted([*found.indices, *found.left_out]) == list(range(len(scores)))
    assert (np.diff(found.indices) > 0).all()
    others = np.setdiff1d(np.arange(len(scores)), found.indices)
    if len(others):
        assert min(scores[at] for at in found.indices) >= max(scores[at] for at in others)
    assert chosen(BOX, some, limits=limits).indices.tolist() == list(range(min(most, len(scores))))


def strips(width: int, height: int, count: int) -> np.ndarray:
    """Regions of a picture's whole width, each a pixel below the one before."""
    return quads(*[[(0, y), (width, y), (width, y + height), (0, y + height)] for y in range(count)])


def test_regions_have_four_times_the_pixels_of_the_largest_picture_together_at_most() -> None:
    scores = np.array([0.1, 0.9, 0.8, 0.2, 0.7, 0.3, 0.6, 0.5, 0.4, 0.0], np.float32)
    # Each has 800.
    found = chosen(BOX, strips(40, 20, 10), limits=Limits(max_pixels=1000), scores=scores)
    assert (found.indices.tolist(), found.left_out.tolist()) == ([1, 2, 4, 6, 7], [0, 3, 5, 8, 9])


LINE = (
    Resize(mode="height", size=(48, 3200), rounding="up"),
    Pad(size=(48, 320), multiple_of=(0, 8), align="top_left"),
)


@pytest.mark.parametrize(
    ("region", "geometry", "some", "indices"),
    [
        # Long thin lines: each has few pixels, and becomes the widest of all, 48x3200; 195 have 30 million pixels.
        (QUAD, LINE, strips(16384, 5, 300), range(105, 300)),
        # A dense page is taken whole.
        (QUAD, LINE, strips(400, 30, 500), range(500)),
        (BOX, [Resize(mode="exact", size=(1000, 500))], quads(*[INSIDE] * 80), range(20, 80)),
        # What the definition refuses takes no other's place: a line of 256 x 838861, and one too long to be padded.
        (BOX, [Resize(mode="shorter", size=256)], np.concatenate([strips(16384, 5, 9), quads(INSIDE)]), range(10)),
        (BOX, [Pad(size=(48, 16000), multiple_of=(8, 0))], strips(16384, 5, 10), range(10)),
    ],
    ids=["thin lines", "a dense page", "one size", "refused by a resize", "refused by a pad"],
)
def test_regions_are_bounded_by_what_the_network_gets_of_them(
    region: Region, geometry: Any, some: np.ndarray, indices: range
) -> None:
    scores = np.linspace(0.1, 1, len(some), dtype=np.float32)
    found = chosen(region, some, *geometry, size_hw=(600, 16384), scores=scores)
    assert found.indices.tolist() == list(indices)
    assert len(found.left_out) == len(some) - len(indices)


def test_wrong_use_is_refused_by_name() -> None:
    for shape in ((4, 2), (3, 4), (2, 4, 3), (0,)):
        with pytest.raises(ValueError, match=r"expected \(n, 4, 2\)"):
            cuts(BOX, np.zeros(shape, np.float32), PICTURE, limits=LIMITS)
    assert chosen(BOX, np.zeros((0, 4, 2), np.float32)).indices.tolist() == []
    for fields, missing in (({"classes": (1,)}, "gives none"), ({"min_score": 0.1}, "gives no scores")):
        with pytest.raises(ValueError, match=missing):
            chosen(Region(of="find", **fields), quads(INSIDE))
    with pytest.raises(ValueError, match="begins with decode"):
        choose(WHOLE_PICTURE, quads(INSIDE), PICTURE, limits=LIMITS)


@given(
    corners=RECTANGLES,
    scale=st.tuples(st.floats(0.1, 4), st.floats(0.1, 4)),
    offset=st.tuples(st.floats(-50, 50), st.floats(-50, 50)),
)
def test_quads_go_to_the_canvas_and_back(
    corners: np.ndarray, scale: tuple[float, float], offset: tuple[float, float]
) -> None:
    mapping = Mapping(PICTURE, (640, 640), scale, offset)
    there = mapping.quads_to_canvas(corners)
    np.testing.assert_allclose(mapping.quads_to_source(there), corners, atol=1e-2)
    boxes = bounding_boxes(corners)
    np.testing.assert_allclose(bounding_boxes(there), mapping.to_canvas(boxes), atol=1e-3)
    np.testing.assert_array_equal(mapping.quads_to_canvas(quads_of(boxes)), quads_of(mapping.to_canvas(boxes)))


def test_corners_outside_move_to_the_border() -> None:
    outside = quads([[-5, 10], [500, -1], [410, 310], [20, 30]])
    assert clipped_quads(outside, PICTURE).tolist() == [[[0, 10], [400, 0], [400, 300], [20, 30]]]
    boxes = np.array([[-5, 3, 40, 90], [10, -9, 20, -1]], np.float32)
    assert clipped(boxes, (60, 30)).tolist() == [[0, 3, 30, 60], [10, 0, 20, 0]]
