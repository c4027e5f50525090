"""The drop-in image processors of GLM-4V, PaddleOCR-VL and others: what transformers' own give for the same call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from image_files import encode
from lazily import Lazily
from sample_images import photo

torch, transformers = Lazily("torch"), Lazily("transformers")
own = Lazily("onestream.preprocess.patches.for_transformers")
AREA: dict[str, Any] = {"size": {"shortest_edge": 784, "longest_edge": 40_000}}
FAMILIES: dict[str, dict[str, Any]] = {"Glm4v": AREA, "Glm46V": AREA, "PaddleOCRVL": AREA}
COFFEE, ROCKET = photo("coffee").resize((120, 90)), photo("rocket").resize((40, 120))


def assert_equal(seen: Any, expected: Any) -> None:
    assert type(seen) is type(expected)
    assert list(seen) == list(expected)
    for name, values in expected.items():
        assert type(seen[name]) is type(values)
        assert torch.equal(seen[name], values), name
        assert seen[name].dtype == values.dtype


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
            for images in (COFFEE, [COFFEE, ROCKET], [[COFFEE], [ROCKET]]):
                assert_equal(made(images, return_tensors="pt"), theirs(images, return_tensors="pt"))
            expected = theirs(COFFEE, return_tensors="pt", patch_size=16, image_mean=[0.5, 0.4, 0.3])
            file = encode(COFFEE, "PNG")
            assert_equal(made(file, return_tensors="pt", patch_size=16, image_mean=[0.5, 0.4, 0.3]), expected)
    finally:
        mapping._extra_content.clear()
        mapping._extra_content.update(before)
