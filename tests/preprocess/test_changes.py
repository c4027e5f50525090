"""Changes of levels: against torchvision's and Pillow's own functions, by the loops too, in every order of channels."""

from __future__ import annotations

import importlib.util
import io
import typing

import numpy as np
import pytest
from change_strategies import changes_of_levels
from definitions import in_levels
from hypothesis import given
from hypothesis import strategies as st
from image_files import png_of
from lazily import Lazily
from PIL import Image, ImageFilter
from sample_images import card, photo

from onestream.preprocess import Resize, changes, compile
from onestream.preprocess.changes import AnyChange, changed
from onestream.preprocess.cpu.levels import apply
from onestream.preprocess.geometry import Window
from onestream.preprocess.operations import Color
from onestream.preprocess.variation import Variation

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="torchvision is not installed")
functional = Lazily("torchvision.transforms.v2.functional")
COFFEE = np.asarray(photo("coffee"))
BY_TORCHVISION: list[tuple[AnyChange, str, list[float]]] = [
    *((changes.Brightness(factor=factor), "adjust_brightness", [factor]) for factor in (1.7, 0.01)),
    *((changes.Contrast(factor=factor), "adjust_contrast", [factor]) for factor in (0.3, 1.9)),
    *((changes.Sharpness(factor=factor), "adjust_sharpness", [factor]) for factor in (0.2, 1.9)),
    *((changes.Hue(turns=turns), "adjust_hue", [turns]) for turns in (0.21, -0.5)),
    (changes.Saturation(factor=1.8), "adjust_saturation", [1.8]),
    (changes.Saturation(factor=0.0), "rgb_to_grayscale", [3]),
    (changes.Posterize(bits=3), "posterize", [3]),
    *((changes.Solarize(threshold=threshold), "solarize", [threshold]) for threshold in (100, 255)),
    (changes.AutoContrast(), "autocontrast", []),
    (changes.Equalize(), "equalize", []),
    (changes.Invert(), "invert", []),
]
EVERY_CHANGE = [
    *(change for change, _, _ in BY_TORCHVISION),
    changes.Solarize(threshold=256),
    changes.Linear.of(np.array([[1.1, 0.1, 0, -5], [0, 0.9, 0, 3], [0.2, 0, 0.8, 1]], np.float32)),
    changes.Blur(sigma=1.4),
    changes.Noise(sigma=11, seed=3),
    changes.Jpeg(quality=35),
    changes.Erase(top=2, left=3, height=9, width=20, fill=77),
    changes.Erase(top=5, left=7, height=10, width=4, fill=(10, 20, 30)),
    changes.Background(colors=((200, 10, 30), (5, 90, 70), (1, 2, 250), (250, 250, 9)), share=0.4),
]
ON_GRAY = [
    changes.Linear.of(np.array([[1.1, -5]], np.float32)) if isinstance(change, changes.Linear) else change
    for change in EVERY_CHANGE
    if not isinstance(change, changes.Erase) or isinstance(change.fill, int)
]


def test_it_is_what_torchvision_makes_of_a_pil_image() -> None:
    for change, function, values in BY_TORCHVISION:
        expected = getattr(functional, function)(photo("coffee"), *values)
        np.testing.assert_array_equal(change.apply(COFFEE), np.asarray(expected), err_msg=str(change))
    np.testing.assert_array_equal(changes.Solarize(threshold=256).apply(COFFEE), COFFEE)
    (union, _) = typing.get_args(AnyChange)
    assert {type(change) for change in EVERY_CHANGE} == set(typing.get_args(union)), "every kind is tested here"


def test_blur_and_jpeg_are_pillows() -> None:
    image = photo("coffee")
    np.testing.assert_array_equal(
        changes.Blur(sigma=2).apply(COFFEE), np.asarray(image.filter(ImageFilter.GaussianBlur(2)))
    )
    # A blur of a point has the standard deviation that it says, within a tenth.
    point = np.zeros((65, 65, 3), np.uint8)
    point[32, 32] = 255
    spread = changes.Blur(sigma=2).apply(point)[:, :, 0].astype(float)
    across = np.arange(65) - 32
    assert np.sqrt((spread.sum(axis=0) * across**2).sum() / spread.sum()) == pytest.approx(2, rel=0.1)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=30)
    np.testing.assert_array_equal(changes.Jpeg(quality=30).apply(COFFEE), np.asarray(Image.open(file)))


def test_noise_has_its_strength_and_its_seed() -> None:
    gray = np.full((200, 200, 3), 128, np.uint8)
    noisy = changes.Noise(sigma=10, seed=1).apply(gray)
    # 120,000 values: the error of the deviation is 10 / sqrt(240,000) = 0.02, and rounding adds 1/12 to the variance.
    assert noisy.std() == pytest.approx(np.sqrt(100 + 1 / 12), abs=0.1)
    assert noisy.mean() == pytest.approx(128, abs=0.2)
    np.testing.assert_array_equal(noisy, changes.Noise(sigma=10, seed=1).apply(gray))
    assert (noisy != changes.Noise(sigma=10, seed=2).apply(gray)).mean() > 0.9
    np.testing.assert_array_equal(changes.Noise(sigma=0, seed=1).apply(gray), gray)


@pytest.mark.parametrize("fill", [99, (10, 20, 30)])
def test_an_erased_rectangle_has_its_levels_and_nothing_else_changes(fill: int | tuple[int, int, int]) -> None:
    expected = card(30, 40)
    after = changes.Erase(top=5, left=7, height=10, width=4, fill=fill).apply(expected)
    expected[5:15, 7:11] = fill
    np.testing.assert_array_equal(after, expected)


@pytest.mark.parametrize("change", EVERY_CHANGE, ids=str)
def test_the_order_of_the_channels_changes_nothing(change: AnyChange) -> None:
    if isinstance(change, changes.Linear):
        order = (2, 1, 0)
        in_bgr: AnyChange = changes.Linear.of(change.array[np.ix_(order, (*order, 3))])
        most = 1  # sums of float32 are taken in the order of the channels
    else:
        in_bgr, most = change, 0
    rgb = changed(COFFEE, (change,), color="rgb")
    bgr = changed(np.ascontiguousarray(COFFEE[:, :, ::-1]), (in_bgr,), color="bgr")
    assert np.abs(np.subtract(bgr[:, :, ::-1], rgb, dtype=np.int16)).max() <= most


def test_gray_pictures_stay_gray_and_keep_their_shape() -> None:
    gray = np.asarray(photo("coffee").convert("L"))[:, :, None]
    for change in ON_GRAY:
        made = changed(gray, (change,), color="gray")
        assert (made.shape, made.dtype) == (gray.shape, np.uint8), change


@pytest.mark.parametrize("color", ["rgb", "bgr", "gray"])
def test_backends_change_equal_pixels_to_equal_pixels(color: Color) -> None:
    definition = in_levels(Resize(mode="exact", size=(40, 52)), color=color)
    compiled = [compile(definition, backend=backend, varied=True) for backend in ("reference", "dali")]
    every = tuple(ON_GRAY if color == "gray" else EVERY_CHANGE)
    file = png_of(card(40, 52))
    # The box has the canvas's size, so the resize changes nothing.
    for several in (*((change,) for change in every), every[:6], every[6:]):
        variation = Variation.of_box(Window(0, 0, 40, 52), changes=several)
        seen = [one.run([file], [lambda _, variation=variation: variation])[0] for one in compiled]
        np.testing.assert_array_equal(*seen)


@st.composite
def drawn_pixels(draw: st.DrawFn) -> changes.Pixels:
    """Noise, few levels, or one: gray or RGB, of sizes down to a pixel."""
    height, width, channels = draw(st.integers(1, 40)), draw(st.integers(1, 40)), draw(st.sampled_from([1, 3]))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    first, count = draw(st.integers(0, 255)), draw(st.sampled_from([1, 2, 40, 256]))
    return rng.integers(first, min(first + count, 256), (height, width, channels)).astype(np.uint8)


@given(pixels=drawn_pixels(), bgr=st.booleans(), data=st.data())
def test_compiled_loops_give_pillows_bits(pixels: changes.Pixels, bgr: bool, data: st.DataObject) -> None:
    color: Color = "gray" if pixels.shape[2] == 1 else "bgr" if bgr else "rgb"
    drawn = data.draw(st.lists(changes_of_levels(color) | st.just(changes.Blur(sigma=1)), min_size=1, max_size=3))
    before = pixels.copy()
    found = changed(pixels, drawn, color=color, apply=apply)
    np.testing.assert_array_equal(found, changed(pixels, drawn, color=color), err_msg=str([*map(str, drawn)]))
    np.testing.assert_array_equal(pixels, before, err_msg="what is given stays as it was")


def test_a_compiled_mean_of_a_whole_picture_is_pillows() -> None:
    """Of 3,000 x 2,000 pixels, where a sum in 32 bits would be too large."""
    pixels, change = np.full((2000, 3000, 1), 250, np.uint8), changes.Contrast(factor=0.5)
    pixels[:7] = 3
    np.testing.assert_array_equal(apply(pixels, change), change.apply(pixels))
