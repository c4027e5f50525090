"""Targets go where their pictures go: which are kept, and where they lie, by whole numbers."""

from __future__ import annotations

import numpy as np
from definitions import in_levels
from hypothesis import given
from hypothesis import strategies as st
from image_sets import stretched
from mask_sets import mapped

from onestream.preprocess import CenterCrop, Pad, Resize
from onestream.preprocess.geometry import quads_of
from onestream.preprocess.plan import Planner
from onestream.preprocess.projection import Projection
from onestream.preprocess.training import Augmentation, moved_mask, visible_boxes, visible_points, visible_quads
from onestream.preprocess.variation import Variation, variation_mapping

EXACT = stretched(100, 90)


def extent(mask: np.ndarray) -> list[int]:
    """x0 y0 x1 y1 of what is true."""
    rows, columns = mask.any(axis=1).nonzero()[0], mask.any(axis=0).nonzero()[0]
    return [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]


def test_shares_are_of_what_the_canvas_shows() -> None:
    """A canvas turned by 45 degrees: one box lies in it, of another one it cuts a corner off, and a third it misses."""
    definition = EXACT
    half = 40 / np.sqrt(2) * 2
    # The canvas is a diamond about (50, 50), whose right corner is its top right one.
    diamond = Variation(corners=((50 - half, 50), (50, 50 - half), (50 + half, 50), (50, 50 + half)))
    located = variation_mapping(definition, diamond, (100, 100))
    boxes = np.array([[30, 30, 70, 70], [50, 50, 90, 90], [95, 95, 100, 100]], np.float32)
    kept, which = visible_boxes(boxes, located, min_visible=0.0)
    assert which.tolist() == [True, True, False]
    # The first is wholly seen; of the second the triangle x + y <= 100 + half.
    hidden = (180 - 100 - half) ** 2 / 2
    expected = 1 - hidden / 1600
    for share, is_kept in ((expected - 0.001, True), (expected + 0.001, False)):
        assert visible_boxes(boxes, located, min_visible=share)[1][1] == is_kept
    assert visible_boxes(boxes, located, min_visible=1.0)[1].tolist() == [True, False, False]
    np.testing.assert_allclose(kept[0], located.to_canvas(boxes[:1])[0], atol=1e-3)


@given(st.integers(0, 2**31))
def test_along_the_axes_both_rules_are_one(index: int) -> None:
    definition, size = EXACT, (200, 240)
    variation = Augmentation(area=(0.1, 0.6)).draw(size, seed=0, epoch=0, index=index, definition=definition)
    located = variation_mapping(definition, variation, size)
    projection = Projection(size, located.canvas_hw, variation.corners)
    boxes = np.random.default_rng(index).uniform(0, 100, (8, 4)).astype(np.float32)
    boxes[:, 2:] += boxes[:, :2] + 5
    one, one_kept = visible_boxes(boxes, located, min_visible=0)
    other, other_kept = visible_boxes(boxes, projection, min_visible=0)
    # An edge that the canvas only touches counts for neither or for either.
    both = one_kept & other_kept
    np.testing.assert_allclose(one[both[one_kept]], other[both[other_kept]], atol=1e-3)
    assert (one_kept != other_kept).sum() <= 1


def test_quads_points_and_masks_go_with_their_picture() -> None:
    definition, size = EXACT, (120, 160)
    chain = Augmentation([{"op": "rotation", "degrees": [25, 25]}])
    variation = chain.draw(size, seed=0, epoch=0, index=0, definition=definition)
    located = variation_mapping(definition, variation, size)
    quads = np.array([[[60, 40], [100, 44], [98, 80], [58, 70]], [[0, 0], [6, 0], [6, 6], [0, 6]]], np.float32)
    moved, kept = visible_quads(quads, located, min_visible=0.5)
    assert kept.tolist() == [True, False]
    np.testing.assert_allclose(located.quads_to_source(moved), quads[:1], atol=1e-3)
    points, inside = visible_points(np.array([[80, 60], [1, 1]], np.float32), located)
    assert inside.tolist() == [True, False]
    np.testing.assert_allclose(points[0], (45, 50), atol=1e-3)
    mask = np.zeros(size, np.int32)
    mask[40:80, 60:100] = 7
    shown = moved_mask(mask, definition, variation, border=255)
    assert shown.dtype == np.int32
    assert set(np.unique(shown)) == {0, 7, 255}
    # The mask's own extent lies where its box comes to lie.
    box, _ = visible_boxes(np.array([[60, 40, 100, 80]], np.float32), located, min_visible=0)
    np.testing.assert_allclose(extent(shown == 7), box[0], atol=1.5)


@given(st.data())
def test_what_a_crop_cuts_off_does_not_come_back_where_a_pad_follows(data: st.DataObject) -> None:
    """Boxes, quads, points and masks of what is served are where pixels come to lie by whole numbers."""
    height, width, rows, columns = (data.draw(st.integers(20, 90)) for _ in range(4))
    resizes = data.draw(st.sampled_from([[], [Resize(mode="exact", size=(60, 70))]]))
    padded = rows + data.draw(st.integers(0, 60)), columns + data.draw(st.integers(0, 60))
    align = data.draw(st.sampled_from(["center", "top_left"]))
    definition = in_levels(*resizes, CenterCrop(size=(rows, columns)), Pad(size=padded, align=align))
    x0, y0 = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    x1, y1 = data.draw(st.integers(x0 + 1, width)), data.draw(st.integers(y0 + 1, height))
    mask = np.zeros((height, width), np.uint8)
    mask[y0:y1, x0:x1] = 1
    seen = mapped(mask, definition)
    np.testing.assert_array_equal(moved_mask(mask, definition, border=255), seen)
    located, boxes = Planner(definition).mapping((height, width)), np.array([[x0, y0, x1, y1]], np.float32)
    kept, which = visible_boxes(boxes, located, min_visible=0)
    if (seen == 1).any():
        found = extent(seen == 1)
        # A pixel of the mask is that in which its centre lies, so a box of a resized picture may end half a pixel off.
        assert np.abs(kept[0] - found).max() <= (0.501 if resizes else 0)
    elif not resizes:
        assert not which[0]
    for share in (0.05, 0.5):
        quads, of_quads = visible_quads(quads_of(boxes), located, min_visible=share)
        np.testing.assert_allclose(located.quads_to_source(quads), quads_of(boxes)[of_quads], atol=1e-3)
        assert of_quads.tolist() == visible_boxes(boxes, located, min_visible=share)[1].tolist()
    middles = np.array([[x0 + 0.5, y0 + 0.5], [x1 - 0.5, y1 - 0.5]], np.float32)
    points, inside = visible_points(middles, located)
    for (column, row), is_inside in zip(np.floor(points).astype(int).tolist(), inside.tolist(), strict=True):
        on_canvas = 0 <= row < padded[0] and 0 <= column < padded[1]
        assert is_inside == (on_canvas and seen[row, column] != 255)


def test_a_point_on_the_far_border_has_a_place_on_the_canvas() -> None:
    located = Planner(in_levels(CenterCrop(size=(100, 100)))).mapping((200, 200))
    marked = np.array([[150, 150], [50, 50], [150.01, 100]], np.float32)
    points, inside = visible_points(marked, located)
    assert inside.tolist() == [True, True, False]
    assert np.floor(points[inside]).tolist() == [[99, 99], [0, 0]]
    np.testing.assert_allclose(points[0], 100, atol=1e-4)
