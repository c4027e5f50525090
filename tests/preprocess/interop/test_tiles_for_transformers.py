"""The drop-in image processors that cut tiles: what transformers' own give for the same call, in every bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_files import encode
from lazily import Lazily
from sample_images import photo

from onestream.preprocess import CannotImport

torch, transformers = Lazily("torch"), Lazily("transformers")
own = Lazily("onestream.preprocess.patches.for_transformers")

TILE = 14
SQUARE = {"height": TILE, "width": TILE}
POINTS = [[TILE, 2 * TILE], [2 * TILE, TILE], [2 * TILE, 2 * TILE]]
MODELS: dict[str, dict[str, Any]] = {
    "LlavaNext": {"size": {"shortest_edge": TILE}, "crop_size": SQUARE, "image_grid_pinpoints": POINTS},
    "LlavaOnevision": {"size": SQUARE, "image_grid_pinpoints": [[TILE, TILE], *POINTS]},
    "GotOcr2": {"size": SQUARE, "crop_to_patches": True},
    "Idefics3": {"size": {"longest_edge": 4 * TILE}, "max_image_size": {"longest_edge": TILE}},
    "SmolVLM": {"size": {"longest_edge": 3 * TILE}, "max_image_size": {"longest_edge": TILE}},
}
WIDE, NARROW, SMALL = (photo("coffee").resize(size) for size in ((90, 40), (20, 70), (12, 12)))
NAMES = [f"{model}ImageProcessor{backend}" for model in MODELS for backend in ("", "Pil")]


def both(name: str, **options: Any) -> tuple[Any, Any]:
    options = {**MODELS[name.partition("Image")[0]], **options}
    return getattr(own, name)(**options), getattr(transformers, name)(**options)


def assert_equal(seen: Any, expected: Any) -> None:
    assert type(seen) is type(expected)
    if isinstance(expected, list | tuple):
        assert len(seen) == len(expected)
        for one, other in zip(seen, expected, strict=True):
            assert_equal(one, other)
    elif isinstance(expected, int):
        assert seen == expected
    else:
        assert (seen.dtype, tuple(seen.shape)) == (expected.dtype, tuple(expected.shape))
        np.testing.assert_array_equal(np.asarray(seen), np.asarray(expected))


def assert_same_call(made: Any, theirs: Any, images: Any, **options: Any) -> None:
    seen, expected = made(images, **options), theirs(images, **options)
    assert type(seen) is type(expected)
    assert list(seen) == list(expected)
    for key in expected:
        assert_equal(seen[key], expected[key])


@pytest.mark.parametrize("name", NAMES)
def test_calls(name: str) -> None:
    made, theirs = both(name)
    for images in (WIDE, [WIDE, NARROW, SMALL], [[SMALL], [NARROW]], np.asarray(WIDE)):
        for tensors in (None, "pt"):
            assert_same_call(made, theirs, images, return_tensors=tensors)
    assert_same_call(made, theirs, [WIDE, WIDE], resample=2, image_mean=[0.5, 0.4, 0.3], return_tensors="pt")
    files = [encode(WIDE, "PNG"), encode(NARROW, "PNG")]
    for key, values in theirs([WIDE, NARROW], return_tensors="pt").items():
        assert_equal(made(files, return_tensors="pt")[key], values)
    assert list(made(files[0], return_tensors="pt")["pixel_values"].shape[-3:]) == [3, TILE, TILE]


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(("Idefics3", "GotOcr2"))])
def test_other_arguments(name: str) -> None:
    made, theirs = both(name)
    if name.startswith("GotOcr2"):
        for options in ({"crop_to_patches": False}, {"min_patches": 2, "max_patches": 5}, {"max_patches": 1}):
            assert_same_call(made, theirs, [WIDE, SMALL], return_tensors="pt", **options)
        return
    for options in ({"return_row_col_info": True}, {"do_image_splitting": False}, {"do_resize": False}):
        assert_same_call(made, theirs, [[WIDE, SMALL], [NARROW]], return_tensors="pt", **options)
    files = made([[encode(WIDE, "PNG")], [encode(NARROW, "PNG")]], return_tensors="pt")
    assert_equal(files["pixel_values"], theirs([[WIDE], [NARROW]], return_tensors="pt")["pixel_values"])


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="got 2 pictures of one conversation, which LLaVA-OneVision leaves whole"):
        both("LlavaOnevisionImageProcessor")[0]([[WIDE, SMALL], [WIDE]])
    for name in ("LlavaNextImageProcessor", "SmolVLMImageProcessorPil"):
        with pytest.raises(CannotImport, match="do_pad must be true"):
            both(name)[0](WIDE, do_pad=False)


def test_auto_classes_find_them(tmp_path: Path) -> None:
    mapping = transformers.models.auto.image_processing_auto.IMAGE_PROCESSOR_MAPPING
    before = dict(mapping._extra_content)
    try:
        own.register()
        for name in NAMES:
            made, theirs = both(name)
            assert made.to_dict() == theirs.to_dict()
            made.save_pretrained(tmp_path)
            backend = "pil" if name.endswith("Pil") else "torchvision"
            found = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend=backend)
            assert type(found) is getattr(own, name)
    finally:
        mapping._extra_content.clear()
        mapping._extra_content.update(before)
