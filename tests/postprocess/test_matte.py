"""Mattes and composition: the compiled form against its specification, and the specification against simple truths."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest
from gpu_frames import a_frame, a_matte
from hypothesis import given
from hypothesis import strategies as st
from matte_backgrounds import BACKGROUNDS

from onestream.postprocess.matte.background import Blur, Color, Picture
from onestream.postprocess.matte.composer import Composer, alpha, picture_window
from onestream.postprocess.matte.stretch import mixed, steps
from onestream.postprocess.planes import displayed
from onestream.preprocess import CenterCrop, Decode, Definition, Letterbox, Output, Resize
from onestream.preprocess.geometry import Window
from onestream.preprocess.video.common.color import ColorRule, Planes, to_rgb
from onestream.preprocess.video.common.orientation import Orientation

FORMATS = {"420": (1, 1), "422": (0, 1), "444": (0, 0)}


def random_frame(
    size_hw: tuple[int, int], shifts: tuple[int, int] = (1, 1), *, padding: int = 0, depth: int = 8, seed: int = 0
) -> Planes:
    """``a_frame`` whose rows are padded, with its own samples."""
    frame = a_frame(size_hw, (shifts, depth), seed=seed)
    y, u, v = (np.pad(plane, ((0, 0), (0, padding)), "wrap") for plane in (frame.y, frame.u, frame.v))
    return replace(frame, y=y, u=u, v=v)


def assert_equal(one: Planes, other: Planes) -> None:
    for name in "yuv":
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


FRAMES = st.builds(
    random_frame,
    st.tuples(st.integers(1, 90), st.integers(1, 90)),
    st.sampled_from(list(FORMATS.values())),
    padding=st.sampled_from([0, 7]),
    depth=st.sampled_from([8, 10]),
    seed=st.integers(0, 1000),
)
MATTES = st.builds(a_matte, st.tuples(st.integers(1, 40), st.integers(1, 40)), st.integers(0, 1000))


@given(FRAMES, MATTES, st.sampled_from(list(BACKGROUNDS)))
def test_the_compiled_form_is_equal_in_every_bit(frame: Planes, matte: np.ndarray, background: str) -> None:
    composer = Composer(BACKGROUNDS[background])
    assert_equal(composer.compose(frame, matte), composer.compose_reference(frame, matte))


@pytest.mark.parametrize("background", list(BACKGROUNDS))
def test_a_1080p_frame_is_equal_in_every_bit(background: str) -> None:
    frame, matte = random_frame((1080, 1920), seed=5), a_matte((144, 256), 1)
    composer = Composer(BACKGROUNDS[background])
    assert_equal(composer.compose(frame, matte), composer.compose_reference(frame, matte))


def test_every_level_of_alpha_frame_and_background_is_the_formula() -> None:
    """All 256³ combinations, as (alpha * frame + (255 - alpha) * background + 127) // 255."""
    levels = np.arange(256)
    frame_levels = np.tile(levels.astype(np.uint8), (256, 1))
    gray = np.full((256, 256), 128, np.uint8)
    frame = Planes(frame_levels, gray, gray, (256, 256), (0, 0), 8, 1, True)
    matte = np.repeat(levels.astype(np.uint8)[:, None], 256, axis=1)
    for behind in range(256):
        out = Composer(Color((behind, behind, behind))).compose(frame, matte)
        expected = (levels[:, None] * levels[None] + (255 - levels[:, None]) * behind + 127) // 255
        np.testing.assert_array_equal(out.y, expected)
        assert (out.u == 128).all()


def test_a_matte_of_nothing_shows_the_background_and_of_all_the_frame() -> None:
    frame = random_frame((54, 96))
    composer = Composer(Color((255, 0, 0)))
    assert_equal(composer.compose(frame, np.full((9, 16), 255, np.uint8)), frame)
    red = to_rgb(composer.compose(frame, np.zeros((9, 16), np.uint8)), ColorRule())
    assert (np.abs(red.astype(int) - (255, 0, 0)) <= 2).all()


@pytest.mark.parametrize(("size", "cells"), [((1080, 1920), (144, 256)), ((100, 33), (9, 40)), ((5, 7), (1, 1))])
def test_the_stretch_is_bilinear(size: tuple[int, int], cells: tuple[int, int]) -> None:
    """Against OpenCV in float32, within what rounding twice and cutting positions explains."""
    matte = a_matte(cells, 1)
    stretched = mixed(mixed(matte, steps(size[1], cells[1]), axis=1), steps(size[0], cells[0]), axis=0)
    expected = cv2.resize(matte.astype(np.float32), (size[1], size[0]), interpolation=cv2.INTER_LINEAR)
    # Half a level for each rounding; a cut position moves by up to 1/256 of the step between two cells, on both axes.
    assert np.abs(stretched - expected).max() <= 3.0
    assert np.abs(stretched - expected).mean() < 0.8


def test_alpha_keeps_or_hardens_the_probability() -> None:
    person = np.array([0.0, 0.11, 0.25, 0.4, 0.5, 0.6, 0.75, 1.0], np.float32)
    np.testing.assert_array_equal(alpha(person), [0, 28, 64, 102, 128, 153, 191, 255])
    np.testing.assert_array_equal(alpha(person, softness=0.5), [0, 0, 0, 77, 128, 179, 255, 255])
    for softness in (0, -1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="softness must be above 0 and at most 1"):
            alpha(person, softness=softness)


LETTERBOX = Definition(operations=[Decode(), Letterbox(size=(256, 256)), Output(layout="NHWC")])


@pytest.mark.parametrize(
    ("definition", "size_hw", "window"),
    [
        (LETTERBOX, (1080, 1920), Window(56, 0, 144, 256)),
        (LETTERBOX, (1920, 1080), Window(0, 56, 256, 144)),
        (LETTERBOX, (256, 255), Window(0, 0, 256, 255)),
        (
            Definition(operations=[Decode(), Resize(mode="exact", size=(256, 256))]),
            (1080, 1920),
            Window(0, 0, 256, 256),
        ),
    ],
)
def test_the_picture_lies_where_the_letterbox_put_it(
    definition: Definition, size_hw: tuple[int, int], window: Window
) -> None:
    assert picture_window(definition, size_hw) == window


@pytest.mark.parametrize(
    ("operations", "message"),
    [
        ([Decode(), Resize(mode="shorter", size=256), CenterCrop(size=(256, 256))], "crops a picture of 1920x1080"),
        ([Decode(), CenterCrop(size=(64, 64)), Resize(mode="shorter", size=256)], "one resize, then padding"),
    ],
)
def test_a_definition_that_cuts_is_refused(operations: list[object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        picture_window(Definition(operations=operations), (1080, 1920))


def test_a_matte_lies_on_what_it_was_made_of() -> None:
    """A bright rectangle goes through the letterbox, becomes a matte and cuts itself out again."""
    gray = np.zeros((540, 960), np.uint8)
    gray[108:432, 240:600] = 255
    box = picture_window(LETTERBOX, gray.shape)
    canvas = cv2.resize(gray, (box.width, box.height), interpolation=cv2.INTER_AREA)
    chroma = np.full((270, 480), 128, np.uint8)
    frame = Planes(gray, chroma, chroma, (540, 960), (1, 1), 8, 1, True)
    out = Composer(Color((255, 255, 255))).compose(frame, canvas)
    # Black beyond the rectangle became white, white stays: only cells on the edge may be between.
    between = np.argwhere(out.y < 250)
    cell = 960 / 256
    edges_y, edges_x = np.array([108, 432]), np.array([240, 600])
    off_y = np.abs(between[:, :1] + 0.5 - edges_y).min(1)
    off_x = np.abs(between[:, 1:] + 0.5 - edges_x).min(1)
    assert (np.minimum(off_y, off_x) <= cell).all()


@pytest.mark.parametrize("matrix", ["bt601", "bt709", "bt2020"])
@pytest.mark.parametrize("range", ["limited", "full"])
def test_colors_come_back_as_they_were_asked_for(matrix: str, range: str) -> None:
    rule = ColorRule(matrix=matrix, range=range)
    for rgb in ((0, 0, 0), (255, 255, 255), (0, 177, 64), (250, 10, 120), (17, 99, 203)):
        frame = Composer(Color(rgb), rule=rule).compose(random_frame((4, 6)), np.zeros((2, 2), np.uint8))
        shown = to_rgb(frame, rule)
        # A step of chroma is up to 1.86 levels of limited range blue or red, and half of it is lost.
        assert np.abs(shown.astype(int) - rgb).max() <= 2, (rgb, shown[0, 0])


def test_a_picture_covers_the_frame_and_is_cut_evenly() -> None:
    stripes = np.zeros((40, 120, 3), np.uint8)
    stripes[:, 40:80], stripes[:, 80:] = (0, 255, 0), (0, 0, 255)
    composer = Composer(Picture(stripes))
    shown = to_rgb(composer.compose(random_frame((80, 120)), np.zeros((2, 2), np.uint8)), ColorRule())
    # Scaled by 2, 60 of 240 columns fall off at each side: the stripes begin at -60, 20 and 100.
    assert (shown[40, 8] < 8).all()
    assert np.abs(shown[40, 60].astype(int) - (0, 255, 0)).max() <= 8
    assert np.abs(shown[40, 112].astype(int) - (0, 0, 255)).max() <= 8


@pytest.mark.parametrize("radius", [12, 28, 60])
def test_a_blur_has_the_stated_standard_deviation(radius: int) -> None:
    """The derivative of a blurred edge is the filter."""
    frame = random_frame((64, 1024))
    frame.y[:] = np.where(np.arange(1024) < 512, 10, 240)
    edge = Composer(Blur(radius)).compose(frame, np.zeros((2, 2), np.uint8)).y[32].astype(float)
    slope = np.diff(edge) / (edge[-1] - edge[0])
    at = np.arange(slope.size)
    mean = (slope * at).sum()
    spread = np.sqrt((slope * (at - mean) ** 2).sum())
    # Levels are whole numbers and the tails below half a level are lost; the linear stretch adds 8²/6 to the variance.
    assert spread == pytest.approx(8 * (radius // 8) + 4, abs=2.5)
    assert mean == pytest.approx(511, abs=1)


def test_a_blur_keeps_an_even_frame() -> None:
    frame = random_frame((61, 83))
    for plane, level in zip((frame.y, frame.u, frame.v), (77, 255, 1), strict=True):
        plane[:] = level
    assert_equal(Composer(Blur(40)).compose(frame, a_matte((5, 8), 1)), frame)


def test_a_background_follows_a_change_of_size_and_of_color() -> None:
    composer, nobody = Composer(Color((200, 30, 60))), np.zeros((2, 2), np.uint8)
    for size_hw, tag in (((40, 60), 1), ((80, 50), 1), ((80, 50), 6)):
        frame = replace(random_frame(size_hw), matrix_tag=tag)
        out = composer.compose(frame, nobody)
        assert out.size_hw == size_hw
        assert np.abs(to_rgb(out, ColorRule()).astype(int) - (200, 30, 60)).max() <= 2


def test_planes_with_padded_rows_are_written_in_place() -> None:
    frame, matte = random_frame((30, 50)), a_matte((4, 6), 1)
    composer = Composer(Color((0, 0, 0)))
    out = random_frame((30, 50), padding=14, seed=9)
    untouched = out.y[:, 50:].copy()
    assert composer.compose(frame, matte, out) is out
    expected = composer.compose(frame, matte)
    np.testing.assert_array_equal(out.y[:, :50], expected.y)
    np.testing.assert_array_equal(out.u[:, :25], expected.u)
    np.testing.assert_array_equal(out.y[:, 50:], untouched)


def test_what_does_not_fit_is_refused() -> None:
    frame, matte = random_frame((30, 50)), a_matte((4, 6), 1)
    composer = Composer(Color((0, 0, 0)))
    with pytest.raises(ValueError, match="out has size"):
        composer.compose(frame, matte, random_frame((32, 50)))
    with pytest.raises(ValueError, match=r"shape \(29, 50\), the frame takes \(30, 50\) or more"):
        composer.compose(replace(frame, y=frame.y[:29]), matte)
    with pytest.raises(ValueError, match=r"a matte is \(height, width\)"):
        composer.compose(frame, matte[:0])
    with pytest.raises(ValueError, match="radius must be 12 pixels or more, got 11"):
        Blur(11)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("flips", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("format", list(FORMATS))
def test_a_turned_frame_is_what_its_picture_turned_is(transpose: bool, flips: tuple[bool, bool], format: str) -> None:
    frame, orientation = random_frame((48, 80), FORMATS[format], padding=3), Orientation(transpose, *flips)
    turned = displayed(frame, orientation)
    np.testing.assert_array_equal(to_rgb(turned, ColorRule(matrix="bt709")),
                                  orientation.turn(to_rgb(frame, ColorRule(matrix="bt709"))))  # fmt: skip
