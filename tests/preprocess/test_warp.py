"""Warps: what lies between the points of the grid, and that every backend samples the same bits once."""

from __future__ import annotations

import numpy as np
import pytest
from definitions import in_levels
from hypothesis import given
from hypothesis import strategies as st
from image_files import png_of
from pydantic import ValidationError
from sample_images import photo

from onestream.preprocess import Resize, compile
from onestream.preprocess.backends.reference import rectified
from onestream.preprocess.cpu.rectify import rectify
from onestream.preprocess.cpu.rectify_weights import step_weights
from onestream.preprocess.geometry import Window
from onestream.preprocess.training import Augmentation, moved_mask
from onestream.preprocess.variation import Variation, Warp, variation_mapping

DEFINITION = in_levels(Resize(mode="exact", size=(60, 90)))


def sampled(variation: Variation, pixels: np.ndarray, backend: str) -> np.ndarray:
    (made,) = compile(DEFINITION, backend=backend, varied=True).run([png_of(pixels)], [lambda _: variation])  # type: ignore[arg-type]
    return made


@given(st.integers(2, 6), st.integers(2, 9), st.integers(2, 50), st.integers(2, 70), st.integers(0, 2**31))
def test_a_grid_that_moves_as_one_moves_every_pixel_so(
    rows: int, columns: int, height: int, width: int, seed: int
) -> None:
    x, y = np.random.default_rng(seed).uniform(-3, 3, 2).tolist()
    moved = Warp(moved=(((x, y),) * columns,) * rows).displacements((height, width))
    np.testing.assert_allclose(moved[0], x, atol=1e-12)
    np.testing.assert_allclose(moved[1], y, atol=1e-12)


def test_between_the_points_it_is_smooth_and_at_the_points_what_was_drawn() -> None:
    random = np.random.default_rng(1)
    grid = random.uniform(-4, 4, (4, 6, 2))
    warp = Warp(moved=tuple(tuple(map(tuple, row)) for row in grid.tolist()))
    moved = warp.displacements((301, 501))
    # The middle pixel of these canvases lies on no point; those at the inner points are half a pixel from them.
    for row in (1, 2):
        for column in (1, 2, 3, 4):
            np.testing.assert_allclose(moved[:, row * 100, column * 100], grid[row, column], atol=0.1)
    # Keys's cubic goes from one to the next without a step: a pixel here is a hundredth of their distance.
    assert np.abs(np.diff(moved, axis=2)).max() < 8 * 2.5 * 1.6 / 100
    assert np.abs(np.diff(moved, axis=1)).max() < 8 * 2.5 * 1.6 / 100


@pytest.mark.parametrize("moved", [(((0, 0), (0, 0)),), (((0, 0),), ((0, 0),)), (((0, 0), (1, 1)), ((0, 0),))])
def test_what_is_no_grid_is_refused(moved: tuple[tuple[tuple[float, float], ...], ...]) -> None:
    with pytest.raises(ValidationError, match="2 rows or more of 2 points or more"):
        Warp(moved=moved)


@given(st.integers(0, 2**31), st.booleans(), st.floats(0.1, 1))
def test_backends_sample_the_same_bits(index: int, tilted: bool, spacing: float) -> None:
    turned = [{"op": "rotation", "degrees": [-60, 60]}, {"op": "perspective"}] if tilted else []
    chain = Augmentation([*turned, {"op": "warp", "distance": 0.14 * spacing, "spacing": spacing}], fill=30)
    pixels = np.asarray(photo("coffee").resize((160, 120)))
    variation = chain.draw((120, 160), seed=0, epoch=0, index=index, definition=DEFINITION)
    assert variation.box is None
    np.testing.assert_array_equal(*(sampled(variation, pixels, backend) for backend in ("reference", "dali")))


def test_a_warp_is_a_smooth_move_and_folds_nothing() -> None:
    """On a picture whose levels are its places, each pixel shows where it looked."""
    rows, columns = np.mgrid[:60, :90]
    pixels = np.stack([columns * 2, rows * 2, rows * 0], axis=2).astype(np.uint8)
    whole = Variation.of_box(Window(0, 0, 60, 90))
    strong = Augmentation([{"op": "warp", "distance": 0.15, "spacing": 1}])
    for index in range(20):
        variation = strong.draw((60, 90), seed=0, epoch=0, index=index, definition=DEFINITION)
        assert np.abs(variation.warp.moved).max() <= 0.15 * 60
        seen = sampled(variation, pixels, "dali").astype(float) / 2
        moved = variation.warp.displacements((60, 90))
        inside = (columns + moved[0] > 2) & (columns + moved[0] < 87) & (rows + moved[1] > 2) & (rows + moved[1] < 57)
        # Half a level of rounding, of two a pixel; and 1/256 of a pixel.
        assert np.abs(seen[:, :, 0] - (columns + moved[0]))[inside].max() < 0.3
        assert np.abs(seen[:, :, 1] - (rows + moved[1]))[inside].max() < 0.3
        x, y = columns + moved[0], rows + moved[1]
        (x_down, x_across), (y_down, y_across) = np.gradient(x), np.gradient(y)
        assert (x_across * y_down - x_down * y_across).min() > 0
        mask = moved_mask((rows // 20 * 3 + columns // 30).astype(np.uint8), DEFINITION, variation, border=99)
        found = np.floor((y + 0.5) / 20) * 3 + np.floor((x + 0.5) / 30)
        np.testing.assert_array_equal(mask[inside], found[inside])
    assert whole.keeps((60, 90))
    assert not variation.keeps((60, 90))


def test_points_that_would_have_to_follow_a_warp_are_refused_by_name() -> None:
    variation = Augmentation([{"op": "warp"}]).draw((60, 90), seed=0, epoch=0, index=0, definition=DEFINITION)
    with pytest.raises(ValueError, match=r"points cannot follow a warp of 2x2 points by up to .* px; only masks do"):
        variation_mapping(DEFINITION, variation, (60, 90))


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
    transform = np.array(
        [
            [*random.uniform(-1.5, 1.5, 2), random.uniform(-5, width)],
            [*random.uniform(-1.5, 1.5, 2), random.uniform(-5, height)],
            [*random.uniform(-1e-3, 1e-3, 2), 1.0],
        ]
    )
    fill = data.draw(st.sampled_from([None, 0, 200]))
    seen = rectify(picture, transform, size_hw, fill=fill)
    np.testing.assert_array_equal(seen, rectified(picture, transform, size_hw, fill=fill))


def test_sums_of_a_column_stay_within_their_lane() -> None:
    weights = step_weights()
    low, high = np.minimum(weights, 0).sum(axis=1).min() * 255, np.maximum(weights, 0).sum(axis=1).max() * 255
    assert -(2**17) < low < 0
    assert high < 2**20
