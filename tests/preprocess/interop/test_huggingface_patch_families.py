"""Image processors of GLM-4V, PaddleOCR-VL, Pixtral and SigLIP2: definitions of their configs give every bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from agreement import noise
from hypothesis import given, settings
from hypothesis import strategies as st
from image_files import encode
from lazily import Lazily

from onestream.preprocess import CannotImport, Definition, Patches, Resize
from onestream.preprocess.interop import from_huggingface
from onestream.preprocess.patches import Processor

torch, transformers = Lazily("torch"), Lazily("transformers")

BACKENDS = st.sampled_from(["Pil", ""])
SIZES = st.tuples(st.integers(1, 90), st.integers(1, 90)) | st.tuples(st.integers(1, 3), st.integers(1, 900))
"""(height, width), not all of which have an aspect ratio that is accepted."""
PATCHES = st.integers(2, 14)
"""PyTorch's own resize to a picture of one pixel fails."""


def made_by(family: str, backend: str, **options: Any) -> Any:
    return getattr(transformers, f"{family}ImageProcessor{backend}")(**options)


def assert_equal(made: Any, sizes: list[tuple[int, int]], reason: str = "none is refused") -> Definition:
    """For pictures of noise of these sizes together, given as files and as arrays; the definition.

    Those that are refused are so by both, and by transformers' for this reason.
    """
    definition, images = from_huggingface(made), [noise(*size_hw) for size_hw in sizes]
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


@settings(max_examples=60)
@given(
    family=st.sampled_from(["Glm4v", "Glm46V", "PaddleOCRVL"]),
    backend=BACKENDS,
    sizes=st.lists(SIZES, min_size=1, max_size=2),
    upright=st.booleans(),
    least=st.integers(1, 9_000),
    more=st.integers(0, 30_000),
    patch=PATCHES,
    temporal=st.integers(1, 3),
    merge=st.integers(1, 3),
)
def test_areas(
    family: str, backend: str, sizes: list[tuple[int, int]], upright: bool, least: int, more: int, patch: int,
    temporal: int, merge: int,
) -> None:  # fmt: skip
    made = made_by(
        family, backend, size={"shortest_edge": least, "longest_edge": least + more}, patch_size=patch,
        temporal_patch_size=temporal, merge_size=merge,
    )  # fmt: skip
    sizes = [size_hw[::-1] if upright else size_hw for size_hw in sizes]
    definition = assert_equal(made, sizes, "absolute aspect ratio must be smaller than 200")
    with Processor(definition) as own:
        for size_hw, grid, count in zip(sizes, own.grids(sizes), own.token_counts(sizes), strict=True):
            if isinstance(grid, tuple):
                assert np.prod(grid) == count * merge**2 == made.get_number_of_image_patches(*size_hw)


@settings(max_examples=60)
@given(
    backend=BACKENDS,
    sizes=st.lists(st.tuples(st.integers(1, 90), st.integers(1, 90)), min_size=1, max_size=3),
    patch=PATCHES,
    box=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    square=st.booleans(),
)
def test_pixtral(
    backend: str, sizes: list[tuple[int, int]], patch: int, box: tuple[int, int], square: bool
) -> None:  # fmt: skip
    height, width = (side * patch for side in box)
    size = {"longest_edge": height} if square else {"height": height, "width": width}
    made = made_by("Pixtral", backend, size=size, patch_size={"height": patch, "width": patch})
    assert_equal(made, sizes, "Size must contain")


@settings(max_examples=60)
@given(
    backend=BACKENDS,
    sizes=st.lists(SIZES, min_size=1, max_size=3),
    upright=st.booleans(),
    patch=PATCHES,
    most=st.integers(1, 40),
)
def test_siglip2(backend: str, sizes: list[tuple[int, int]], upright: bool, patch: int, most: int) -> None:
    made = made_by("Siglip2", backend, patch_size=patch, max_num_patches=most)
    assert_equal(made, [size_hw[::-1] if upright else size_hw for size_hw in sizes])


def test_configs_as_the_hub_has_them() -> None:
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
    config = made_by(family, "Pil").to_dict()
    from_huggingface(config)
    with pytest.raises(CannotImport, match=reason):
        from_huggingface(config | fields)
