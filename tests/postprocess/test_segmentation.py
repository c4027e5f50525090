"""Masks of the picture's size, against a plain walk of each pixel through the definition."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from pydantic import ValidationError

from onestream.postprocess.kinds import Opening
from onestream.postprocess.kinds.segmentation import Segmentation
from onestream.postprocess.segmentation import UNKNOWN, Place, class_grid, level_grids, png, probabilities
from onestream.preprocess import CenterCrop, Decode, Definition, Letterbox, Pad, Resize
from onestream.preprocess.operations import Operation

# Positions and levels are rounded, each along both axes, each by half a level at most where cells differ by all of 255.
LEVEL_TOLERANCE = 2
SIDES = st.integers(1, 70)
BOXES = st.tuples(st.integers(1, 6), st.integers(1, 6)).map(lambda box: (box[0] * 8, box[1] * 8))


@st.composite
def geometries(draw: st.DrawFn) -> list[Operation]:
    """Chains that end at a size which is a multiple of 8."""
    resizes = st.builds(Resize, mode=st.sampled_from(["shorter", "longer"]), size=SIDES)
    crops, letterboxes = (st.builds(kind, size=st.tuples(SIDES, SIDES)) for kind in (CenterCrop, Letterbox))
    last = (
        st.builds(Letterbox, size=BOXES, align=st.sampled_from(["center", "top_left"]))
        | st.builds(CenterCrop, size=BOXES)
        | st.builds(Resize, mode=st.just("exact"), size=BOXES)
        | st.just(Pad(size=(72, 72)))
    )
    return [*draw(st.lists(resizes | crops | letterboxes, max_size=2)), draw(last)]


def steps(definition: Definition, size_hw: tuple[int, int], axis: int) -> Iterator[tuple[Fraction, int, int]]:
    """What each operation scales a coordinate by, where its window begins then, and how long that is."""
    for operation in definition.geometry:
        if isinstance(operation, Resize):
            resized = operation.resized(size_hw)
            yield Fraction(resized[axis], size_hw[axis]), 0, resized[axis]
            size_hw = resized
        else:
            window = operation.window(size_hw)
            size_hw = (window.height, window.width)
            yield Fraction(1), (window.top, window.left)[axis], size_hw[axis]


def walked(definition: Definition, size_hw: tuple[int, int], axis: int) -> list[Fraction | None]:
    """Where each pixel's centre comes to lie on the canvas; None where a crop cut it off."""
    points: list[Fraction | None] = [Fraction(2 * pixel + 1, 2) for pixel in range(size_hw[axis])]
    for scale, start, side in steps(definition, size_hw, axis):
        placed = [None if at is None else at * scale - start for at in points]
        points = [at if at is not None and 0 <= at < side else None for at in placed]
    return points


def seen_cells(definition: Definition, size_hw: tuple[int, int], axis: int, step: int) -> tuple[int, int] | None:
    """The first and the last cell that show anything of the picture."""
    low, high = Fraction(0), Fraction(size_hw[axis])
    for scale, start, side in steps(definition, size_hw, axis):
        low, high = max(low * scale - start, Fraction(0)), min(high * scale - start, Fraction(side))
    return (math.floor(low / step), math.ceil(high / step) - 1) if high > low else None


@given(
    operations=geometries(),
    size_hw=st.tuples(SIDES, SIDES),
    stride=st.sampled_from([(1, 1), (4, 8), (8, 2)]),
    seed=st.integers(0, 9),
)
# A crop, and then a border: what was cut off does not come back.
@example(operations=[CenterCrop(size=(20, 20)), Pad(size=(40, 40))], size_hw=(40, 31), stride=(4, 4), seed=0)
# Nothing of the picture is left.
@example(
    operations=[Pad(size=(72, 72), align="top_left"), CenterCrop(size=(8, 8))], size_hw=(5, 5), stride=(8, 8), seed=0
)
def test_each_pixel_has_the_value_of_its_place(
    operations: list[Operation], size_hw: tuple[int, int], stride: tuple[int, int], seed: int
) -> None:
    try:
        definition = Definition(operations=[Decode(), *operations])
    except ValidationError:
        return
    canvas = definition.output_spec.size_hw
    if any(side is None for side in canvas) or any(side > 72 for side in canvas):
        return
    grid_hw = (canvas[0] // stride[0], canvas[1] // stride[1])
    try:
        place = Place(definition, size_hw, grid_hw)
    except Exception:
        # A pad cannot hold the picture, which is refused before.
        return
    grid = np.random.default_rng(seed).integers(0, 255, grid_hw, dtype=np.uint8)
    rows, columns = (walked(definition, size_hw, axis) for axis in (0, 1))
    expected = np.full(size_hw, UNKNOWN)
    for y, row in enumerate(rows):
        for x, column in enumerate(columns):
            if row is not None and column is not None:
                expected[y, x] = grid[int(row / stride[0]), int(column / stride[1])]
    np.testing.assert_array_equal(place.classes(grid), expected)

    levels = place.levels(grid).astype(float)
    np.testing.assert_array_equal(levels[expected == UNKNOWN], 0)
    seen = [seen_cells(definition, size_hw, axis, stride[axis]) for axis in (0, 1)]
    for y, x in np.argwhere(expected != UNKNOWN):
        assert abs(levels[y, x] - bilinear(grid, rows[y], columns[x], stride, seen)) <= LEVEL_TOLERANCE


def bilinear(
    grid: np.ndarray, row: Fraction, column: Fraction, stride: tuple[int, int], seen: list[tuple[int, int]]
) -> float:
    parts = []
    for at, step, (lowest, highest) in zip((row, column), stride, seen, strict=True):
        position = min(max(at / step - Fraction(1, 2), lowest), highest)
        first = int(position)
        parts.append((first, min(first + 1, highest), float(position - first)))
    (top, bottom, down), (left, right, across) = parts
    upper = grid[top, left] * (1 - across) + grid[top, right] * across
    lower = grid[bottom, left] * (1 - across) + grid[bottom, right] * across
    return float(upper * (1 - down) + lower * down)


def test_a_large_mask_is_stretched_in_blocks_without_a_seam() -> None:
    definition = Definition(operations=[Decode(), Resize(mode="exact", size=(64, 64))])
    grid = np.repeat(np.arange(0, 256, 4, dtype=np.uint8)[:, None], 64, axis=1)
    levels = Place(definition, (1024, 16), (64, 64)).levels(grid).astype(int)
    assert (levels[0, 0], levels[-1, 0]) == (0, 252)
    assert set(np.diff(levels[:, 0])) <= {0, 1}


def test_classes_of_many_and_of_one() -> None:
    scores = np.array([[[1.0, 5.0]], [[3.0, 5.0]], [[2.0, 4.0]]], np.float16)
    np.testing.assert_array_equal(class_grid(scores, activation="softmax"), [[1, 0]])
    one = np.array([[[-0.1, 0.0, 0.1, 0.6]]], np.float32)
    np.testing.assert_array_equal(class_grid(one, activation="sigmoid"), [[0, 0, 1, 1]])
    np.testing.assert_array_equal(class_grid(one, activation="none"), [[0, 0, 0, 1]])


def test_probabilities_of_any_scores() -> None:
    scores = np.array([[[-1e30, 0.0, 1e30]], [[0.0, 0.0, 0.0]]], np.float32)
    np.testing.assert_allclose(probabilities(scores, activation="softmax")[0], [[0, 0.5, 1]])
    np.testing.assert_allclose(probabilities(scores, activation="sigmoid")[0], [[0, 0.5, 1]])
    values = np.random.default_rng(0).normal(size=(1, 50, 50)).astype(np.float32)
    np.testing.assert_allclose(probabilities(values, activation="sigmoid"), 1 / (1 + np.exp(-values)), atol=1e-6)
    unsure = np.array([np.nan, np.inf, -np.inf, -0.2, 0.5, 1.2], np.float32)
    np.testing.assert_array_equal(level_grids(unsure), [0, 255, 0, 0, 128, 255])


def test_a_mask_is_a_gray_png() -> None:
    mask = np.random.default_rng(0).integers(0, 256, (5, 9), dtype=np.uint8)
    image = Image.open(io.BytesIO(png(mask)))
    assert (image.format, image.mode, image.size) == ("PNG", "L", (9, 5))
    np.testing.assert_array_equal(np.array(image), mask)


def test_pictures_of_a_batch_get_masks_of_their_own_sizes() -> None:
    definition = Definition(operations=[Decode(), Letterbox(size=(16, 16))])
    scores = np.random.default_rng(0).normal(size=(2, 4, 8, 8)).astype(np.float32)
    sizes = [(10, 20), (30, 7)]
    options = Segmentation(output="probabilities", activation="softmax", classes=(3, 1))
    answers = options.open(Opening(definition, labels="abcd"))({"x": scores}, sizes)
    for answer, size_hw in zip(answers, sizes, strict=True):
        assert answer["class_ids"].tolist() == [[3, 1]]
        assert answer["labels"].tolist() == [[b"d", b"b"]]
        assert answer["image_size"].tolist() == [list(size_hw)]
        assert [Image.open(io.BytesIO(mask)).size for mask in answer["masks"][0]] == [size_hw[::-1]] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": [1]}, "it takes output: probabilities"),
        ({"output": "probabilities", "classes": [1, 1]}, "name each class once"),
        ({"output": "probabilities", "classes": list(range(9))}, "at most 8"),
        ({"output": "probabilities", "classes": [255]}, "less than or equal to 254"),
        ({"output": "boxes"}, "'classes' or 'probabilities'"),
    ],
)
def test_what_the_options_refuse(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Segmentation.model_validate(options)
