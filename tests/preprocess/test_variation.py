"""A variation as a value, and how backends sample one and its warp: against other libraries, and against each other."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from definitions import in_levels
from hypothesis import given
from hypothesis import strategies as st
from image_files import encode, png_of
from pydantic import ValidationError
from sample_images import PHOTOS, card, photo
from turned import rectangle

from onestream.preprocess import Definition, Resize, compile
from onestream.preprocess.backends.base import BackendName, Compiled
from onestream.preprocess.backends.reference import rectified
from onestream.preprocess.changes import Brightness, Erase, Jpeg, Noise
from onestream.preprocess.cpu.rectify import rectify
from onestream.preprocess.cpu.rectify_weights import step_weights
from onestream.preprocess.geometry import Mapping, Size, Window
from onestream.preprocess.operations import Color
from onestream.preprocess.plan import Planner
from onestream.preprocess.projection import Projection
from onestream.preprocess.training import Augmentation, moved_mask
from onestream.preprocess.variation import Variation, Warp, variation_mapping

BACKENDS: tuple[BackendName, ...] = ("reference", "dali")
Drawn = st.SearchStrategy[float]


def exact(size: Size, color: Color = "rgb") -> Definition:
    return in_levels(Resize(mode="exact", size=size), color=color)


@cache
def compiled(definition: Definition, backend: BackendName) -> Compiled:
    return compile(definition, backend=backend, varied=True)


def pixels(definition: Definition, variation: Variation, data: bytes, backend: BackendName = "reference") -> np.ndarray:
    (sample,) = compiled(definition, backend).run([data], [lambda _: variation])
    assert isinstance(sample, np.ndarray), sample
    return sample


def quad(corners: np.ndarray, **more: Any) -> Variation:
    return Variation(corners=tuple(map(tuple, corners.tolist())), **more)


@st.composite
def quads(draw: st.DrawFn, x: Drawn, y: Drawn, width: Drawn, height: Drawn, most_pulled: float) -> np.ndarray:
    """Rectangles that are turned, with a corner that is pulled inwards."""
    corners = rectangle((draw(x), draw(y)), draw(width), draw(height), draw(st.floats(-180, 180)))
    corners[0] += (corners[2] - corners[0]) * draw(st.floats(0, most_pulled))
    return corners


def test_it_is_shown_compared_and_written_as_json() -> None:
    box = Variation.of_box(Window(3, 4, 50, 60), flip=True, changes=(Brightness(factor=1.25), Jpeg(quality=40)))
    assert str(box) == "box 60x50 at (4, 3), flipped; brightness 1.25; JPEG of quality 40"
    changes = (Noise(sigma=2, seed=5), Erase(top=1, left=2, height=3, width=4))
    tilted = Variation(corners=((0.5, 1), (40, 2), (41, 30), (0, 29.25)), fill=7, changes=changes)
    assert str(tilted) == ("corners (0.5, 1) (40, 2) (41, 30) (0, 29.25); noise 2 levels, seed 5; erase 4x3 at (2, 1)")
    for one in (box, tilted):
        assert Variation.model_validate_json(one.model_dump_json()) == one
        assert hash(one) == hash(one.model_copy())
    assert box != tilted


@given(
    st.integers(-50, 5000), st.integers(-50, 5000), st.integers(1, 5000), st.integers(1, 5000), st.booleans(),
    st.booleans(), st.floats(-1e-6, 1e-6),
)  # fmt: skip
def test_a_box_is_found_again_however_it_was_computed(
    top: int, left: int, height: int, width: int, flip: bool, upside_down: bool, off: float
) -> None:
    box = Window(top, left, height, width)
    given_box = Variation.of_box(box, flip=flip, upside_down=upside_down)
    # What sums of float64 are off by.
    shaken = Variation(corners=tuple((x + off, y - off) for x, y in given_box.corners))
    assert shaken == given_box
    assert (shaken.box, shaken.flip, shaken.upside_down) == (box, flip, upside_down)
    inside = top >= 0 and left >= 0
    assert given_box.box_in((top + height, left + width)) == (box if inside else None)
    assert given_box.box_in((top + height - 1, left + width)) is None


@pytest.mark.parametrize("others", [((0, 10), (10, 10)), ((2, 2), (0, 10)), ((20, 0), (30, 0)), ((10, 0), (0, 10))])
def test_corners_that_make_no_convex_quadrilateral_are_refused(others: Any) -> None:
    with pytest.raises(ValidationError, match="convex quadrilateral"):
        Variation(corners=((0, 0), (10, 0), *others))


@pytest.mark.parametrize("backend", BACKENDS)
def test_quarter_turns_and_mirrors_move_pixels_and_nothing_else(backend: BackendName) -> None:
    picture = card(40, 60)
    file = png_of(picture)
    corners = [(0.0, 0.0), (60.0, 0.0), (60.0, 40.0), (0.0, 40.0)]
    for turns in range(4):
        one, two, three, four = corners[turns:] + corners[:turns]
        expected = np.rot90(picture, turns)
        for order, right in (((one, two, three, four), expected), ((two, one, four, three), expected[:, ::-1])):
            seen = pixels(exact(expected.shape[:2]), Variation(corners=order), file, backend)
            np.testing.assert_array_equal(seen, right)


@given(st.data(), st.sampled_from(BACKENDS))
def test_every_pixel_shows_the_place_that_the_mapping_says(data: st.DataObject, backend: BackendName) -> None:
    """Any filter keeps a slope, of 2.4 levels a pixel and more; levels are rounded four times on their way."""
    width, height = 100, 80
    rows, columns = np.mgrid[:height, :width] + 0.5
    picture = np.round(np.stack([2.4 * columns, 3 * rows, columns + rows], axis=-1)).astype(np.uint8)
    side = st.floats(8, 60)
    corners = data.draw(quads(st.floats(40, 60), st.floats(35, 45), side, side, 0.1))
    variation = quad(corners[[1, 0, 3, 2]] if data.draw(st.booleans()) else corners)
    size = data.draw(st.sampled_from([(7, 60), (33, 32), (60, 5)]))
    seen = pixels(exact(size), variation, png_of(picture), backend)
    down, across = np.mgrid[: size[0], : size[1]] + 0.5
    located = Projection((height, width), size, variation.corners)
    places = located.points_to_source(np.stack([across, down], axis=-1))
    # At the border the triangle filter and the cubic see less than they would: left out as far as they reach.
    reach = 3 * max(1.0, *(np.abs(np.diff(places, axis=axis)).max() for axis in (0, 1))) + 1
    inside = ((places > reach) & (places < np.array([width, height]) - reach)).all(axis=-1)
    x, y = places[..., 0], places[..., 1]
    expected = np.stack([2.4 * x, 3 * y, x + y], axis=-1)
    assert np.abs(seen - expected)[inside].max(initial=0) < 2


def test_a_picture_that_shrinks_is_averaged() -> None:
    """Against the same transform of the picture 4 x 4 times as fine, averaged: no pattern of left-out pixels shows."""
    image = photo("astronaut")
    variation = quad(rectangle((image.width / 2, image.height / 2), image.width * 0.6, image.height * 0.6, 20))
    seen, fine = (pixels(exact((side, side)), variation, encode(image, "PNG")).astype(float) for side in (48, 48 * 8))
    averaged = fine.reshape(48, 8, 48, 8, 3).mean(axis=(1, 3))
    # A triangle filter is twice as wide as this box, and smooths more.
    assert np.abs(seen - averaged).mean() < 6
    left_out = fine[4::8, 4::8]
    assert np.abs(seen - averaged).mean() < np.abs(left_out - averaged).mean()


@pytest.mark.parametrize("backend", BACKENDS)
def test_beyond_the_picture_is_the_fill_and_within_it_none(backend: BackendName) -> None:
    picture = np.full((40, 40, 3), 200, np.uint8)
    variation = Variation(corners=((-20, -10), (60, -10), (60, 70), (-20, 70)), fill=9)
    seen = pixels(exact((80, 80)), variation, png_of(picture), backend)
    expected = np.full((80, 80, 3), 9, np.uint8)
    expected[10:50, 20:60] = 200
    np.testing.assert_array_equal(seen, expected)
    away = Variation(corners=((900, 0), (950, 10), (950, 60), (900, 50)), fill=3)
    np.testing.assert_array_equal(pixels(exact((8, 8)), away, png_of(picture), backend), np.full((8, 8, 3), 3))


@given(st.data())
def test_backends_sample_the_same_bits(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([(1, 40), (37, 1), (16, 23)]))
    color: Color = data.draw(st.sampled_from(["rgb", "bgr", "gray"]))
    place, side = st.floats(-30, 120), st.floats(1, 150)
    variation = quad(data.draw(quads(place, place, side, side, 0.3)), fill=data.draw(st.integers(0, 255)))
    file = png_of(card(data.draw(st.integers(1, 90)), data.draw(st.integers(1, 90))))
    np.testing.assert_array_equal(*(pixels(exact(size, color), variation, file, backend) for backend in BACKENDS))


@pytest.mark.parametrize("name", PHOTOS)
def test_photos_in_jpeg_are_sampled_to_the_same_bits(name: str) -> None:
    """DALI decodes only the part that is seen; chroma at its border must be that of the whole file."""
    image = photo(name)
    file = encode(image, "JPEG", quality=90)
    variation = quad(rectangle((image.width * 0.4, image.height * 0.6), image.width * 0.4, image.height * 0.5, 25))
    np.testing.assert_array_equal(*(pixels(exact((64, 64)), variation, file, backend) for backend in BACKENDS))


def test_only_what_is_seen_is_read() -> None:
    places = rectangle((1000, 500), 200, 100, 30)
    found = Planner(exact((100, 200)))((1080, 1920), lambda _size: quad(places))
    # The cubic reads 2 pixels, the rounding and the chroma 2 more.
    assert found.cut.height <= np.ptp(places[:, 1]) + 12
    assert found.cut.width <= np.ptp(places[:, 0]) + 12
    assert found.resized_hw == found.cut.size_hw


def test_a_projection_maps_points_there_and_back_and_equals_the_mapping_of_a_box() -> None:
    box, definition = Variation.of_box(Window(10, 20, 30, 50), flip=True), exact((60, 80))
    mapping = variation_mapping(definition, box, (100, 120))
    assert isinstance(mapping, Mapping)
    projection = Projection((100, 120), (60, 80), box.corners)
    points = np.random.default_rng(0).uniform(0, 100, (20, 2))
    np.testing.assert_allclose(projection.points_to_canvas(points), mapping.points_to_canvas(points), atol=1e-9)
    tilted = variation_mapping(definition, Variation(corners=((0, 5), (90, 0), (100, 70), (4, 60))), (100, 120))
    assert isinstance(tilted, Projection)
    inside = np.random.default_rng(1).uniform(0, 60, (20, 2))
    np.testing.assert_allclose(tilted.points_to_canvas(tilted.points_to_source(inside)), inside, atol=1e-9)


WARPED = exact((60, 90))


@given(st.integers(2, 6), st.integers(2, 9), st.integers(2, 50), st.integers(2, 70), st.integers(0, 2**31))
def test_a_grid_that_moves_as_one_moves_every_pixel_so(
    rows: int, columns: int, height: int, width: int, seed: int
) -> None:
    place = tuple(np.random.default_rng(seed).uniform(-3, 3, 2).tolist())
    moved = Warp(moved=((place,) * columns,) * rows).displacements((height, width))
    np.testing.assert_allclose(moved - np.reshape(place, (2, 1, 1)), 0, atol=1e-12)


def test_between_the_points_it_is_smooth_and_at_the_points_what_was_drawn() -> None:
    grid = np.random.default_rng(1).uniform(-4, 4, (4, 6, 2))
    moved = Warp(moved=tuple(tuple(map(tuple, row)) for row in grid.tolist())).displacements((301, 501))
    # The middle pixel of these canvases lies on no point; those at the inner points are half a pixel from them.
    np.testing.assert_allclose(moved[:, 100:300:100, 100:500:100], grid[1:3, 1:5].transpose(2, 0, 1), atol=0.1)
    # Keys's cubic goes from one to the next without a step: a pixel here is a hundredth of their distance.
    for axis in (1, 2):
        assert np.abs(np.diff(moved, axis=axis)).max() < 8 * 2.5 * 1.6 / 100


@pytest.mark.parametrize("moved", [(((0, 0), (0, 0)),), (((0, 0),), ((0, 0),)), (((0, 0), (1, 1)), ((0, 0),))])
def test_what_is_no_grid_is_refused(moved: tuple[tuple[tuple[float, float], ...], ...]) -> None:
    with pytest.raises(ValidationError, match="2 rows or more of 2 points or more"):
        Warp(moved=moved)


@given(st.integers(0, 2**31), st.booleans(), st.floats(0.1, 1))
def test_backends_sample_the_same_bits_of_a_warp(index: int, tilted: bool, spacing: float) -> None:
    turned = [{"op": "rotation", "degrees": [-60, 60]}, {"op": "perspective"}] if tilted else []
    chain = Augmentation([*turned, {"op": "warp", "distance": 0.14 * spacing, "spacing": spacing}], fill=30)
    file = encode(photo("coffee").resize((160, 120)), "PNG")
    variation = chain.draw((120, 160), seed=0, epoch=0, index=index, definition=WARPED)
    assert variation.box is None
    np.testing.assert_array_equal(*(pixels(WARPED, variation, file, backend) for backend in BACKENDS))


def test_a_warp_is_a_smooth_move_and_folds_nothing() -> None:
    """On a picture whose levels are its places, each pixel shows where it looked."""
    rows, columns = np.mgrid[:60, :90]
    file = png_of(np.stack([columns * 2, rows * 2, rows * 0], axis=2).astype(np.uint8))
    strong = Augmentation([{"op": "warp", "distance": 0.15, "spacing": 1}])
    for index in range(20):
        variation = strong.draw((60, 90), seed=0, epoch=0, index=index, definition=WARPED)
        assert np.abs(variation.warp.moved).max() <= 0.15 * 60
        seen = pixels(WARPED, variation, file, "dali").astype(float) / 2
        x, y = np.stack([columns, rows]) + variation.warp.displacements((60, 90))
        inside = (x > 2) & (x < 87) & (y > 2) & (y < 57)
        # Half a level of rounding, of two a pixel; and 1/256 of a pixel.
        assert np.abs(seen[:, :, :2] - np.stack([x, y], axis=2))[inside].max() < 0.3
        (x_down, x_across), (y_down, y_across) = np.gradient(x), np.gradient(y)
        assert (x_across * y_down - x_down * y_across).min() > 0
        mask = moved_mask((rows // 20 * 3 + columns // 30).astype(np.uint8), WARPED, variation, border=99)
        found = np.floor((y + 0.5) / 20) * 3 + np.floor((x + 0.5) / 30)
        np.testing.assert_array_equal(mask[inside], found[inside])
    assert Variation.of_box(Window(0, 0, 60, 90)).keeps((60, 90))
    assert not variation.keeps((60, 90))


def test_points_that_would_have_to_follow_a_warp_are_refused_by_name() -> None:
    variation = Augmentation([{"op": "warp"}]).draw((60, 90), seed=0, epoch=0, index=0, definition=WARPED)
    with pytest.raises(ValueError, match=r"points cannot follow a warp of 2x2 points by up to .* px; only masks do"):
        variation_mapping(WARPED, variation, (60, 90))


def test_points_are_at_least_their_spacing_apart_and_settings_that_fold_are_refused() -> None:
    drawn = Augmentation([{"op": "warp"}]).draw((48, 330), seed=0, epoch=0, index=0)
    assert (len(drawn.warp.moved), len(drawn.warp.moved[0])) == (2, 7)
    assert str(drawn).startswith("corners (0, 0) (330, 0) (330, 48) (0, 48); warp of 7x2 points by up to 4.")
    assert Variation.model_validate_json(drawn.model_dump_json()) == drawn
    with pytest.raises(ValidationError, match=r"distance must be at most 0.15 x spacing = 0.075, got 0.1"):
        Augmentation([{"op": "warp", "spacing": 0.5}])
    with pytest.raises(ValidationError, match="warp comes once"):
        Augmentation([{"op": "warp"}, {"op": "warp"}])


@given(st.data())
def test_packed_pixels_give_the_same_bits(data: st.DataObject) -> None:
    """A picture that is small beside the rectangle is packed, a larger one is not: both are the reference's."""
    height, width = data.draw(st.sampled_from([(40, 50), (3, 90), (61, 4), (230, 240)]))
    size_hw = data.draw(st.sampled_from([(60, 70), (20, 30), (1, 80)]))
    random = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    # Black beside white overshoots most.
    picture = random.choice(np.array([0, 255], np.uint8), (height, width, 3))
    most = np.array([[1.5, 1.5, width], [1.5, 1.5, height], [1e-3, 1e-3, 1]])
    transform = random.uniform([[-1.5, -1.5, -5], [-1.5, -1.5, -5], [-1e-3, -1e-3, 1]], most)
    fill = data.draw(st.sampled_from([None, 0, 200]))
    seen = rectify(picture, transform, size_hw, fill=fill)
    np.testing.assert_array_equal(seen, rectified(picture, transform, size_hw, fill=fill))


def test_sums_of_a_column_stay_within_their_lane() -> None:
    weights = step_weights()
    low, high = np.minimum(weights, 0).sum(axis=1).min() * 255, np.maximum(weights, 0).sum(axis=1).max() * 255
    assert -(2**17) < low < 0
    assert high < 2**20
