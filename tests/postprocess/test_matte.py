"""Mattes and composition: the compiled form against its specification, CUDA kernels, and simple truths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import cv2
import numpy as np
import pytest
from counting_stream import CountingStream
from definitions import in_levels
from gpu_frames import a_frame, a_matte, a_surface, blank
from host_gpu import HostDevice, HostStream
from hypothesis import example, given
from hypothesis import strategies as st

from onestream.postprocess.matte.background import Background, Blur, Color, Picture
from onestream.postprocess.matte.composer import Composer, alpha, picture_window
from onestream.postprocess.matte.composer_gpu import GpuComposer
from onestream.postprocess.matte.stretch import mixed, steps
from onestream.postprocess.planes import displayed
from onestream.preprocess import CenterCrop, Definition, Letterbox, Resize
from onestream.preprocess.geometry import Window
from onestream.preprocess.video.common.color import ColorRule, Planes, to_rgb
from onestream.preprocess.video.common.orientation import Orientation
from onestream.preprocess.video.gpu.surfaces import LAYOUTS

BACKGROUNDS: dict[str, Background] = {
    "color": Color((10, 200, 30)),
    "picture": Picture(np.random.default_rng(3).integers(0, 256, (50, 70, 3), dtype=np.uint8)),
    "blur": Blur(28),
    "least blur": Blur(12),
    "blur wider than the frame": Blur(500),
}


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


SIZES, SEEDS = st.tuples(st.integers(1, 90), st.integers(1, 90)), st.integers(0, 1000)
FRAMES = st.builds(
    random_frame,
    SIZES,
    st.sampled_from(list(FORMATS.values())),
    padding=st.sampled_from([0, 7]),
    depth=st.sampled_from([8, 10]),
    seed=SEEDS,
)
MATTES = st.builds(a_matte, st.tuples(st.integers(1, 40), st.integers(1, 40)), SEEDS)


@given(FRAMES, MATTES, st.sampled_from(list(BACKGROUNDS)))
@example(random_frame((1080, 1920), seed=5), a_matte((144, 256), 1), "picture")
@example(random_frame((1080, 1920), seed=5), a_matte((144, 256), 1), "blur")
def test_the_compiled_form_is_equal_in_every_bit(frame: Planes, matte: np.ndarray, background: str) -> None:
    composer = Composer(BACKGROUNDS[background])
    assert_equal(composer.compose(frame, matte), composer.compose_reference(frame, matte))


def test_every_level_of_alpha_frame_and_background_is_the_formula() -> None:
    """All 256³ combinations, as (alpha * frame + (255 - alpha) * background + 127) // 255."""
    alphas, levels = np.mgrid[:256, :256]
    gray = np.full((256, 256), 128, np.uint8)
    frame = Planes(levels.astype(np.uint8), gray, gray, (256, 256), (0, 0), 8, 1, True)
    for behind in range(256):
        out = Composer(Color((behind, behind, behind))).compose(frame, alphas.astype(np.uint8))
        expected = (alphas * levels + (255 - alphas) * behind + 127) // 255
        np.testing.assert_array_equal(out.y, expected)
        assert (out.u == 128).all()


def test_a_matte_of_all_shows_the_frame() -> None:
    frame = random_frame((54, 96))
    assert_equal(Composer(Color((255, 0, 0))).compose(frame, np.full((9, 16), 255, np.uint8)), frame)


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


LETTERBOX = in_levels(Letterbox(size=(256, 256)))


@pytest.mark.parametrize(
    ("definition", "size_hw", "window"),
    [
        (LETTERBOX, (1080, 1920), Window(56, 0, 144, 256)),
        (LETTERBOX, (1920, 1080), Window(0, 56, 256, 144)),
        (LETTERBOX, (256, 255), Window(0, 0, 256, 255)),
        (in_levels(Resize(mode="exact", size=(256, 256))), (1080, 1920), Window(0, 0, 256, 256)),
    ],
)
def test_where_the_picture_lies(definition: Definition, size_hw: tuple[int, int], window: Window) -> None:
    assert picture_window(definition, size_hw) == window


def test_a_definition_that_cuts_is_refused() -> None:
    for moves, message in (
        ((Resize(mode="shorter", size=256), CenterCrop(size=(256, 256))), "crops a picture of 1920x1080"),
        ((CenterCrop(size=(64, 64)), Resize(mode="shorter", size=256)), "one resize, then padding"),
    ):
        with pytest.raises(ValueError, match=message):
            picture_window(in_levels(*moves), (1080, 1920))


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
    between = np.argwhere(out.y < 250) + 0.5
    off = np.abs(between[:, :, None] - np.array([[108, 432], [240, 600]])).min(axis=(1, 2))
    assert (off <= 960 / 256).all()


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
    shown = to_rgb(Composer(Picture(stripes)).compose(random_frame((80, 120)), np.zeros((2, 2), np.uint8)), ColorRule())
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
    slope, at = np.diff(edge) / (edge[-1] - edge[0]), np.arange(1023)
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


def test_planes_with_padded_rows_are_written_in_place_and_others_refused() -> None:
    frame, matte = random_frame((30, 50)), a_matte((4, 6), 1)
    composer = Composer(Color((0, 0, 0)))
    out = random_frame((30, 50), padding=14, seed=9)
    untouched = out.y[:, 50:].copy()
    assert composer.compose(frame, matte, out) is out
    expected = composer.compose(frame, matte)
    np.testing.assert_array_equal(out.y[:, :50], expected.y)
    np.testing.assert_array_equal(out.u[:, :25], expected.u)
    np.testing.assert_array_equal(out.y[:, 50:], untouched)
    with pytest.raises(ValueError, match="out has size"):
        composer.compose(frame, matte, random_frame((32, 50)))
    with pytest.raises(ValueError, match=r"shape \(29, 50\), the frame takes \(30, 50\) or more"):
        composer.compose(replace(frame, y=frame.y[:29]), matte)
    with pytest.raises(ValueError, match=r"a matte is \(height, width\)"):
        composer.compose(frame, matte[:0])
    with pytest.raises(ValueError, match="radius must be 12 pixels or more, got 11"):
        Blur(11)


@pytest.mark.parametrize("turns", list(product([False, True], repeat=3)))
@pytest.mark.parametrize("format", FORMATS)
def test_a_turned_frame_is_what_its_picture_turned_is(turns: tuple[bool, bool, bool], format: str) -> None:
    frame, orientation = random_frame((48, 80), FORMATS[format], padding=3), Orientation(*turns)
    turned = displayed(frame, orientation)
    rule = ColorRule(matrix="bt709")
    np.testing.assert_array_equal(to_rgb(turned, rule), orientation.turn(to_rgb(frame, rule)))


UPRIGHT = Orientation()


def assert_written(found: Planes, expected: Planes) -> None:
    for name in "yuv":
        one, other = getattr(found, name), getattr(expected, name)
        np.testing.assert_array_equal(one[: other.shape[0], : other.shape[1]], other, err_msg=name)
        assert (one[:, other.shape[1] :] == 123).all(), "what pads the rows is not ours"


def assert_composed(
    composer: GpuComposer, stream: Any, background: Background, frame: Planes, matte: Any, orientation: Orientation
) -> None:
    """One frame by both; the rule is the automatic one."""
    shown = displayed(frame, orientation)
    out = blank(shown, padding=5)
    composer.compose(a_surface(frame, stream), orientation, matte, out)
    assert_written(out, Composer(background).compose_reference(shown, matte))


@given(
    frame_of=st.builds(
        partial,
        st.just(a_frame),
        SIZES,
        st.sampled_from(sorted(LAYOUTS)),
        tag=st.sampled_from([1, 2, 6, 9]),
        full=st.booleans(),
    ),
    matte=st.builds(a_matte, st.tuples(st.integers(4, 43), st.integers(3, 42)), SEEDS),
    background=st.sampled_from(list(BACKGROUNDS)),
    orientation=st.builds(Orientation, st.booleans(), st.booleans(), st.booleans()),
    seed=SEEDS,
)
def test_every_bit_is_that_of_the_cpu(
    frame_of: Callable[..., Planes], matte: Any, background: str, orientation: Orientation, seed: int
) -> None:
    """The matte is a cut of the network's canvas, as of a letterbox."""
    stream: Any = HostDevice().stream()
    behind = BACKGROUNDS[background]
    composer = GpuComposer(behind, stream=stream)
    for number, own in ((seed, matte), (seed + 1, 255 - matte)):
        assert_composed(composer, stream, behind, frame_of(seed=number), own[2:-1, 1:-1], orientation)


@pytest.mark.parametrize("background", list(BACKGROUNDS))
def test_a_change_of_size_matte_or_colours_is_followed(background: str) -> None:
    stream: Any = HostDevice().stream()
    composer = GpuComposer(BACKGROUNDS[background], stream=stream)
    first, wider, cut = ((40, 60), (8, 8), 1, False), ((33, 71), (8, 8), 1, False), ((33, 71), (9, 5), 1, False)
    tagged, full_range = ((33, 71), (9, 5), 6, False), ((33, 71), (9, 5), 6, True)
    for seed, (size_hw, matte_hw, tag, full) in enumerate((first, wider, cut, tagged, full_range, first)):
        frame = a_frame(size_hw, tag=tag, full=full, seed=seed)
        assert_composed(composer, stream, BACKGROUNDS[background], frame, a_matte(matte_hw, seed), UPRIGHT)


def test_the_rule_chooses_the_colours_of_the_background() -> None:
    stream: Any = HostDevice().stream()
    frame, rule = a_frame((20, 30), tag=1, seed=1), ColorRule(matrix="bt601", range="full")
    background, out = Color((200, 30, 60)), blank(frame)
    matte = np.zeros((4, 4), np.uint8)
    GpuComposer(background, rule=rule, stream=stream).compose(a_surface(frame, stream), UPRIGHT, matte, out)
    assert_written(out, Composer(background, rule=rule).compose_reference(frame, matte))
    assert not np.array_equal(out.y, Composer(background).compose_reference(frame, matte).y)


@pytest.mark.parametrize(("background", "launches"), [("color", 2), ("picture", 2), ("blur", 10)])
def test_a_frame_is_copied_back_once_and_allocates_nothing(background: str, launches: int) -> None:
    stream: Any = CountingStream()
    surface = a_surface(a_frame((48, 64), seed=1), stream.device.stream())
    composer = GpuComposer(BACKGROUNDS[background], stream=stream)
    out, matte = blank(a_frame((48, 64), seed=1)), a_matte((8, 8), 1)
    composer.compose(surface, UPRIGHT, matte, out)
    stream.forget()
    waits = stream.device.syncs
    composer.compose(surface, UPRIGHT, matte, out)
    # The matte goes up, the frame comes down.
    assert (len(stream.uploaded), len(stream.downloaded), stream.allocated) == (1, 1, [])
    assert len(stream.launches) == launches
    assert stream.device.syncs == waits + 1


def test_what_does_not_fit_is_refused() -> None:
    stream: Any = HostDevice().stream()
    composer, frame = GpuComposer(Color((1, 2, 3)), stream=stream), a_frame((20, 30), seed=1)
    surface, matte, turned = a_surface(frame, stream), np.zeros((4, 4), np.uint8), Orientation(transpose=True)
    wider, tagged = a_frame((20, 31), seed=1), a_frame((20, 30), tag=8, seed=1)
    for orientation, own, out, said in (
        (UPRIGHT, matte, wider, r"out has size, chroma shifts and depth \(\(20, 31\), \(1, 1\), 8\)"),
        (turned, matte, frame, r"\(\(20, 30\), \(1, 1\), 8\), the frame \(\(30, 20\), \(1, 1\), 8\)"),
        (UPRIGHT, matte[:0], frame, r"got shape \(0, 4\)"),
        (UPRIGHT, matte, tagged, "is tagged with matrix coefficients 8"),
    ):
        with pytest.raises(ValueError, match=said):
            composer.compose(surface, orientation, own, blank(out))


def test_an_error_lets_go_of_nothing_that_is_still_read() -> None:
    """A launch fails while others are queued: they are waited for before the caller may let the frame go."""
    device = HostDevice()

    class Failing(HostStream):
        fails = False

        def launch(self, kernel: Any, grid: Any, block: Any, arguments: Any) -> None:
            if self.fails and arguments[0] == composer._made[1].planes.frame.pointer:  # type: ignore[index]
                raise RuntimeError("CUDA_ERROR")
            super().launch(kernel, grid, block, arguments)

    stream: Any = Failing(device)
    frame, matte = a_frame((20, 30), seed=1), np.zeros((4, 4), np.uint8)
    composer, surface = GpuComposer(Color((1, 2, 3)), stream=stream), a_surface(frame, stream)
    composer.compose(surface, UPRIGHT, matte, blank(frame))
    waits, stream.fails = device.syncs, True
    with pytest.raises(RuntimeError, match="CUDA_ERROR"):
        composer.compose(surface, UPRIGHT, matte, blank(frame))
    assert device.syncs == waits + 1
