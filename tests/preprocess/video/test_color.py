"""YUV to RGB: exact values, the compiled loop against NumPy, and swscale within the table."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from stream_files import assert_near

from onestream.preprocess.geometry import Window
from onestream.preprocess.video.common.color import ColorRule, Colors, Planes, planes_of, to_rgb, to_rgb_reference

PHOTO = np.asarray(Image.open(Path(__file__).parents[2] / "assets" / "chelsea.jpg").convert("RGB"))[:288, :352]
NOISE = np.random.default_rng(3).integers(0, 256, (288, 352, 3), np.uint8)
EXPLICIT = [ColorRule(matrix=matrix, range=range_) for matrix in ("bt601", "bt709") for range_ in ("limited", "full")]
MATRICES = ("bt601", "bt709", "bt2020")
_SWSCALE = {"bt601": 5, "bt709": 1, "limited": 1, "full": 2}


def flat(y: int, u: int, v: int, *, depth: int = 8) -> Planes:
    dtype = np.uint8 if depth == 8 else np.uint16
    y_plane, u_plane, v_plane = (np.full((1, 1), level, dtype) for level in (y, u, v))
    return Planes(y_plane, u_plane, v_plane, (1, 1), (0, 0), depth, 2, False)


@given(
    shifts=st.sampled_from([(0, 0), (0, 1), (1, 1)]),
    depth=st.sampled_from([8, 10]),
    height=st.integers(1, 9),
    width=st.integers(1, 40),
    seed=st.integers(0, 99),
    rule=st.builds(ColorRule, matrix=st.sampled_from(MATRICES), range=st.sampled_from(["limited", "full"])),
    data=st.data(),
)
def test_the_compiled_loop_equals_numpy_on_any_window(
    shifts: tuple[int, int], depth: int, height: int, width: int, seed: int, rule: ColorRule, data: st.DataObject
) -> None:
    random = np.random.default_rng(seed)
    chroma = (-(-height // (1 << shifts[0])), -(-width // (1 << shifts[1])))
    dtype = np.uint8 if depth == 8 else np.uint16
    y, u, v = (random.integers(0, 1 << depth, size, dtype) for size in ((height, width + 3), chroma, chroma))
    planes = Planes(y, u, v, (height, width), shifts, depth, 2, False)
    whole = to_rgb_reference(planes, rule)
    assert np.array_equal(to_rgb(planes, rule), whole)
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    window = Window(top, left, data.draw(st.integers(1, height - top)), data.draw(st.integers(1, width - left)))
    cut = whole[top : top + window.height, left : left + window.width]
    assert np.array_equal(to_rgb(planes, rule, window), cut)
    assert np.array_equal(to_rgb_reference(planes, rule, window), cut)


LEVELS = st.integers(0, 255)


@given(LEVELS, LEVELS, LEVELS, st.sampled_from([8, 10]), st.sampled_from(MATRICES), st.booleans())
def test_levels_are_the_standards_sums_rounded(y: int, u: int, v: int, depth: int, matrix: str, full: bool) -> None:
    """ITU-R BT.601, BT.709 and BT.2020 solved for R, G and B, in float64."""
    kr, kb = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722), "bt2020": (0.2627, 0.0593)}[matrix]
    step = 1 << (depth - 8)
    rule = ColorRule(matrix=matrix, range="full" if full else "limited")  # type: ignore[arg-type]
    found = to_rgb_reference(flat(y * step, u * step, v * step, depth=depth), rule)[0, 0]
    highest = (1 << depth) - 1
    luma = y * step / highest if full else (y - 16) / 219
    blue, red = ((c - 128) * step / highest if full else (c - 128) / 224 for c in (u, v))
    r, b = luma + 2 * (1 - kr) * red, luma + 2 * (1 - kb) * blue
    g = (luma - kr * r - kb * b) / (1 - kr - kb)
    exact = np.clip(np.array([r, g, b]) * 255, 0, 255)
    # Factors of 16 fractional bits, times samples of at most 8 bits, are 0.01 of a level off.
    assert (np.abs(found - exact) <= 0.51).all()


@pytest.mark.parametrize(
    ("tag", "full", "expected"),
    [
        (2, None, ("bt601", "limited", "assumed", "assumed")),
        (2, True, ("bt601", "full", "assumed", "file")),
        (1, None, ("bt709", "limited", "file", "assumed")),
        (5, False, ("bt601", "limited", "file", "file")),
        (6, True, ("bt601", "full", "file", "file")),
        (9, False, ("bt2020", "limited", "file", "file")),
    ],
)
def test_tags_choose_and_their_absence_has_a_rule(tag: int, full: bool | None, expected: tuple[str, ...]) -> None:
    assert ColorRule().resolve(matrix_tag=tag, full_range=full) == Colors(*expected)  # type: ignore[arg-type]
    chosen = ColorRule(matrix="bt2020", range="limited").resolve(matrix_tag=tag, full_range=full)
    assert chosen == Colors("bt2020", "limited", "chosen", "chosen")


def test_what_cannot_be_converted_is_named() -> None:
    with pytest.raises(ValueError, match="matrix coefficients 8"):
        ColorRule().resolve(matrix_tag=8, full_range=False)
    with pytest.raises(ValueError, match="matrix must be one of auto, bt601, bt709, bt2020; got 'bt470'"):
        ColorRule(matrix="bt470")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="pixel format yuv410p; supported are yuv420p"):
        planes_of(av.VideoFrame(16, 16, "yuv410p"))


# The yuvj formats are full range by their name, and swscale takes their word.
@pytest.mark.parametrize(
    ("name", "rule"),
    [(name, rule) for name in ("yuv420p", "yuv422p", "yuv444p") for rule in EXPLICIT]
    + [(name, rule) for name in ("yuvj420p", "yuvj444p") for rule in EXPLICIT if rule.range == "full"],
)
def test_swscale_is_within_the_table(name: str, rule: ColorRule) -> None:
    matrix, range_ = _SWSCALE[rule.matrix], _SWSCALE[rule.range]
    for pixels in (PHOTO, NOISE):
        frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format=name)
        theirs = frame.reformat(format="rgb24", src_colorspace=matrix, src_color_range=range_).to_ndarray()
        assert_near(to_rgb(planes_of(frame), rule), theirs, "swscale-444" if "444" in name else "swscale-subsampled")


def test_frames_of_ten_bits_are_read_and_swscales_within_the_table() -> None:
    whole = av.VideoFrame.from_ndarray(PHOTO, format="rgb24")
    for name in ("yuv420p10le", "yuv422p10le"):
        frame = whole.reformat(format=name)
        assert_near(to_rgb(planes_of(frame), ColorRule()), frame.to_ndarray(format="rgb24"), "swscale-10-bit")
    rgb = to_rgb(planes_of(whole.reformat(format="yuv444p10le")), ColorRule(matrix="bt601", range="limited"))
    # There and back by way of 10 bits, each rounded.
    assert np.abs(rgb.astype(int) - PHOTO).max() <= 1


def test_ten_bits_are_finer_than_eight() -> None:
    """Their RGB is nearer to the true one, so the depth is used and not cut off first."""
    ramp = np.arange(64, 941, dtype=np.uint16)[None, :]
    gray = np.full_like(ramp, 512)
    found = to_rgb(Planes(ramp, gray, gray, ramp.shape, (0, 0), 10, 2, False), ColorRule())[0, :, 1]
    exact = (ramp[0] - 64) / 876 * 255
    assert np.abs(found - exact).max() <= 0.51
