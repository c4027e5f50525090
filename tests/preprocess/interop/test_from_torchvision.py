"""Transforms of torchvision against their definitions, on real photos; what is not exact is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from agreement import assert_equal, assert_refused, noise
from hypothesis import given
from hypothesis import strategies as st
from image_files import encode
from lazily import Lazily
from PIL import Image

from onestream.preprocess import CannotImport, compile
from onestream.preprocess.interop import from_torchvision

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

torch, nn = Lazily("torch"), Lazily("torch.nn")
models, v1, v2 = (Lazily(f"torchvision.{name}") for name in ("models", "transforms", "transforms.v2"))
WEIGHTS = [
    "ResNet50_Weights.IMAGENET1K_V1",
    "ResNet50_Weights.IMAGENET1K_V2",
    "Inception_V3_Weights.IMAGENET1K_V1",
    "ViT_B_16_Weights.IMAGENET1K_SWAG_E2E_V1",
    "EfficientNet_B0_Weights.IMAGENET1K_V1",
]
"""Bilinear and bicubic, sizes of 224, 299 and 384."""


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights(name: str) -> None:
    weights = models.get_weight(name)
    assert_equal(from_torchvision(weights), weights.transforms())
    assert from_torchvision(weights.transforms()) == from_torchvision(weights.transforms) == from_torchvision(weights)


def test_every_weight_of_torchvision_is_imported_or_refused_by_name() -> None:
    imported, refused = 0, set()
    for name in models.list_models():
        for weights in models.get_model_weights(name):
            try:
                from_torchvision(weights)
                imported += 1
            except CannotImport as error:
                refused.add((models.get_model_builder(name).__module__.split(".")[2], str(error).split()[0]))
    assert imported > 140
    # Quantized networks take the same images.
    assert refused == {("video", "VideoClassification"), ("optical_flow", "OpticalFlow")}


def composed_transforms() -> dict[str, Any]:
    return {
        "v1": v1.Compose([v1.Resize(96), v1.CenterCrop(84), v1.ToTensor(), v1.Normalize(MEAN, STD)]),
        "v2": v2.Compose([v2.Resize(72, v1.InterpolationMode.LANCZOS), v2.CenterCrop((65, 71)), v2.ToImage(),
                          v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD), v2.ToPureTensor()]),
        "crop of a tensor": v2.Compose(
            [v2.Resize([90]), v2.PILToTensor(), v2.CenterCrop(91), v2.ToDtype(torch.float32)]),
        "nested": v1.Compose([v1.Compose([v1.Resize((70, 50), v1.InterpolationMode.NEAREST)]),
                              nn.Sequential(v2.PILToTensor(), v2.ConvertImageDtype(torch.float32), nn.Identity())]),
        "bounded": v2.Compose([v2.RGB(), v2.Resize(70, max_size=100), v2.CenterCrop(100), v2.PILToTensor()]),
        "longest": v2.Compose([v2.RGB(), v2.Resize(None, max_size=100), v2.CenterCrop(100), v2.PILToTensor()]),
        "levels": v2.Compose([v2.Resize(60), v2.CenterCrop(60), v2.PILToTensor(), v2.ToDtype(torch.float32),
                              v2.Normalize([127.0], [128.0])]),
        "two normalizations": v1.Compose([v1.Resize(60), v1.CenterCrop(60), v1.ToTensor(), v1.Normalize(MEAN, STD),
                                          v1.Normalize([0.5, 0.1, 0.2], [2.0, 3.0, 4.0])]),
        "gray": v1.Compose(
            [v1.Grayscale(), v1.Resize(50), v1.CenterCrop(48), v1.ToTensor(), v1.Normalize([0.4], [0.2])]),
        "float16": v2.Compose([v2.Resize(40), v2.CenterCrop(40), v2.ToImage(), v2.ToDtype(torch.float32, scale=True),
                               v2.ToDtype(torch.float16)]),
        "whole image": v1.ToTensor(),
    }  # fmt: skip


def test_compositions(subtests: pytest.Subtests) -> None:
    for name, composed in composed_transforms().items():
        with subtests.test(name):
            assert_equal(from_torchvision(composed), composed)


@pytest.mark.parametrize(
    "name", ["FCN_ResNet50_Weights.COCO_WITH_VOC_LABELS_V1", "FasterRCNN_ResNet50_FPN_Weights.COCO_V1"]
)
def test_weights_whose_size_depends_on_the_image(name: str) -> None:
    weights = models.get_weight(name)
    definition = from_torchvision(weights)
    assert definition.output_spec.size_hw == (None, None)
    # Its shorter side becomes 520.
    assert_equal(definition, weights.transforms(), most=3)


SIDES = st.integers(1, 60)


@given(
    size_hw=st.tuples(SIDES, SIDES),
    resize=SIDES | st.tuples(SIDES, SIDES).map(list),
    crop=st.tuples(SIDES, SIDES),
    interpolation=st.sampled_from(["NEAREST", "NEAREST_EXACT", "BILINEAR", "BICUBIC", "LANCZOS"]),
    of_tensors=st.booleans(),
)
def test_any_resize_and_crop(
    size_hw: tuple[int, int], resize: int | list[int], crop: tuple[int, int], interpolation: str, of_tensors: bool
) -> None:
    """Every pixel differs from its neighbours, so a row or column that is off by one shows."""
    image = noise(*size_hw)
    generation = v2 if of_tensors else v1
    steps = [generation.Resize(resize, v1.InterpolationMode[interpolation]), v1.CenterCrop(crop)]
    steps.insert(0 if of_tensors else 2, v1.PILToTensor())
    composed = v1.Compose(steps)
    (seen,) = compile(from_torchvision(composed)).run([encode(image, "PNG")])
    np.testing.assert_array_equal(seen, composed(image).numpy())


def to_rgb(image: Image.Image) -> Image.Image:
    return image.convert("RGB")


def refused_transforms() -> dict[str, tuple[Any, list[str]]]:
    class Sharper(v1.Resize):
        """Looks like torchvision's, and may do anything."""

    mode = v1.InterpolationMode
    return {
        "box": (v1.Resize(9, mode.BOX), ["interpolation of Resize", "'box'", "nearest, nearest-exact, bilinear"]),
        "antialias": (v1.Resize(9, antialias=False), ["antialias=False", "nearest exact is antialias=True"]),
        "resize of a tensor": (v1.Compose([v1.ToTensor(), v1.Resize(9)]), ["conversion to floats", "Resize before it"]),
        "first generation": (v1.Compose([v1.PILToTensor(), v1.Resize(9)]), ["after PILToTensor", "transforms.v2"]),
        "two resizes": (v1.Compose([v1.Resize(9), v1.Resize(5)]), ["after Resize", "one Resize"]),
        "crop first": (v1.Compose([v1.CenterCrop(9), v1.Resize(5)]), ["after CenterCrop"]),
        "random": (v1.RandomResizedCrop(9), ["RandomResizedCrop is random", "evaluation"]),
        "colour": (v1.ColorJitter(0.1), ["ColorJitter is random"]),
        "augmentation": (v1.TrivialAugmentWide(), ["TrivialAugmentWide is random"]),
        "padding": (v1.Pad(3), ["Pad", "letterbox"]),
        "five crops": (v1.FiveCrop(9), ["FiveCrop has no operation"]),
        "lambda": (v1.Lambda(to_rgb), ["Lambda is code of its own", "decoded to RGB", "color bgr"]),
        "function": (to_rgb, ["to_rgb is code of its own"]),
        "derived": (Sharper(9), ["Sharper is code of its own"]),
        "gray later": (v1.Compose([v1.Resize(9), v1.Grayscale()]), ["Grayscale", "first step"]),
        "three grays": (v1.Grayscale(3), ["num_output_channels=3"]),
        "gray and RGB": (v2.Compose([v2.Grayscale(), v2.RGB()]), ["RGB after Grayscale"]),
        "crop after normalize": (
            v1.Compose([v1.ToTensor(), v1.Normalize(MEAN, STD), v1.CenterCrop(9)]),
            ["CenterCrop comes after Normalize"]),
        "normalized levels": (v1.Compose([v1.PILToTensor(), v1.Normalize(MEAN, STD)]), ["before floats"]),
        "double": (v2.Compose([v2.ToImage(), v2.ToDtype(torch.float64, scale=True)]), ["float64"]),
        "half scaled": (
            v2.Compose([v2.ToImage(), v2.ToDtype(torch.float16, scale=True)]), ["float16", "float32 first"]),
        "half first": (
            v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.ToDtype(torch.float16),
                        v2.Normalize(MEAN, STD)]), ["Normalize after a conversion to float16"]),
        "levels again": (v2.Compose([v1.ToTensor(), v2.ToDtype(torch.uint8, scale=True)]), ["back to uint8"]),
        "dtype of PIL": (v2.ToDtype(torch.float32), ["ToDtype comes before"]),
        "channels": (v1.Compose([v1.ToTensor(), v1.Normalize([0, 0], [1, 1])]), ["2 values for 3 channels"]),
        "zero": (v1.Compose([v1.ToTensor(), v1.Normalize([0], [0])]), ["std must be above 0"]),
        "side": (v1.Resize(20000), ["16384"]),
    }  # fmt: skip


def test_what_is_not_exact_is_refused_by_name(subtests: pytest.Subtests) -> None:
    for name, (transform, named) in refused_transforms().items():
        with subtests.test(name):
            assert_refused(named, from_torchvision, v1.Compose([transform, v1.ToTensor()]))
    assert_refused(["ends in a PIL image"], from_torchvision, v1.Compose([v1.Resize(9), v1.CenterCrop(9)]))
