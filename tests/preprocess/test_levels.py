"""Changes of levels by compiled loops: in every bit what Pillow makes, of pictures of all kinds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_images import photo

from onestream.preprocess.changes import (
    AnyChange,
    AutoContrast,
    Blur,
    Brightness,
    Contrast,
    Equalize,
    Hue,
    Invert,
    Linear,
    Pixels,
    Posterize,
    Saturation,
    Sharpness,
    Solarize,
    changed,
)
from onestream.preprocess.cpu.levels import apply

FACTORS = st.floats(0, 3) | st.sampled_from([0.0, 0.01, 0.99, 1.0, 1.99])
CHANGES: st.SearchStrategy[AnyChange] = st.one_of(
    *(
        FACTORS.map(lambda factor, kind=kind: kind(factor=factor))
        for kind in (Brightness, Contrast, Saturation, Sharpness)
    ),
    st.integers(1, 8).map(lambda bits: Posterize(bits=bits)),
    st.integers(0, 256).map(lambda threshold: Solarize(threshold=threshold)),
    st.sampled_from([AutoContrast(), Equalize(), Invert(), Hue(turns=0.2), Blur(sigma=1)]),
)


@st.composite
def drawn_pixels(draw: st.DrawFn) -> Pixels:
    """Noise, few levels, or one: gray or RGB, of sizes down to a pixel."""
    height, width, channels = draw(st.integers(1, 40)), draw(st.integers(1, 40)), draw(st.sampled_from([1, 3]))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    first, count = draw(st.integers(0, 255)), draw(st.sampled_from([1, 2, 40, 256]))
    return rng.integers(first, min(first + count, 256), (height, width, channels)).astype(np.uint8)


@given(pixels=drawn_pixels(), changes=st.lists(CHANGES, min_size=1, max_size=3), bgr=st.booleans())
def test_they_are_pillows_in_every_bit(pixels: Pixels, changes: list[AnyChange], bgr: bool) -> None:
    color = "gray" if pixels.shape[2] == 1 else "bgr" if bgr else "rgb"
    before = pixels.copy()
    found = changed(pixels, changes, color=color, apply=apply)
    np.testing.assert_array_equal(found, changed(pixels, changes, color=color), err_msg=str([*map(str, changes)]))
    np.testing.assert_array_equal(pixels, before, err_msg="what is given stays as it was")


@pytest.mark.parametrize("name", ["coffee", "chelsea"])
@pytest.mark.parametrize(
    "change",
    [
        *(kind(factor=factor) for kind in (Contrast, Saturation, Sharpness) for factor in (0.1, 1.9)),
        AutoContrast(),
        Equalize(),
    ],
    ids=str,
)
def test_of_photos_too(name: str, change: AnyChange) -> None:
    pixels = np.asarray(photo(name))
    np.testing.assert_array_equal(apply(pixels, change), change.apply(pixels))


def test_the_mean_of_a_whole_picture_is_pillows() -> None:
    """Of 3,000 x 2,000 pixels, where a sum in 32 bits would be too large."""
    pixels = np.full((2000, 3000, 1), 250, np.uint8)
    pixels[:7] = 3
    change = Contrast(factor=0.5)
    np.testing.assert_array_equal(apply(pixels, change), change.apply(pixels))


def test_factors_are_not_theirs() -> None:
    """``Linear`` has its own loop, since its factors are in the definition's order."""
    change = Linear.of(np.array([[1.1, -5]], np.float32))
    pixels = np.arange(240, dtype=np.uint8).reshape(12, 20, 1)
    np.testing.assert_array_equal(apply(pixels, change), change.apply(pixels))
