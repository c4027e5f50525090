"""Sources whose steps are written out here: ultralytics' ``LetterBox``, Keras' modes, open_clip's transform."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from agreement import assert_equal, differences, noise
from hypothesis import given
from hypothesis import strategies as st
from image_files import encode
from lazily import Lazily
from PIL import Image

from onestream.preprocess import CannotImport, compile
from onestream.preprocess.interop import from_keras, from_letterbox, from_open_clip, import_source


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
        ((384, 640), {}),
        ((96, 96), {"padding_value": 0}),
        ((320, 320), {"center": False}),
        ((320, 320), {"scale_fill": True}),
    ],
)
def test_letterboxes_of_photos(size: tuple[int, int], options: dict[str, Any]) -> None:
    """OpenCV's weights have 11 binary digits: a level in up to an eighth of the values."""
    for backend in ("reference", "dali"):
        for comparison in differences(from_letterbox(size, **options), ultralytics(size, **options), backend=backend):
            assert comparison.within, (backend, comparison)


SIDES = st.integers(1, 300)


@given(size_hw=st.tuples(SIDES, SIDES), size=st.tuples(st.integers(8, 120), st.integers(8, 120)), center=st.booleans())
def test_any_letterbox(size_hw: tuple[int, int], size: tuple[int, int], center: bool) -> None:
    """Noise differs everywhere where a row or column is off by one, and the border is not noise."""
    image = noise(*size_hw)
    (seen,) = compile(from_letterbox(size, center=center)).run([encode(image, "PNG")])
    expected = ultralytics(size, center=center)(image)
    assert seen.shape == expected.shape
    # One level of OpenCV's weights.
    assert np.abs(seen - expected).max() < 1.01 / 255


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
def test_modes_of_keras(mode: Callable[[Values], Values], size: str) -> None:
    def source(image: Image.Image) -> Any:
        if size:
            height, _, width = size[1:].partition("x")
            image = image.resize((int(width or height), int(height)), Image.Resampling.NEAREST)
        return mode(np.asarray(image, np.float32))

    assert_equal(from_keras(f"{mode.__name__}{size}"), source)
    note = "by load_img" if size else "size depends on the image"
    assert note in import_source(f"keras:{mode.__name__}{size}").notes[0]


v1, timm_transforms = Lazily("torchvision.transforms"), Lazily("timm.data.transforms")
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def built(resize_mode: str, size: Any, fill: Any, interpolation: str) -> Any:
    """``image_transform(is_train=False)``; open_clip copied timm's two steps."""
    filter = v1.InterpolationMode(interpolation)
    if resize_mode == "longest":
        steps = [timm_transforms.ResizeKeepRatio(size, interpolation=interpolation, longest=1),
                 timm_transforms.CenterCropOrPad(size, fill=fill)]  # fmt: skip
    elif resize_mode == "squash":
        steps = [v1.Resize(size if isinstance(size, tuple) else (size, size), interpolation=filter)]
    else:
        steps = [v1.Resize(size, interpolation=filter), v1.CenterCrop((size, size))]
    return v1.Compose([*steps, v1.ToTensor(), v1.Normalize(MEAN, STD)])


@pytest.mark.parametrize(
    ("resize_mode", "size", "fill", "interpolation"),
    [
        ("shortest", 224, 0, "bicubic"),
        ("squash", 90, 0, "bilinear"),
        ("squash", (60, 90), 0, "bicubic"),
        ("longest", 128, 0, "bicubic"),
        ("longest", (60, 90), 114, "bilinear"),
    ],
)
def test_resize_modes_of_open_clip(resize_mode: str, size: Any, fill: Any, interpolation: str) -> None:
    config = {"resize_mode": resize_mode, "size": size, "fill_color": fill, "interpolation": interpolation}
    assert_equal(from_open_clip({"preprocess_cfg": config}), built(resize_mode, size, fill, interpolation))


def test_the_file_of_a_model_of_open_clip(tmp_path: Path) -> None:
    """As it lies on the hub, where the size is the network's."""
    config = {"model_cfg": {"vision_cfg": {"image_size": 70}}, "preprocess_cfg": {"mean": MEAN, "std": STD}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    imported = import_source(str(tmp_path))
    assert imported.definition == from_open_clip(config)
    assert "open_clip" in imported.origin
    assert_equal(imported.definition, built("shortest", 70, 0, "bicubic"))


@pytest.mark.parametrize(
    ("read", "source", "named"),
    [
        (from_letterbox, 0, "letterbox size is 0"),
        (from_letterbox, (640, 640, 3), r"letterbox size is \(640, 640, 3\)"),
        (from_letterbox, 20000, "16384"),
        (partial(from_letterbox, padding_value=256), 640, "Pad value.*255, got 256"),
        (import_source, "keras:mxnet", "keras:caffe, keras:tf or keras:torch"),
        (import_source, "keras:caffe:0x", "keras:caffe, keras:tf or keras:torch"),
        (import_source, "keras:caffe:224x224x3", "keras:caffe, keras:tf or keras:torch"),
        (from_keras, "caffe:0", "greater than or equal to 1"),
        (from_open_clip, {"preprocess_cfg": 3}, "preprocess_cfg is 3"),
        (from_open_clip, {"resize_mode": "crop"}, "'crop'; exact are 'shortest', 'longest' and 'squash'"),
        (from_open_clip, {"size": (60, 90)}, r"\[60, 90\] is no square.*'squash'"),
        (from_open_clip, {"interpolation": "lanczos"}, "'lanczos'.*bilinear, bicubic"),
        (from_open_clip, {"mode": "L"}, "'L'.*'RGB' only"),
        (from_open_clip, {"size": "big"}, "size is 'big'"),
        (from_open_clip, {"resize_mode": "longest", "fill_color": 300}, "Pad value"),
    ],
)
def test_what_makes_no_sense_is_refused(read: Callable[[Any], Any], source: Any, named: str) -> None:
    with pytest.raises(CannotImport, match=named):
        read(source)
