"""The letterbox against ultralytics' ``LetterBox``, which is written out here: OpenCV resizes and adds the border."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from agreement import assert_within, noise
from hypothesis import given
from hypothesis import strategies as st
from image_files import encode
from PIL import Image

from onestream.preprocess import CannotImport, compile
from onestream.preprocess.interop import from_letterbox


def ultralytics(
    size: tuple[int, int], *, padding_value: int = 114, center: bool = True, scale_fill: bool = False
) -> Callable[[Image.Image], Any]:
    """``LetterBox(new_shape=size)`` with ``auto=False, scaleup=True``, then RGB of 0 to 1 in planes."""

    import cv2

    def letterbox(image: Image.Image) -> Any:
        pixels = np.asarray(image)
        height, width = pixels.shape[:2]
        ratio = min(size[0] / height, size[1] / width)
        inside = max(round(width * ratio), 1), max(round(height * ratio), 1)
        more_columns, more_rows = size[1] - inside[0], size[0] - inside[1]
        if scale_fill:
            inside, more_columns, more_rows = (size[1], size[0]), 0, 0
        if center:
            more_columns, more_rows = more_columns / 2, more_rows / 2
        if (width, height) != inside:
            pixels = cv2.resize(pixels, inside, interpolation=cv2.INTER_LINEAR)
        top, bottom = round(more_rows - 0.1) if center else 0, round(more_rows + 0.1)
        left, right = round(more_columns - 0.1) if center else 0, round(more_columns + 0.1)
        fill = (padding_value,) * 3
        pixels = cv2.copyMakeBorder(pixels, top, bottom, left, right, cv2.BORDER_CONSTANT, value=fill)
        return pixels.transpose(2, 0, 1).astype(np.float32) / 255

    return letterbox


@pytest.mark.parametrize(
    ("size", "options"),
    [
        ((416, 416), {}),
        ((384, 640), {}),
        ((96, 96), {}),
        ((320, 320), {"padding_value": 0}),
        ((320, 320), {"center": False}),
        ((320, 320), {"scale_fill": True}),
    ],
)
def test_photos(size: tuple[int, int], options: dict[str, Any]) -> None:
    """OpenCV's weights have 11 binary digits: a level in up to an eighth of the values."""
    assert_within(from_letterbox(size, **options), ultralytics(size, **options))


SIDES = st.integers(1, 300)


@given(size_hw=st.tuples(SIDES, SIDES), size=st.tuples(st.integers(8, 120), st.integers(8, 120)), center=st.booleans())
def test_any_size(size_hw: tuple[int, int], size: tuple[int, int], center: bool) -> None:
    """Noise differs everywhere where a row or column is off by one, and the border is not noise."""
    image = noise(*size_hw)
    (seen,) = compile(from_letterbox(size, center=center)).run([encode(image, "PNG")])
    expected = ultralytics(size, center=center)(image)
    assert seen.shape == expected.shape
    # One level of OpenCV's weights.
    assert np.abs(seen - expected).max() < 1.01 / 255


@pytest.mark.parametrize(
    ("size", "options", "named"),
    [
        (0, {}, "letterbox size is 0"),
        ((640, 640, 3), {}, r"letterbox size is \(640, 640, 3\)"),
        (20000, {}, "16384"),
        (640, {"padding_value": 256}, "Pad value.*255, got 256"),
    ],
)
def test_what_makes_no_sense_is_refused(size: Any, options: dict[str, Any], named: str) -> None:
    with pytest.raises(CannotImport, match=named):
        from_letterbox(size, **options)
