"""Decoded pictures and their regions: the compiled loops against the reference, and against what files give."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import pytest
from definition_strategies import definitions
from definitions import LEVELS, chain
from hypothesis import assume, given
from hypothesis import strategies as st
from image_files import encode
from PIL import Image
from sample_images import card, edges, noise, photo
from turned import rectangle

from onestream.preprocess import (
    WHOLE_PICTURE,
    BadImage,
    CannotCompile,
    CenterCrop,
    Definition,
    FromPicture,
    Limits,
    Normalize,
    OutOfMemory,
    Pad,
    Region,
    Resize,
    compile,
    compile_from_picture,
)
from onestream.preprocess.geometry import Size, quads_of
from onestream.preprocess.interop import to_torchvision
from onestream.preprocess.operations import Operation
from onestream.preprocess.quads import choose, cuts
from onestream.preprocess.tolerances import compare, tolerance

BACKENDS = ("reference", "dali")
LINE = (
    Resize(mode="height", size=(48, 3200), rounding="up"),
    Pad(size=(48, 320), multiple_of=(0, 8), align="top_left", value=128),
    Normalize(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
)


@cache
def compiled(definition: Definition, backend: Any) -> FromPicture:
    return compile_from_picture(definition, backend=backend)


def regions(*operations: Operation, **fields: Any) -> Definition:
    return Definition(operations=[Region(of="find", **fields), *operations])


def line(x: float, y: float, width: float, height: float, degrees: float) -> np.ndarray:
    """One quad, from its first corner."""
    corners = rectangle((0, 0), width, height, degrees)
    return (corners - corners[0] + (x, y))[None].astype(np.float32)


@st.composite
def chosen_quads(draw: st.DrawFn, size_hw: Size, definition: Definition) -> np.ndarray:
    corner = st.tuples(st.floats(-20, size_hw[1] + 20, width=32), st.floats(-20, size_hw[0] + 20, width=32))
    drawn = draw(st.lists(st.lists(corner, min_size=4, max_size=4), max_size=4))
    lines = [
        line(*draw(corner), draw(st.floats(2, 90)), draw(st.floats(2, 50)), draw(st.floats(-180, 180)))
        for _ in range(draw(st.integers(0, 2)))
    ]
    some = np.concatenate([np.array(drawn, np.float32).reshape(-1, 4, 2), *lines])
    return some[choose(definition, some, size_hw, limits=Limits()).indices]


@given(data=st.data(), definition=definitions(), size_hw=st.tuples(st.integers(1, 90), st.integers(1, 90)))
def test_regions_are_cut_in_every_bit_and_within_the_tolerances_at_every_stage(
    data: st.DataObject, definition: Definition, size_hw: Size
) -> None:
    fields = {
        "shape": data.draw(st.sampled_from(["box", "quad"])), "margin": data.draw(st.just(0) | st.floats(0, 1)),
        "upright": data.draw(st.sampled_from([None, 1.5])), "color": definition.color,
    }  # fmt: skip
    of_regions = regions(*definition.operations[1:], **fields)
    picture = np.array(data.draw(st.sampled_from([card, noise, edges]))(*size_hw))
    quads = data.draw(chosen_quads(size_hw, of_regions))
    sizes = cuts(of_regions.source, quads, size_hw, limits=Limits()).sizes
    for stage in of_regions.stages:
        cut = of_regions.stage(stage)
        reference, ours = (compile_from_picture(cut, backend=name).run(picture, quads) for name in BACKENDS)
        for one, other, size in zip(reference, ours, sizes, strict=True):
            if isinstance(one, BadImage):
                assert str(other) == str(one)
            elif stage == "region":
                assert one.shape[:2] == tuple(size)
                np.testing.assert_array_equal(one, other)
            else:
                seen = compare(one, other, definition=cut, stage=stage, backend="dali")
                # A share of a few values is chance: of a single pixel of 3, two thirds may differ by the allowed level.
                is_small = one.size < 100 and seen.max <= tolerance("dali", stage).max_level
                assert seen.within or is_small, (stage, seen)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_box_is_what_pillow_crops_and_resizes(backend: str) -> None:
    image = photo("chelsea")
    definition = regions(Resize(mode="exact", size=(40, 60), filter="bicubic"), LEVELS, margin=0.1, upright=1.5)
    quads = quads_of(np.array([[10.4, 20.6, 110, 90], [30, 10, 80, 200], [-20, 100, 40, 9999]], np.float32))
    seen = compiled(definition, backend).run(np.array(image), quads)
    windows = [(3, 14, 117, 97), (25, 5, 85, 205), (0, 94, 46, image.height)]
    for one, window, turned in zip(seen, windows, (False, True, True), strict=True):
        cropped = image.convert("RGB").crop(window)
        cropped = cropped.transpose(Image.Transpose.ROTATE_90) if turned else cropped
        np.testing.assert_array_equal(one, np.asarray(cropped.resize((60, 40), Image.Resampling.BICUBIC)))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", ["box", "quad"])
def test_whole_pixels_are_copied_from_the_corner_with_which_a_region_begins(shape: Any, backend: str) -> None:
    picture, quads = np.array(photo("coffee")), quads_of(np.array([[30, 20, 130, 60]], np.float32))
    for quarters in range(4):
        (seen,) = compiled(regions(LEVELS, shape=shape), backend).run(picture, np.roll(quads, -quarters, axis=1))
        np.testing.assert_array_equal(seen, np.rot90(picture[20:60, 30:130], quarters))


def keys_cubic(distance: float) -> float:
    """R. Keys, Cubic Convolution Interpolation for Digital Image Processing, 1981, equation (15)."""
    x = abs(distance)
    if x < 1:
        return 1.5 * x**3 - 2.5 * x**2 + 1
    return -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2 if x < 2 else 0.0


@given(
    data=st.data(), degrees=st.floats(-180, 180), skew=st.lists(st.floats(-9, 9), min_size=8, max_size=8),
    picture=st.sampled_from([np.array(noise(60, 80)), np.array(edges(60, 80))]),
)  # fmt: skip
def test_every_pixel_is_the_cubic_interpolation_at_its_centre(
    data: st.DataObject, degrees: float, skew: list[float], picture: np.ndarray
) -> None:
    quads = line(40, 30, 50, 30, degrees) + np.array(skew, np.float32).reshape(1, 4, 2)
    definition = regions(LEVELS, shape="quad")
    assume(len(choose(definition, quads, (60, 80), limits=Limits()).indices))
    (seen,) = compiled(definition, "dali").run(picture, quads)
    height, width = seen.shape[:2]
    row, column = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    # The transform by eight equations, one for each coordinate of a corner.
    equations, sides = [], []
    for (x, y), (a, b) in zip(((0, 0), (width, 0), (width, height), (0, height)), quads[0].tolist(), strict=True):
        equations += [[x, y, 1, 0, 0, 0, -a * x, -a * y], [0, 0, 0, x, y, 1, -b * x, -b * y]]
        sides += [a, b]
    transform = np.append(np.linalg.solve(equations, sides), 1).reshape(3, 3)
    x, y, divisor = transform @ (column + 0.5, row + 0.5, 1)
    x, y = x / divisor - 0.5, y / divisor - 0.5
    expected = np.zeros(3)
    for line_y in range(int(np.floor(y)) - 1, int(np.floor(y)) + 3):
        for line_x in range(int(np.floor(x)) - 1, int(np.floor(x)) + 3):
            level = picture[min(max(line_y, 0), 59), min(max(line_x, 0), 79)]
            expected += keys_cubic(y - line_y) * keys_cubic(x - line_x) * level
    # A place is at most 1/512 of a pixel off along each axis, where 255 levels make a slope of 1.25 times as many:
    # 1.25 levels for both axes, and a quarter for the weights' last digits; then it is rounded.
    assert np.abs(seen[row, column] - np.clip(expected, 0, 255)).max() <= 2.0


@pytest.mark.parametrize("backend", BACKENDS)
def test_beyond_the_border_it_is_repeated_and_an_even_picture_stays_even(backend: str) -> None:
    run = compiled(regions(LEVELS, shape="quad"), backend).run
    picture = np.array(noise(20, 30))
    (seen,) = run(picture, np.array([[[-10, -5], [40, -5], [40, 25], [-10, 25]]], np.float32))
    np.testing.assert_array_equal(seen, np.pad(picture, ((5, 5), (10, 10), (0, 0)), mode="edge"))
    for level in (0, 1, 127, 254, 255):
        (seen,) = run(np.full((90, 120, 3), level, np.uint8), line(20, 15, 61.3, 31.7, 12.3))
        assert (seen == level).all()


def test_lines_of_text_have_the_width_that_they_need() -> None:
    definition = regions(*LINE, color="bgr", shape="quad", upright=1.5)
    assert definition.output_spec.shape == (3, 48, None)
    picture = np.array(photo("coffee"))
    quads = np.concatenate([line(10, 10, 100, 48, 0), line(10, 90, 330, 40, 2), line(400, 20, 30, 300, 1)])
    for backend in BACKENDS:
        samples = compiled(definition, backend).run(picture, quads)
        assert [sample.shape for sample in samples] == [(3, 48, 320), (3, 48, 400), (3, 48, 480)]
        assert samples[0][:, :, 100:] == pytest.approx((128 / 255 - 0.5) / 0.5, abs=1e-6)
        assert samples[0].dtype == np.float32


@given(data=st.data(), definition=definitions())
def test_a_picture_gives_what_its_file_gives(data: st.DataObject, definition: Definition) -> None:
    """A JPEG, of which DALI decodes only the part that a crop keeps."""
    size_hw = data.draw(st.tuples(st.integers(8, 90), st.integers(8, 90)))
    file = encode(Image.fromarray(card(*size_hw)), "JPEG", quality=90)
    for backend in BACKENDS:
        (picture,), (expected,) = (compile(one, backend=backend).run([file]) for one in (WHOLE_PICTURE, definition))
        run = compile_from_picture(definition, backend=backend).run
        if isinstance(expected, BadImage):
            with pytest.raises(BadImage, match=re.escape(str(expected))):
                run(picture)
        else:
            np.testing.assert_array_equal(run(picture), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_region_that_would_grow_too_large_hurts_no_other(backend: str) -> None:
    definition = regions(Resize(mode="shorter", size=100), LEVELS, shape="quad")
    quads = np.concatenate([line(5, 5, 40, 20, 0), line(5, 5, 60, 1, 0), line(5, 5, 40, 20, 0)])
    limited = compile_from_picture(definition, backend=backend, limits=Limits(max_pixels=100_000))
    first, bad, last = limited.run(np.array(noise(50, 70)), quads)
    assert bad.code == "too_many_pixels"
    assert "6000x100" in bad.reason
    np.testing.assert_array_equal(first, last)
    whole = chain(Resize(mode="shorter", size=100))
    with pytest.raises(BadImage, match="too_many_pixels"):
        compile_from_picture(whole, backend=backend, limits=Limits(max_pixels=100_000)).run(np.array(noise(5, 70)))


def test_pictures_are_read_where_they_lie() -> None:
    """With gaps between their pixels, turned or read-only, as slices of others are."""
    picture, quads = np.array(noise(60, 80)), line(5, 5, 40, 20, 3)
    run = compiled(regions(*LINE, shape="quad"), "dali").run
    (expected,) = run(picture, quads)
    wide, frozen = np.pad(picture, ((0, 0), (10, 10), (0, 0))), picture.copy()
    frozen.flags.writeable = False
    for other in (wide[:, 10:90], frozen, np.asfortranarray(picture)):
        np.testing.assert_array_equal(run(other, quads)[0], expected)


def test_a_region_for_which_memory_is_short_hurts_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_here = compile_from_picture(regions(LEVELS, shape="quad"), backend="dali")
    rectified = type(compiled_here)._rectified

    def short_of_memory(self: Any, *given: Any) -> np.ndarray:
        if given[-1] == (30, 60):
            raise MemoryError
        return rectified(self, *given)

    monkeypatch.setattr(type(compiled_here), "_rectified", short_of_memory)
    quads = np.concatenate([line(5, 5, 40, 20, 0), line(5, 5, 60, 30, 0), line(5, 5, 40, 20, 0)])
    first, bad, last = compiled_here.run(np.array(noise(50, 70)), quads)
    assert isinstance(bad, OutOfMemory)
    assert "60x30" in bad.reason
    np.testing.assert_array_equal(first, last)


@pytest.mark.parametrize("backend", BACKENDS)
def test_wrong_use_is_refused_by_name(backend: str) -> None:
    of_regions, whole = (compile_from_picture(one, backend=backend) for one in (regions(LEVELS), WHOLE_PICTURE))
    picture, quads = np.array(noise(20, 30)), line(5, 5, 10, 10, 0)
    assert of_regions.run(picture, quads[:0]) == []
    with pytest.raises(ValueError, match="begins with region; quads go with region"):
        of_regions.run(picture)
    with pytest.raises(ValueError, match="begins with decode; quads go with region"):
        whole.run(picture, quads)
    for wrong in (picture[:, :, 0], picture[:, :, :2], picture.astype(np.float32), picture[:0]):
        with pytest.raises(ValueError, match="expected uint8"):
            whole.run(wrong)
    for wrong in (quads + np.float32(100), np.full((1, 4, 2), np.nan, np.float32)):
        with pytest.raises(ValueError, match=r"quads\[1\].*cannot be cut as a box of a picture of 30x20"):
            of_regions.run(picture, np.concatenate([quads, wrong]))


def test_definitions_of_regions_are_refused_where_whole_pictures_are_taken() -> None:
    definition = regions(CenterCrop(size=(8, 8)))
    for backend in BACKENDS:
        with pytest.raises(CannotCompile, match=r"begins with region.*compile_from_picture"):
            compile(definition, backend=backend)
    with pytest.raises(CannotCompile, match="begins with region"):
        to_torchvision(definition)
    with pytest.raises(CannotCompile, match="'reference' and 'dali'"):
        compile_from_picture(definition, backend="cvcuda", device="gpu")
    twice = regions(Resize(mode="exact", size=(9, 9)), Resize(mode="exact", size=(8, 8)))
    with pytest.raises(CannotCompile, match="one resize"):
        compile_from_picture(twice, backend="dali")
    assert compile_from_picture(twice).run(np.array(noise(20, 30)), line(5, 5, 10, 10, 0))[0].shape == (3, 8, 8)
