"""Keras' modes against the formulas of its ``imagenet_utils``; Keras itself is not needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from agreement import assert_equal
from PIL import Image

from onestream.preprocess import CannotImport
from onestream.preprocess.interop import from_keras, import_source

Values = npt.NDArray[np.float32]


def caffe(x: Values) -> Values:
    return np.asarray(x[..., ::-1] - np.float32([103.939, 116.779, 123.68]), np.float32)


def tf(x: Values) -> Values:
    return x / np.float32(127.5) - np.float32(1)


def torch(x: Values) -> Values:
    scaled = x / np.float32(255) - np.float32([0.485, 0.456, 0.406])
    return np.asarray(scaled / np.float32([0.229, 0.224, 0.225]), np.float32)


@pytest.mark.parametrize("mode", [caffe, tf, torch], ids=lambda mode: mode.__name__)
@pytest.mark.parametrize("size", ["", ":120", ":60x90"])
def test_modes(mode: Callable[[Values], Values], size: str) -> None:
    def source(image: Image.Image) -> Any:
        if size:
            height, _, width = size[1:].partition("x")
            image = image.resize((int(width or height), int(height)), Image.Resampling.NEAREST)
        return mode(np.asarray(image, np.float32))

    assert_equal(from_keras(f"{mode.__name__}{size}"), source)


def test_the_command_says_what_a_size_is_resized_by() -> None:
    assert "load_img" in import_source("keras:tf:224").notes[0]
    assert "size depends on the image" in import_source("keras:tf").notes[0].replace("The size", "size")


@pytest.mark.parametrize("mode", ["mxnet", "caffe:", "caffe:0x", "caffe:224x224x3"])
def test_others_are_refused_with_the_modes(mode: str) -> None:
    with pytest.raises(CannotImport, match="keras:caffe, keras:tf or keras:torch"):
        import_source(f"keras:{mode}")
    with pytest.raises(CannotImport, match="greater than or equal to 1"):
        from_keras("caffe:0")
