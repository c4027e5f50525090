"""A variation as a value, and how backends sample one: against other libraries, and against each other."""

from __future__ import annotations

from functools import cache

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
from onestream.preprocess.changes import Brightness, Erase, Jpeg, Noise
from onestream.preprocess.geometry import Mapping, Size, Window
from onestream.preprocess.operations import Color
from onestream.preprocess.plan import Planner
from onestream.preprocess.projection import Corners, Projection
from onestream.preprocess.variation import Variation, variation_mapping


def exact(size: Size, color: Color = "rgb") -> Definition:
    return in_levels(Resize(mode="exact", size=size), color=color)


@cache
def compiled(definition: Definition, backend: BackendName) -> Compiled:
    return compile(definition, backend=backend, varied=True)


def pixels(definition: Definition, variation: Variation, data: bytes, backend: BackendName = "reference") -> np.ndarray:
    (sample,) = compiled(definition, backend).run([data], [lambda _: variation])
    assert isinstance(sample, np.ndarray), sample
    return sample


def turned_quad(centre: tuple[float, float], size: tuple[float, float], degrees: float) -> Corners:
    """Corners of a rectangle of (width, height) that is turned clockwise."""
    one, two, three, four = map(tuple, rectangle(centre, *size, degrees).tolist())
    return one, two, three, four


def test_it_is_shown_compared_and_written_as_json() -> None:
    box = Variation.of_box(Window(3, 4, 50, 60), flip=True, changes=(Brightness(factor=1.25), Jpeg(quality=40)))
    assert str(box) == "box 60x50 at (4, 3), flipped; brightness 1.25; JPEG of quality 40"
    tilted = Variation(
        corners=((0.5, 1), (40, 2), (41, 30), (0, 29.25)),
        fill=7,
        changes=(Noise(sigma=2, seed=5), Erase(top=1, left=2, height=3, width=4)),
    )
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


@pytest.mark.parametrize(
    "corners",
    [
        ((0, 0), (10, 0), (0, 10), (10, 10)),
        ((0, 0), (10, 0), (2, 2), (0, 10)),
        ((0, 0), (10, 0), (20, 0), (30, 0)),
        ((0, 0), (0, 0), (10, 10), (0, 10)),
    ],
)
def test_corners_that_make_no_convex_quadrilateral_are_refused(corners: Corners) -> None:
    with pytest.raises(ValidationError, match="convex quadrilateral"):
        Variation(corners=corners)


@pytest.mark.parametrize("backend", ["reference", "dali"])
def test_quarter_turns_and_mirrors_move_pixels_and_nothing_else(backend: BackendName) -> None:
    picture = card(40, 60)
    file = png_of(picture)
    corners = [(0.0, 0.0), (60.0, 0.0), (60.0, 40.0), (0.0, 40.0)]
    for turns in range(4):
        one, two, three, four = corners[turns:] + corners[:turns]
        expected = np.rot90(picture, turns)
        seen = pixels(exact(expected.shape[:2]), Variation(corners=(one, two, three, four)), file, backend)
        np.testing.assert_array_equal(seen, expected)
        seen = pixels(exact(expected.shape[:2]), Variation(corners=(two, one, four, three)), file, backend)
        np.testing.assert_array_equal(seen, expected[:, ::-1])


@given(st.data(), st.sampled_from(["reference", "dali"]))
def test_every_pixel_shows_the_place_that_the_mapping_says(data: st.DataObject, backend: BackendName) -> None:
    """Any filter keeps a slope, of 2.4 levels a pixel and more; levels are rounded four times on their way."""
    width, height = 100, 80
    rows, columns = np.mgrid[:height, :width] + 0.5
    picture = np.round(np.stack([2.4 * columns, 3 * rows, columns + rows], axis=-1)).astype(np.uint8)
    side = data.draw(st.floats(8, 60))
    corners = turned_quad(
        (data.draw(st.floats(40, 60)), data.draw(st.floats(35, 45))),
        (side, data.draw(st.floats(8, 60))),
        data.draw(st.floats(-180, 180)),
    )
    pulled = np.array(corners)
    pulled[0] += (pulled[2] - pulled[0]) * data.draw(st.floats(0, 0.1))
    if data.draw(st.booleans()):
        pulled = pulled[[1, 0, 3, 2]]
    variation = Variation(corners=tuple(map(tuple, pulled.tolist())))
    size = data.draw(st.sampled_from([(7, 60), (33, 32), (60, 5)]))
    seen = pixels(exact(size), variation, png_of(picture), backend)
    down, across = np.mgrid[: size[0], : size[1]] + 0.5
    located = Projection((height, width), size, variation.corners)
    places = located.points_to_source(np.stack([across, down], axis=-1))
    # At the border the triangle filter and the cubic see less than they would: left out as far as they reach.
    scale = max(
        1.0, *np.abs(np.diff(places, axis=0)).max(axis=(0, 1)), *np.abs(np.diff(places, axis=1)).max(axis=(0, 1))
    )
    reach = 3 * scale + 1
    inside = ((places > reach) & (places < np.array([width, height]) - reach)).all(axis=-1)
    x, y = places[..., 0], places[..., 1]
    expected = np.stack([2.4 * x, 3 * y, x + y], axis=-1)
    assert np.abs(seen - expected)[inside].max(initial=0) < 2


def test_a_picture_that_shrinks_is_averaged() -> None:
    """Against the same transform of the picture 4 x 4 times as fine, averaged: no pattern of left-out pixels shows."""
    image = photo("astronaut")
    corners = turned_quad((image.width / 2, image.height / 2), (image.width * 0.6, image.height * 0.6), 20)
    file, size = encode(image, "PNG"), (48, 48)
    seen = pixels(exact(size), Variation(corners=corners), file).astype(float)
    fine = pixels(exact((48 * 8, 48 * 8)), Variation(corners=corners), file).astype(float)
    averaged = fine.reshape(48, 8, 48, 8, 3).mean(axis=(1, 3))
    # A triangle filter is twice as wide as this box, and smooths more.
    assert np.abs(seen - averaged).mean() < 6
    left_out = fine[4::8, 4::8]
    assert np.abs(seen - averaged).mean() < np.abs(left_out - averaged).mean()


@pytest.mark.parametrize("backend", ["reference", "dali"])
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
    height, width = data.draw(st.integers(1, 90)), data.draw(st.integers(1, 90))
    size = data.draw(st.sampled_from([(1, 40), (37, 1), (16, 23)]))
    color: Color = data.draw(st.sampled_from(["rgb", "bgr", "gray"]))
    places = st.floats(-30, 120)
    corners = turned_quad(
        (data.draw(places), data.draw(places)),
        (data.draw(st.floats(1, 150)), data.draw(st.floats(1, 150))),
        data.draw(st.floats(-180, 180)),
    )
    pulled = np.array(corners)
    pulled[0] += (pulled[2] - pulled[0]) * data.draw(st.floats(0, 0.3))
    variation = Variation(corners=tuple(map(tuple, pulled.tolist())), fill=data.draw(st.integers(0, 255)))
    file = png_of(card(height, width))
    reference, dali = (pixels(exact(size, color), variation, file, backend) for backend in ("reference", "dali"))
    np.testing.assert_array_equal(reference, dali)


@pytest.mark.parametrize("name", PHOTOS)
def test_photos_in_jpeg_are_sampled_to_the_same_bits(name: str) -> None:
    """DALI decodes only the part that is seen; chroma at its border must be that of the whole file."""
    image = photo(name)
    file = encode(image, "JPEG", quality=90)
    corners = turned_quad((image.width * 0.4, image.height * 0.6), (image.width * 0.4, image.height * 0.5), 25)
    variation = Variation(corners=corners)
    reference, dali = (pixels(exact((64, 64)), variation, file, backend) for backend in ("reference", "dali"))
    np.testing.assert_array_equal(reference, dali)


def test_only_what_is_seen_is_read() -> None:
    corners = turned_quad((1000, 500), (200, 100), 30)
    found = Planner(exact((100, 200)))((1080, 1920), lambda _size: Variation(corners=corners))
    places = np.array(corners)
    # The cubic reads 2 pixels, the rounding and the chroma 2 more.
    assert found.cut.height <= np.ptp(places[:, 1]) + 12
    assert found.cut.width <= np.ptp(places[:, 0]) + 12
    assert found.resized_hw == found.cut.size_hw


def test_a_projection_maps_points_there_and_back_and_equals_the_mapping_of_a_box() -> None:
    box = Window(10, 20, 30, 50)
    definition = exact((60, 80))
    mapping = variation_mapping(definition, Variation.of_box(box, flip=True), (100, 120))
    assert isinstance(mapping, Mapping)
    projection = Projection((100, 120), (60, 80), Variation.of_box(box, flip=True).corners)
    points = np.random.default_rng(0).uniform(0, 100, (20, 2))
    np.testing.assert_allclose(projection.points_to_canvas(points), mapping.points_to_canvas(points), atol=1e-9)
    tilted = variation_mapping(definition, Variation(corners=((0, 5), (90, 0), (100, 70), (4, 60))), (100, 120))
    assert isinstance(tilted, Projection)
    inside = np.random.default_rng(1).uniform(0, 60, (20, 2))
    np.testing.assert_allclose(tilted.points_to_canvas(tilted.points_to_source(inside)), inside, atol=1e-9)
