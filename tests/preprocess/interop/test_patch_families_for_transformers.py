"""The drop-in image processors of GLM-4V, PaddleOCR-VL and others: what transformers' own give for the same call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_files import encode
from lazily import Lazily
from sample_images import photo

torch, transformers = Lazily("torch"), Lazily("transformers")
own = Lazily("onestream.preprocess.patches.for_transformers")
AREA: dict[str, Any] = {"size": {"shortest_edge": 784, "longest_edge": 40_000}}
FAMILIES: dict[str, dict[str, Any]] = {
    "Glm4v": AREA, "Glm46V": AREA, "PaddleOCRVL": AREA, "Pixtral": {"size": {"longest_edge": 112}},
    "Siglip2": {"max_num_patches": 20},
}  # fmt: skip
COFFEE, ROCKET = photo("coffee").resize((120, 90)), photo("rocket").resize((40, 120))


def assert_equal(seen: Any, expected: Any) -> None:
    assert type(seen) is type(expected)
    assert list(seen) == list(expected)
    for name, values in expected.items():
        assert_same(seen[name], values)


def assert_same(seen: Any, expected: Any) -> None:
    assert type(seen) is type(expected) or (isinstance(seen, tuple) and isinstance(expected, tuple))
    if isinstance(expected, list):
        assert len(seen) == len(expected)
        for one, other in zip(seen, expected, strict=True):
            assert_same(one, other)
        return
    np.testing.assert_array_equal(np.asarray(seen), np.asarray(expected))
    assert isinstance(expected, tuple) or seen.dtype == expected.dtype


@pytest.mark.parametrize("family", FAMILIES)
def test_pictures_arguments_and_auto_classes(family: str, tmp_path: Path) -> None:
    mapping = transformers.models.auto.image_processing_auto.IMAGE_PROCESSOR_MAPPING
    before = dict(mapping._extra_content)
    try:
        own.register()
        for backend, suffix in (("torchvision", ""), ("pil", "Pil")):
            name = f"{family}ImageProcessor{suffix}"
            theirs = getattr(transformers, name)(**FAMILIES[family])
            theirs.save_pretrained(tmp_path)
            made = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend=backend)
            assert type(made) is getattr(own, name)
            assert made.to_dict() == theirs.to_dict()
            assert_equal(made([ROCKET, COFFEE]), theirs([ROCKET, COFFEE]))
            for images in (COFFEE, [COFFEE, ROCKET], [[COFFEE], [ROCKET]]):
                assert_equal(made(images, return_tensors="pt"), theirs(images, return_tensors="pt"))
            expected = theirs(COFFEE, return_tensors="pt", patch_size=8, image_mean=[0.5, 0.4, 0.3])
            file = encode(COFFEE, "PNG")
            assert_equal(made(file, return_tensors="pt", patch_size=8, image_mean=[0.5, 0.4, 0.3]), expected)
    finally:
        mapping._extra_content.clear()
        mapping._extra_content.update(before)
