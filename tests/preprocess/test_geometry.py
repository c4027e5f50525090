"""Sizes and windows against an independent statement of torchvision's and ultralytics' rules.

The statements here use whole numbers and arrays of indices, where the code uses divisions and windows.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from definition_strategies import ALIGNMENTS, BOXES, FILTERS, ROUNDINGS, SIDES, SIZES, definitions, resizes
from definitions import chain
from hypothesis import assume, example, given
from hypothesis import strategies as st

from onestream.preprocess import BadImage, CenterCrop, Definition, Letterbox, Limits, Pad, Resize
from onestream.preprocess.backends.base import always_visible
from onestream.preprocess.geometry import Size, Window
from onestream.preprocess.operations import SUPPORT, Fill, Operation
from onestream.preprocess.plan import Plan, Planner
from onestream.preprocess.variation import Variation, variation_mapping

REAL_SIDES = st.integers(1, 20_000)
REAL_SIZES = st.tuples(REAL_SIDES, REAL_SIDES)
Lines = npt.NDArray[np.int64]


def half_even(numerator: int, denominator: int) -> int:
    """Round a fraction to nearest, halves to even, in whole numbers."""
    whole, rest = divmod(numerator, denominator)
    up = 2 * rest > denominator or (2 * rest == denominator and whole % 2 == 1)
    return whole + up


def proportional(size: int, side: int, scaled_side: int, rounding: str) -> int:
    if rounding == "up":
        return math.ceil(Fraction(size * side, scaled_side))
    exact = size * side // scaled_side if rounding == "truncate" else half_even(size * side, scaled_side)
    return max(1, exact)


@given(size_hw=REAL_SIZES, size=SIDES | REAL_SIDES.filter(lambda side: side <= 16384), rounding=ROUNDINGS)
@example(size_hw=(375, 500), size=256, rounding="truncate")
@example(size_hw=(1080, 1920), size=256, rounding="truncate")
@example(size_hw=(1, 20_000), size=256, rounding="truncate")
def test_shorter_and_longer(size_hw: Size, size: int, rounding: str) -> None:
    """torchvision: ``new_short, new_long = size, int(size * long / short)``."""
    short, long = sorted(size_hw)
    for mode, expected in (
        ("shorter", (size, proportional(size, long, short, rounding))),
        ("longer", (proportional(size, short, long, rounding), size)),
    ):
        seen = Resize(mode=mode, size=size, rounding=rounding).resized(size_hw)
        assert sorted(seen) == sorted(expected)
        if size_hw[0] != size_hw[1]:
            # The longer side stays the longer one, unless rounding made them equal.
            assert seen[0] == seen[1] or (seen[0] < seen[1]) == (size_hw[0] < size_hw[1])


@given(size_hw=REAL_SIZES, box=BOXES | st.tuples(st.integers(1, 1280), st.integers(1, 1280)), rounding=ROUNDINGS)
def test_fit_fills_the_box_in_one_side_and_never_leaves_it(size_hw: Size, box: Size, rounding: str) -> None:
    seen = Resize(mode="fit", size=box, rounding=rounding).resized(size_hw)
    assert seen[0] == box[0] or seen[1] == box[1]
    assert seen[0] <= box[0]
    assert seen[1] <= box[1]
    assert Resize(mode="exact", size=box).resized(size_hw) == box
    # Rounding does not break an equal aspect ratio.
    for scale in (1, 3, 7, 333):
        assert Resize(mode="fit", size=box, rounding=rounding).resized((box[0] * scale, box[1] * scale)) == box


@given(size_hw=REAL_SIZES, box=st.tuples(st.integers(8, 1280), st.integers(8, 1280)))
def test_letterbox_is_that_of_ultralytics(size_hw: Size, box: Size) -> None:
    """``r = min(...)``, ``round(side * r)``, then ``round(dh - 0.1)`` rows on top, dh being half of what is missing."""
    ratio = min(box[0] / size_hw[0], box[1] / size_hw[1])
    exact = [side * ratio for side in size_hw]
    # They round the ratio first, so that a half may fall on either side.
    assume(all(abs(side % 1 - 0.5) > 1e-6 and side > 0.5 for side in exact))
    resize, pad = Letterbox(size=box).parts()
    inside = resize.resized(size_hw)
    assert inside == (round(exact[0]), round(exact[1]))
    window = pad.window(inside)
    halves = [(outer - inner) / 2 for outer, inner in zip(box, inside, strict=True)]
    assert (-window.top, -window.left) == tuple(round(half - 0.1) for half in halves)
    assert [box[0] - inside[0] + window.top, box[1] - inside[1] + window.left] == [round(half + 0.1) for half in halves]


@given(size_hw=REAL_SIZES, box=st.tuples(st.integers(8, 1280), st.integers(8, 1280)))
@example(size_hw=(192, 57), box=(416, 416))
@example(size_hw=(192, 117), box=(416, 416))
def test_rounding_by_ratio_is_that_of_ultralytics_at_halves_too(size_hw: Size, box: Size) -> None:
    ratio = min(box[0] / size_hw[0], box[1] / size_hw[1])
    expected = tuple(max(round(side * ratio), 1) for side in size_hw)
    assert Resize(mode="fit", size=box, rounding="ratio").resized(size_hw) == expected
    # Of the exact quotient a half is one.
    assert Resize(mode="fit", size=(416, 416), rounding="nearest").resized((192, 57)) == (416, 124)


@given(
    size_hw=REAL_SIZES,
    mode=st.sampled_from(["shorter", "longer", "fit"]),
    multiples=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    multiple=st.sampled_from([1, 2, 14, 32]),
    rounding=ROUNDINGS,
)
@example(size_hw=(700, 960), mode="longer", multiples=(30, 30), multiple=32, rounding="truncate")
@example(size_hw=(1, 20_000), mode="longer", multiples=(30, 30), multiple=32, rounding="truncate")
def test_sides_become_the_nearest_multiple(
    size_hw: Size, mode: str, multiples: Size, multiple: int, rounding: str
) -> None:
    sizes = (multiples[0] * multiple, multiples[1] * multiple)
    size = sizes if mode == "fit" else sizes[0]
    free, seen = (
        Resize(mode=mode, size=size, rounding=rounding, multiple_of=one).resized(size_hw) for one in (1, multiple)
    )
    for before, after in zip(free, seen, strict=True):
        assert after % multiple == 0
        assert after == max(multiple, multiple * half_even(before, multiple))
    # The side that is told stays.
    assert any(after == before == told for before, after, told in zip(free, seen, sizes, strict=True)) or mode != "fit"
    assert mode == "fit" or sizes[0] in seen


@pytest.mark.parametrize(
    ("fields", "sizes"),
    [
        ({"mode": "longer", "size": 960}, {(300, 400): (300, 400), (960, 400): (960, 400), (961, 400): (960, 399)}),
        ({"mode": "longer", "size": 960, "multiple_of": 32}, {(300, 400): (288, 384), (5, 7): (32, 32)}),
        ({"mode": "shorter", "size": 200}, {(100, 900): (100, 900), (400, 900): (200, 450)}),
        ({"mode": "fit", "size": (100, 200)}, {(99, 199): (99, 199), (99, 400): (49, 200)}),
    ],
)
def test_a_picture_that_would_grow_keeps_its_size(fields: dict[str, Any], sizes: dict[Size, Size]) -> None:
    resize = Resize(**fields, enlarge=False)
    assert {size_hw: resize.resized(size_hw) for size_hw in sizes} == sizes


@given(size_hw=REAL_SIZES, size=st.integers(1, 900), more=st.integers(0, 900))
@example(size_hw=(480, 640), size=800, more=533)
@example(size_hw=(400, 1334), size=800, more=533)  # keeps its size, one pixel above the bound
@example(size_hw=(426, 640), size=800, more=533)
def test_two_bounds(size_hw: Size, size: int, more: int) -> None:
    """torchvision; transformers' DETR; mmcv's ``rescale_size`` with the scale (most, size)."""
    short, long = sorted(map(float, size_hw))
    most = size + more

    new_short, new_long = size, int(size * long / short)
    if new_long > most:
        new_short, new_long = int(most * new_short / new_long), most
    expected = {"truncate": (new_short, new_long)}

    raw = float(size)
    if long / short * size > most:
        raw = most * short / long
    expected["detr"] = (int(short), int(long)) if round(raw) == short else (round(raw), int(raw * long / short))

    factor = min(most / long, size / short)
    expected["half_up"] = (int(short * factor + 0.5), int(long * factor + 0.5))

    for rounding, sides in expected.items():
        seen = Resize(mode="shorter", size=size, max_size=most, rounding=rounding).resized(size_hw)
        assert sorted(seen) == sorted(max(1, side) for side in sides), rounding
        assert seen[0] == seen[1] or (seen[0] < seen[1]) == (size_hw[0] < size_hw[1])


@given(size_hw=REAL_SIZES, limit=st.sampled_from([32, 64, 736, 960]))
def test_a_picture_that_would_shrink_keeps_its_size(size_hw: Size, limit: int) -> None:
    """PaddleOCR's ``DetResizeForTest`` with ``limit_type: min``: larger if its shorter side is below the limit."""
    height, width = size_hw
    ratio = float(limit) / min(size_hw) if min(size_hw) < limit else 1.0
    seen = Resize(mode="shorter", size=limit, multiple_of=32, shrink=False).resized(size_hw)
    expected = [max(int(round(int(side * ratio) / 32) * 32), 32) for side in (height, width)]
    # Its floats may miss a whole number that the exact quotient meets, here by one before the multiple.
    assert all(abs(ours - theirs) in (0, 32) for ours, theirs in zip(seen, expected, strict=True))
    if min(size_hw) >= limit:
        assert list(seen) == expected


@given(size_hw=REAL_SIZES, size=BOXES | st.just((48, 3200)))
@example(size_hw=(37, 333), size=(48, 3200))
def test_a_height_has_the_width_in_proportion_up_to_the_most(size_hw: Size, size: Size) -> None:
    """PaddleOCR: ``min(ceil(height * width / height), most)``."""
    seen = Resize(mode="height", size=size, rounding="up").resized(size_hw)
    assert seen == (size[0], min(size[1], math.ceil(Fraction(size[0] * size_hw[1], size_hw[0]))))


def test_a_side_that_is_too_large_is_padded_to_a_multiple() -> None:
    pad = Pad(size=(48, 320), multiple_of=(0, 8), align="top_left")
    for width, padded_width in ((1, 320), (320, 320), (321, 328), (328, 328), (3199, 3200)):
        assert pad.window((48, width)) == Window(0, 0, 48, padded_width)
    with pytest.raises(BadImage, match="pads to 320x48 pixels, which cannot hold the 10x49"):
        pad.window((49, 10))
    assert Pad(size=(4, 4), multiple_of=(4, 4)).window((5, 6)) == Window(-1, -1, 8, 8)


def test_sizes_that_follow_from_the_picture_are_those_that_limits_judge() -> None:
    border = CenterCrop(size=(300, 400)), Pad(size=(500, 500))
    definition = chain(Resize(mode="shorter", size=10), *border, Pad(size=(1, 1), multiple_of=(64, 64)))
    assert Planner(definition, Limits(max_pixels=512 * 512))((20, 40)).canvas_hw == (512, 512)
    with pytest.raises(BadImage, match="512x512"):
        Planner(definition, Limits(max_pixels=512 * 512 - 1))((20, 40))
    with pytest.raises(BadImage, match="20x10"):
        Planner(definition, Limits(max_pixels=199))((20, 40))
    assert Planner(chain(*border), Limits(max_pixels=1))((20, 40)).canvas_hw == (500, 500)


def cropped(line: Lines, size: int, rounding: str) -> Lines:
    """torchvision's ``center_crop`` of a line: pad ``missing // 2`` in front, or cut from ``round(excess / 2.0)``.

    Hugging Face's cuts from ``int(excess / 2.0)``.
    """
    missing = size - len(line)
    if missing > 0:
        return np.concatenate([np.full(missing // 2, -1), line, np.full(missing - missing // 2, -1)])
    first = half_even(len(line) - size, 2) if rounding == "nearest" else int((len(line) - size) / 2.0)
    return line[first : first + size]


def padded(line: Lines, size: int, multiple: int, align: str) -> Lines:
    missing = size - len(line)
    if missing < 0:
        missing = next(more for more in range(multiple) if (len(line) + more) % multiple == 0)
    front = missing // 2 if align == "center" else 0
    return np.concatenate([np.full(front, -1), line, np.full(missing - front, -1)])


def expected_lines(definition: Definition, size_hw: Size) -> list[Lines]:
    """For rows and columns: which row or column of the resized image is at each place of the canvas; -1 is border."""
    operations = list(definition.geometry)
    if operations and isinstance(operations[0], Resize):
        size_hw = operations.pop(0).resized(size_hw)
    lines = [np.arange(side) for side in size_hw]
    for operation in operations:
        for axis in (0, 1):
            if isinstance(operation, CenterCrop):
                lines[axis] = cropped(lines[axis], operation.size[axis], operation.rounding)
            else:
                assert isinstance(operation, Pad)
                lines[axis] = padded(lines[axis], operation.size[axis], operation.multiple_of[axis], operation.align)
    return lines


def held(definition: Definition, size_hw: Size) -> Plan:
    """The plan, for sizes that the definition's pads can hold."""
    try:
        return Planner(definition)(size_hw)
    except BadImage:
        assume(False)
        raise


def corners(size_hw: Size) -> npt.NDArray[np.float32]:
    return np.array([[0, 0, size_hw[1], size_hw[0]]], np.float32)


@given(definition=definitions(one_fill=False), size_hw=SIZES)
def test_every_row_and_column_comes_where_the_rules_say(definition: Definition, size_hw: Size) -> None:
    placement, mapping = held(definition, size_hw), Planner(definition).mapping(size_hw)
    window, offset = placement.window, placement.offset
    expected = expected_lines(definition, size_hw)
    assert placement.canvas_hw == mapping.canvas_hw == (len(expected[0]), len(expected[1]))
    assert placement.fills == (window.size_hw != placement.canvas_hw)
    assert definition.fills or not placement.fills
    if any((line < 0).all() for line in expected):
        assert window.size_hw == (0, 0)
        assert not always_visible(definition)
        return
    first = (window.top, window.left)
    for axis, line in enumerate(expected):
        seen = np.full(len(line), -1)
        seen[offset[axis] : offset[axis] + window.size_hw[axis]] = np.arange(window.size_hw[axis]) + first[axis]
        np.testing.assert_array_equal(seen, line)
    top, left = offset[0] - first[0], offset[1] - first[1]
    whole = [left, top, left + placement.resized_hw[1], top + placement.resized_hw[0]]
    np.testing.assert_allclose(mapping.to_canvas(corners(size_hw))[0], whole, atol=1e-3)


@given(
    size_hw=SIZES,
    operations=st.lists(resizes() | st.builds(CenterCrop, size=BOXES), max_size=4),
    box=st.tuples(*[st.fractions(-50, 350)] * 4),
)
def test_a_mapping_follows_every_operation_and_back(
    size_hw: Size, operations: list[Resize | CenterCrop], box: tuple[Fraction, ...]
) -> None:
    found = Planner(chain(*operations)).mapping(size_hw)
    expected, current = list(box), size_hw
    for operation in operations:
        if isinstance(operation, Resize):
            resized = operation.resized(current)
            expected = [value * Fraction(resized[1 - at % 2], current[1 - at % 2]) for at, value in enumerate(expected)]
            current = resized
        else:
            window = operation.window(current)
            expected = [value - (window.left, window.top)[at % 2] for at, value in enumerate(expected)]
            current = operation.size
    given_box = np.array([[float(value) for value in box]], np.float32)
    moved = found.to_canvas(given_box)
    scale = max(1.0, *found.scale)
    # float32 has 24 binary digits, and boxes reach to some hundred pixels before they are scaled.
    np.testing.assert_allclose(moved[0], [float(value) for value in expected], rtol=1e-6, atol=1e-4 * scale)
    back = found.to_source(moved)
    np.testing.assert_allclose(back, given_box, rtol=1e-5, atol=1e-3 * max(1.0, *(1 / one for one in found.scale)))


@given(size_hw=SIZES, canvas=BOXES, flip=st.booleans(), part=st.tuples(*[st.floats(0, 1)] * 4), at=st.floats(0, 1))
def test_the_box_of_a_variation_fills_the_canvas(
    size_hw: Size, canvas: Size, flip: bool, part: tuple[float, ...], at: float
) -> None:
    definition = chain(Resize(mode="exact", size=canvas))
    top, left = int(part[0] * (size_hw[0] - 1)), int(part[1] * (size_hw[1] - 1))
    box = Window(top, left, 1 + int(part[2] * (size_hw[0] - top - 1)), 1 + int(part[3] * (size_hw[1] - left - 1)))
    found = variation_mapping(definition, Variation.of_box(box, flip=flip), size_hw)
    inside = np.array([[box.left, box.top, box.left + box.width, box.top + box.height]], np.float32)
    np.testing.assert_allclose(found.to_canvas(inside), corners(canvas), atol=1e-4)
    np.testing.assert_allclose(found.to_source(corners(canvas)), inside, atol=1e-4)
    # A strip at the left end of the box comes to lie at the right end of a flipped canvas.
    inside[0, 2] = box.left + box.width * at
    strip = found.to_canvas(inside)[0]
    assert strip[2] - strip[0] == pytest.approx(canvas[1] * at, abs=1e-3)
    assert (strip[2] if flip else strip[0]) == pytest.approx(canvas[1] if flip else 0, abs=1e-3)


@given(resize=resizes(FILTERS.filter(lambda name: name != "nearest")), crop=BOXES, size_hw=SIZES | REAL_SIZES)
def test_a_part_holds_every_pixel_that_the_filter_reads(resize: Resize, crop: Size, size_hw: Size) -> None:
    plan = Planner(chain(resize, CenterCrop(size=crop)))(size_hw)
    part, window = plan.part, plan.window
    for axis, (first, kept) in enumerate(((window.top, window.height), (window.left, window.width))):
        source, resized = size_hw[axis], plan.resized_hw[axis]
        anchor, end = (part.top, part.left)[axis], part.spans[axis][1]
        assert 0 <= anchor < end <= source
        scale = source / resized
        reach = SUPPORT[resize.filter] * max(scale, 1)
        lowest = math.floor((first + 0.5) * scale - reach + 0.5)
        highest = math.floor((first + kept - 0.5) * scale + reach + 0.5)
        assert anchor <= max(0, lowest)
        assert end >= min(source, highest)
        begin, stop = (anchor + edge for edge in plan.spans[axis])
        assert math.isclose(begin, first * scale, abs_tol=1e-6)
        assert math.isclose(stop, (first + kept) * scale, rel_tol=1e-9, abs_tol=1e-6)


@given(size_hw=REAL_SIZES, pad=BOXES, align=ALIGNMENTS)
def test_a_pad_never_cuts(size_hw: Size, pad: Size, align: str) -> None:
    operation = Pad(size=pad, align=align)
    if size_hw[0] <= pad[0] and size_hw[1] <= pad[1]:
        window = operation.window(size_hw)
        assert window.top <= 0 <= window.top + window.height - size_hw[0]
        assert window.left <= 0 <= window.left + window.width - size_hw[1]
        return
    with pytest.raises(BadImage, match="cannot hold") as caught:
        operation.window(size_hw)
    assert caught.value.code == "too_many_pixels"


def test_halves_go_to_the_even_row_when_cutting_and_down_when_padding() -> None:
    assert [CenterCrop(size=(2, 2)).window((side, 2)).top for side in (3, 5, 7, 9)] == [0, 2, 2, 4]
    assert [CenterCrop(size=(side, 2)).window((2, 2)).top for side in (3, 5, 7, 9)] == [0, -1, -2, -3]
    assert Pad(size=(5, 5)).window((2, 2)) == Window(-1, -1, 5, 5)


def test_kinds_of_geometry() -> None:
    resize, crop, pad = Resize(mode="exact", size=(4, 4)), CenterCrop(size=(2, 2)), Pad(size=(8, 8))
    once = {(resize, crop, pad): True, (crop, pad): True, (crop, resize): False, (resize, resize): False}
    assert {operations: chain(*operations).resizes_once for operations in once} == once
    visible = {(resize, crop, pad, pad): True, (pad, crop): False, (crop, crop): False}
    assert {operations: always_visible(chain(*operations)) for operations in visible} == visible


CROP = CenterCrop(size=(224, 224))


@pytest.mark.parametrize(
    ("operations", "values"),
    [
        ([CROP], (0,)),
        ([Resize(mode="shorter", size=256), CROP], ()),
        ([Resize(mode="shorter", size=200), CROP], (0,)),
        ([Resize(mode="shorter", size=256, enlarge=False), CROP], (0,)),
        ([Resize(mode="shorter", size=256, multiple_of=32), CROP], ()),
        ([Resize(mode="shorter", size=256, shrink=False), CROP], ()),
        ([Resize(mode="shorter", size=256, max_size=300), CROP], (0,)),
        ([Resize(mode="longer", size=256), CROP], (0,)),
        ([Resize(mode="exact", size=(224, 448)), CROP], ()),
        ([Resize(mode="exact", size=(223, 448)), CROP], (0,)),
        ([Resize(mode="fit", size=(224, 448)), CROP, Pad(size=(240, 240))], (0,)),
        ([Resize(mode="height", size=(224, 448)), CROP], (0,)),
        ([Letterbox(size=(640, 640))], (114,)),
        ([Letterbox(size=(640, 640)), CenterCrop(size=(512, 640))], (114,)),
        ([Letterbox(size=(640, 640)), Pad(size=(700, 700), value=3)], (114, 3)),
        ([Letterbox(size=(640, 640), value=(1, 2, 3))], ((1, 2, 3),)),
    ],
)
def test_fill_values(operations: list[Operation], values: tuple[Fill, ...]) -> None:
    assert chain(*operations).fills == values
