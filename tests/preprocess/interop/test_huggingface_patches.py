"""Image processors of vision-language models: the definitions of their configs give their patches in every bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import noise
from hypothesis import given, settings
from hypothesis import strategies as st
from image_files import encode
from lazily import Lazily
from PIL import Image
from sample_images import photo
from typer.testing import CliRunner

from onestream.cli.main import app
from onestream.preprocess import CannotImport, Definition, Patches, Resize
from onestream.preprocess.interop import from_huggingface, import_source, to_huggingface
from onestream.preprocess.patches import Processor

torch, transformers = Lazily("torch"), Lazily("transformers")

QWEN2 = {"min_pixels": 3136, "max_pixels": 12845056}
QWEN3: dict[str, Any] = {
    "size": {"shortest_edge": 65536, "longest_edge": 16777216}, "patch_size": 16, "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "Qwen2-VL": QWEN2,
    "Qwen2-VL, few pixels": {"min_pixels": 50176, "max_pixels": 200704},
    "other patches": {**QWEN3, "size": {"shortest_edge": 1, "longest_edge": 90000}, "patch_size": 7, "merge_size": 3,
                      "temporal_patch_size": 1, "resample": 2, "rescale_factor": 1 / 127.5},
}  # fmt: skip
BACKENDS = st.sampled_from(["Pil", ""])
SIZES = st.tuples(st.integers(1, 90), st.integers(1, 90)) | st.tuples(st.integers(1, 3), st.integers(1, 900))
"""(height, width), not all of which have an aspect ratio that is accepted."""
PATCHES = st.integers(2, 14)
"""PyTorch's own resize to a picture of one pixel fails."""


def made_by(family: str, backend: str, **options: Any) -> Any:
    return getattr(transformers, f"{family}ImageProcessor{backend}")(**options)


def assert_equal(made: Any, images: list[Image.Image], reason: str = "none is refused") -> Definition:
    """For these pictures together, given as files and as arrays; the definition.

    Those that are refused are so by both, and by transformers' for this reason.
    """
    definition, sizes = from_huggingface(made), [(image.height, image.width) for image in images]
    with Processor(definition) as own:
        grids, errors = own.grids(sizes), own([np.asarray(image) for image in images]).errors
    for index, error in errors.items():
        assert str(error) == str(grids[index])
        with pytest.raises(ValueError, match=reason) as theirs:
            made(images=[images[index]])
        assert error.reason == str(theirs.value) or "nothing is left" in error.reason
    images = [image for index, image in enumerate(images) if index not in errors]
    if not images:
        return definition
    theirs = made(images=images, return_tensors="pt")
    with Processor(definition, dtype="float32") as own:
        for pictures in ([encode(image, "PNG") for image in images], [np.asarray(image) for image in images]):
            seen = own(pictures).features()
            assert list(seen) == list(theirs)
            for name, values in seen.items():
                tensor = torch.from_numpy(values)
                assert (tensor.dtype, tensor.shape) == (theirs[name].dtype, theirs[name].shape)
                assert torch.equal(tensor, theirs[name]), name
    return definition


def of_noise(sizes: list[tuple[int, int]], *, upright: bool = False) -> list[Image.Image]:
    return [noise(*(size_hw[::-1] if upright else size_hw)) for size_hw in sizes]


@pytest.mark.parametrize("backend", ["Pil", ""])
@pytest.mark.parametrize("name", MODELS)
def test_photos(name: str, backend: str) -> None:
    photos = [photo("coffee"), photo("astronaut").resize((1920, 1080)), photo("chelsea").resize((1700, 9))]
    assert_equal(made_by("Qwen2VL", backend, **MODELS[name]), photos)


AREAS = st.builds(
    lambda family, backend, least, more, **options: made_by(
        family, backend, size={"shortest_edge": least, "longest_edge": least + more}, **options
    ),
    st.sampled_from(["Qwen2VL", "Glm4v", "Glm46V", "PaddleOCRVL"]),
    BACKENDS,
    st.integers(1, 9_000),
    st.integers(0, 30_000),
    patch_size=PATCHES,
    temporal_patch_size=st.integers(1, 3),
    merge_size=st.integers(1, 3),
)


@settings(max_examples=60)
@given(made=AREAS, sizes=st.lists(SIZES, min_size=1, max_size=2), upright=st.booleans())
def test_areas(made: Any, sizes: list[tuple[int, int]], upright: bool) -> None:
    images = of_noise(sizes, upright=upright)
    sizes = [(image.height, image.width) for image in images]
    definition = assert_equal(made, images, "absolute aspect ratio must be smaller than 200")
    with Processor(definition) as own:
        for size_hw, grid, count in zip(sizes, own.grids(sizes), own.token_counts(sizes), strict=True):
            if isinstance(grid, tuple):
                assert np.prod(grid) == count * made.merge_size**2 == made.get_number_of_image_patches(*size_hw)


BOXES = st.tuples(st.integers(1, 6), st.integers(1, 6)) | st.integers(1, 6)


@settings(max_examples=60)
@given(BACKENDS, PATCHES, BOXES, st.lists(st.tuples(st.integers(1, 90), st.integers(1, 90)), min_size=1, max_size=3))
def test_pixtral(backend: str, patch: int, box: tuple[int, int] | int, sizes: list[tuple[int, int]]) -> None:
    sides = {"longest_edge": box} if isinstance(box, int) else {"height": box[0], "width": box[1]}
    size = {name: side * patch for name, side in sides.items()}
    made = made_by("Pixtral", backend, size=size, patch_size={"height": patch, "width": patch})
    assert_equal(made, of_noise(sizes), "Size must contain")


@settings(max_examples=60)
@given(BACKENDS, PATCHES, st.integers(1, 40), st.lists(SIZES, min_size=1, max_size=3), st.booleans())
def test_siglip2(backend: str, patch: int, most: int, sizes: list[tuple[int, int]], upright: bool) -> None:
    made = made_by("Siglip2", backend, patch_size=patch, max_num_patches=most)
    assert_equal(made, of_noise(sizes, upright=upright))


def test_configs_of_qwen_as_the_hub_has_them(tmp_path: Path) -> None:
    """Of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: fields that are missing have their defaults, others are null."""
    common = {
        "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2, "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711], "processor_class": "Qwen2VLProcessor",
    }  # fmt: skip
    qwen2 = {**QWEN2, "image_processor_type": "Qwen2VLImageProcessor", **common}
    definition = from_huggingface(qwen2)
    assert definition == from_huggingface(made_by("Qwen2VL", "Pil", **QWEN2))
    assert definition == from_huggingface({**qwen2, "image_processor_type": "Qwen2VLImageProcessorPil"})
    of_tensors = {**qwen2, "image_processor_type": "Qwen2VLImageProcessorFast", "size": None, "do_pad": None}
    assert from_huggingface(of_tensors) == from_huggingface(made_by("Qwen2VL", "", **QWEN2))
    within = {**of_tensors, "min_pixels": None, "max_pixels": None}
    for size in (QWEN2, {"shortest_edge": 3136, "longest_edge": 12845056}):
        assert from_huggingface({**within, "size": size}) == from_huggingface(of_tensors)

    (tmp_path / "preprocessor_config.json").write_text(json.dumps(of_tensors))
    imported = import_source(str(tmp_path))
    assert "Processor makes" in imported.notes[-1]
    result = CliRunner().invoke(app, ["import", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert Definition.from_yaml(result.stdout) == imported.definition == from_huggingface(of_tensors)
    for definition in (imported.definition, from_huggingface(qwen2), from_huggingface(made_by("Qwen2VL", "", **QWEN3))):
        assert from_huggingface(to_huggingface(definition)) == definition


def test_configs_of_glm_and_paddle_as_the_hub_has_them() -> None:
    glm = {
        "size": {"shortest_edge": 12544, "longest_edge": 9633792}, "do_rescale": True, "patch_size": 14,
        "temporal_patch_size": 2, "merge_size": 2, "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711], "image_processor_type": "Glm4vImageProcessor",
        "processor_class": "Glm4vProcessor",
    }  # fmt: skip
    seen = from_huggingface(glm)
    assert seen == from_huggingface(made_by("Glm4v", "Pil", size=glm["size"]))
    assert seen.resize == Resize(
        mode="area", multiple_of=28, min_pixels=12544, max_pixels=9633792, small="together", temporal=2,
        filter="bicubic",
    )  # fmt: skip
    paddle = {
        "min_pixels": 112896, "max_pixels": 1003520, "image_processor_type": "PaddleOCRVLImageProcessorFast",
        "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
    }  # fmt: skip
    made = made_by("PaddleOCRVL", "", min_pixels=112896, max_pixels=1003520, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    assert from_huggingface(paddle) == from_huggingface(made)
    assert from_huggingface(paddle).patches == Patches(patch=14, temporal=1, merge=2, order="raster", flatten=False)


@pytest.mark.parametrize(
    ("family", "fields", "reason"),
    [
        ("Qwen2VL", {"max_pixels": None}, "does not state min_pixels and max_pixels"),
        ("Qwen2VL", {"max_pixels": 7}, "at most max_pixels"),
        ("Qwen2VL", {"max_pixels": "many"}, "max_pixels is 'many', expected a whole number"),
        ("Qwen2VL", {"do_rescale": False}, "do_rescale and do_normalize must be true"),
        ("Qwen2VL", {"patch_size": 0}, "patch_size is 0"),
        ("Qwen2VL", {"do_pad": True}, "do_pad is True"),
        ("Glm4v", {"size": None}, "does not state min_pixels and max_pixels"),
        ("Glm4v", {"do_resize": False}, "must divide the sides"),
        ("Pixtral", {"do_pad": False}, "do_pad is false"),
        ("Pixtral", {"patch_size": {"height": 16, "width": 14}}, "patch_size is 16x14; exact are square ones"),
        ("Pixtral", {"size": {"longest_edge": 1000}}, "multiple of multiple_of 16, got size 1000"),
        ("Pixtral", {"size": {"shortest_edge": 64}}, "exact are longest_edge alone, or height and width"),
        ("Siglip2", {"max_num_patches": 0}, "max_num_patches is 0"),
        ("Siglip2", {"do_normalize": False}, "do_rescale and do_normalize must be true"),
    ],
)
def test_what_is_not_known_to_be_exact_is_refused(family: str, fields: dict[str, Any], reason: str) -> None:
    config = made_by(family, "Pil").to_dict() | ({"size": None, **QWEN2} if family == "Qwen2VL" else {})
    from_huggingface(config)
    with pytest.raises(CannotImport, match=reason):
        from_huggingface(config | fields)
