"""Transforms for training against their augmentations: what both draw; what would differ is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from agreement import assert_refused, noise
from image_files import encode
from lazily import Lazily

from onestream.preprocess import BadImage, Definition, Resize, compile
from onestream.preprocess.interop.torchvision_training import (
    ImportedAugmentation,
    augmentation_from_timm,
    augmentation_from_torchvision,
)
from onestream.preprocess.training import Augmentation

torch, nn, timm_data = Lazily("torch"), Lazily("torch.nn"), Lazily("timm.data")
v1, v2 = Lazily("torchvision.transforms"), Lazily("torchvision.transforms.v2")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def to_tensor() -> list[Any]:
    return [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]


def normal() -> Any:
    return v2.Normalize(MEAN, STD)


def imported(*steps: Any) -> ImportedAugmentation:
    return augmentation_from_torchvision(v2.Compose(list(steps)))


IMPORTED: list[tuple[Callable[[Any], Any], dict[str, Any]]] = [
    (lambda v: v.RandomResizedCrop(64, (0.2, 0.9), (0.5, 2.0)), {"op": "box", "area": (0.2, 0.9), "ratio": (0.5, 2.0)}),
    (lambda v: v.RandomHorizontalFlip(0.3), {"op": "flip", "probability": 0.3}),
    (lambda v: v.RandomVerticalFlip(), {"op": "flip", "axis": "vertical"}),
    (lambda v: v.RandomRotation(30), {"op": "rotation", "degrees": (-30, 30)}),
    (
        lambda v: v.RandomAffine((-5, 10), translate=(0.1, 0.2), scale=(0.8, 1.1), shear=(-3, 4, -5, 6)),
        {"op": "affine", "degrees": (-5, 10), "translate": (0.1, 0.2), "scale": (0.8, 1.1), "shear_x": (-3, 4),
         "shear_y": (-5, 6)},
    ),
    (lambda v: v.RandomAffine(20, shear=7), {"op": "affine", "degrees": (-20, 20), "shear_x": (-7, 7)}),
    (lambda v: v.RandomPerspective(0.4, 0.7),
     {"op": "perspective", "distortion": 0.4, "probability": 0.7, "whole_pixels": True}),
    (lambda v: v.RandomCrop(32, padding=4), {"op": "padded_crop", "padding": 4, "size": (32, 32)}),
    (lambda v: v.RandomCrop((30, 40), pad_if_needed=True), {"op": "padded_crop", "padding": 0, "size": (30, 40)}),
    (lambda v: v.ColorJitter(0.4, (0.0, 2.5), hue=0.1),
     {"op": "color_jitter", "brightness": 0.4, "contrast": 1.5, "hue": 0.1}),
    (lambda v: v.RandomGrayscale(0.2), {"op": "grayscale", "probability": 0.2}),
    (lambda v: v.GaussianBlur(13, (0.1, 2.0)), {"op": "blur", "sigma": (0.1, 2.0)}),
    (lambda v: v.RandomPosterize(3, 0.4), {"op": "posterize", "bits": 3, "probability": 0.4}),
    (lambda v: v.RandomSolarize(127.5, 0.4), {"op": "solarize", "threshold": 128, "probability": 0.4}),
    (lambda v: v.RandomAdjustSharpness(1.7), {"op": "sharpness", "factor": (1.7, 1.7)}),
    (lambda v: v.RandomAutocontrast(0.1), {"op": "autocontrast", "probability": 0.1}),
    (lambda v: v.RandomEqualize(), {"op": "equalize"}),
    (lambda v: v.RandomInvert(0.6), {"op": "invert", "probability": 0.6}),
    (lambda v: v.RandAugment(3, 7, 11), {"op": "rand_augment", "count": 3, "magnitude": 7, "bins": 11}),
    (lambda v: v.TrivialAugmentWide(21), {"op": "trivial_augment", "bins": 21}),
    (lambda v: v.RandomApply([v.ColorJitter(0.4)], p=0.8),
     {"op": "color_jitter", "brightness": 0.4, "probability": 0.8}),
    (lambda v: v.RandomApply(nn.ModuleList([v.RandomGrayscale(0.5)]), p=0.5), {"op": "grayscale", "probability": 0.25}),
]  # fmt: skip


def test_each_transform_is_its_operation(subtests: pytest.Subtests) -> None:
    for make, operation in IMPORTED:
        for generation in (v1, v2):
            with subtests.test(operation["op"]):
                found = augmentation_from_torchvision(generation.Compose([generation.Compose([make(generation)])]))
                assert found.augmentation.operations == Augmentation([operation]).operations


def test_transforms_that_only_the_second_generation_has() -> None:
    found = imported(v2.JPEG((30, 90)), v2.ToImage(), v2.GaussianNoise(sigma=0.2)).augmentation
    assert found == Augmentation([{"op": "jpeg", "quality": (30, 90)}, {"op": "noise", "sigma": (51, 51)}])
    jittered = imported(v2.ScaleJitter((96, 96), (0.5, 1.5)), v2.RandomCrop(96, pad_if_needed=True, fill=114))
    assert jittered.augmentation == Augmentation([{"op": "scale_jitter", "scale": (0.5, 1.5)}], fill=114)
    assert (jittered.size_hw, jittered.filter) == ((96, 96), "bilinear")


def test_rectangles_are_filled_with_the_level_that_the_value_means() -> None:
    for steps, fill in (
        # 0 after Normalize is the mean, 123.675, 116.28, 103.53.
        ([*to_tensor(), normal(), v2.RandomErasing()], (124, 116, 104)),
        ([*to_tensor(), v2.RandomErasing(), normal()], 0),
        ([*to_tensor(), v2.RandomErasing(value=0.4), normal()], 102),
        ([v2.PILToTensor(), v2.RandomErasing(value=[1, 2, 3])], (1, 2, 3)),
        ([v1.ToTensor(), v1.Normalize(MEAN, STD), v1.RandomErasing()], (124, 116, 104)),
        ([v1.ToTensor(), v1.Normalize([0.2] * 3, [0.5] * 3), v1.RandomErasing()], 51),
        ([v1.Grayscale(), v1.ToTensor(), v1.Normalize([0.4], [0.2]), v1.RandomErasing()], 102),
    ):
        found = imported(*steps)
        assert found.augmentation == Augmentation([{"op": "erase", "fill": fill}])
        assert any("123.7, 116.3, 103.5" in note for note in found.notes) == (fill == (124, 116, 104))


def test_a_chain_says_what_its_pipeline_must_be() -> None:
    found = imported(
        v2.RandomResizedCrop(224, interpolation=v1.InterpolationMode.BICUBIC), v2.RandomHorizontalFlip(),
        v2.TrivialAugmentWide(fill=[127, 127, 127]), *to_tensor(), normal(), v2.RandomErasing(0.1),
    )  # fmt: skip
    names = [operation.op for operation in found.augmentation.operations]
    assert names == ["box", "flip", "trivial_augment", "erase"]
    assert (found.augmentation.fill, found.size_hw, found.filter) == (127, (224, 224), "bicubic")
    _, normalize, output = found.operations
    assert (normalize.mean, normalize.std, output.dtype) == (MEAN, STD, "float32")
    assert any("RandomResizedCrop into sight" in note for note in found.notes)
    resized = imported(v2.RandomRotation(5), v2.Resize(70), v2.CenterCrop(64), v2.RandomHorizontalFlip(), v2.ToImage())
    assert (resized.size_hw, resized.filter) == (None, None)
    assert [one.op for one in resized.operations] == ["decode", "resize", "center_crop", "output"]
    small = augmentation_from_torchvision(v1.Compose([v1.RandomCrop(32, padding=4), v1.ToTensor()]))
    assert (small.size_hw, small.filter, small.augmentation.fill) == ((32, 32), None, 0)


def test_what_nothing_is_random_in_gives_torchvisions_pixels() -> None:
    """A box of the whole picture and changes that are certain: what is left is arithmetic."""
    composed = v1.Compose(
        [v1.RandomResizedCrop((48, 36), scale=(1, 1), ratio=(0.75, 0.75), interpolation=v1.InterpolationMode.BICUBIC),
         v1.RandomHorizontalFlip(1), v1.RandomPosterize(3, 1), v1.RandomSolarize(100, 1), v1.RandomInvert(1),
         v1.RandomAdjustSharpness(0.3, 1), v1.RandomEqualize(1), v1.ToTensor(), v1.Normalize(MEAN, STD)]
    )  # fmt: skip
    found, picture = augmentation_from_torchvision(composed), noise(80, 60)
    decode, *rest = found.operations
    assert found.filter is not None
    geometry = Resize(mode="exact", size=found.size_hw, filter=found.filter)
    definition = Definition(operations=[decode, geometry, *rest])
    variation = found.augmentation.draw((80, 60), seed=0, epoch=0, index=0, definition=definition)
    (seen,) = compile(definition, varied=True).run([encode(picture, "PNG")], [lambda _: variation])
    assert not isinstance(seen, BadImage)
    # Float32's last bits: a library may multiply where another divides.
    np.testing.assert_allclose(seen, composed(picture).numpy(), atol=1e-5)


def refused_transforms() -> list[tuple[list[Any], list[str]]]:
    return [
        ([v2.Resize(9), v2.CenterCrop(9)], ["draws nothing", "--augmentation"]),
        ([v2.RandomRotation(9, expand=True)], ["RandomRotation has expand=True", "larger"]),
        ([v2.RandomAffine(9, center=[1, 2])], ["RandomAffine has center=[1, 2]"]),
        ([v2.RandomPerspective(0.6)], ["distortion_scale of RandomPerspective is 0.6", "exact is 0.5"]),
        ([v2.RandomCrop(9, padding=[1, 2, 3, 4])], ["padding of RandomCrop", "all sides"]),
        ([v2.RandomCrop(9, padding=2, padding_mode="reflect")], ["'reflect'", "'constant'"]),
        ([v2.ColorJitter((0.5, 1.2))], ["brightness of ColorJitter", "0.5 to 1.2", "give or take"]),
        ([v2.ColorJitter(hue=(0.0, 0.2))], ["hue of ColorJitter", "0 to 0.2"]),
        ([v2.GaussianBlur(5)], ["kernel_size of GaussianBlur is 5", "kernel_size=13"]),
        ([v2.PILToTensor(), v2.RandomErasing(value="random")], ["value='random'", "value=0"]),
        ([v2.ToImage(), v2.GaussianNoise(mean=0.1)], ["GaussianNoise has mean=0.1"]),
        ([v2.RandomRotation(9, fill=[1, 2, 3])], ["RandomRotation fills with the levels 1, 2, 3", "one whole"]),
        ([v2.RandomRotation(9, fill=1), v2.RandomAffine(9)], ["levels: 1 (RandomRotation), 0 (RandomAffine)"]),
        ([*to_tensor(), normal(), v2.RandomRotation(9)], ["RandomRotation fills with the levels 123.675"]),
        ([v2.RandomRotation(9, fill={"others": 1})], ["fill of RandomRotation", "by type"]),
        ([v2.RandomResizedCrop(9, interpolation="box")], ["the interpolation of RandomResizedCrop", "'box'"]),
        ([v2.ToImage(), v2.RandomResizedCrop(9, antialias=False)], ["antialias=False", "tensors"]),
        ([v2.RandomApply([v2.RandomInvert(), v2.RandomEqualize()])], ["RandomApply makes 2 transforms happen"]),
        ([v2.RandomApply([v2.RandomResizedCrop(9)])], ["RandomResizedCrop happens with a probability of 0.5"]),
        ([v2.RandomResizedCrop(9), v2.RandomResizedCrop(9)], ["comes after RandomResizedCrop", "Leave one out"]),
        ([v2.RandomResizedCrop(9), v2.Resize(5)], ["Resize comes after RandomResizedCrop", "Leave Resize out"]),
        ([v2.RandomResizedCrop(9), v2.RandomCrop(5)], ["RandomCrop cuts another size than RandomResizedCrop"]),
        (
            [v2.ColorJitter(1), v2.RandomResizedCrop(9)],
            ["RandomResizedCrop comes after ColorJitter", "ColorJitter after"],
        ),
        ([v2.JPEG(50), v2.RandomRotation(9)], ["RandomRotation comes after JPEG", "RandomRotation first"]),
        ([v2.Resize(9), v2.RandomCrop(5)], ["RandomCrop comes after Resize", "RandomCrop before Resize"]),
        ([v2.CenterCrop(9), v2.TrivialAugmentWide()], ["TrivialAugmentWide comes after CenterCrop"]),
        ([*to_tensor(), normal(), v2.ColorJitter(0.4)], ["ColorJitter comes after Normalize"]),
        ([*to_tensor(), normal(), v2.RandAugment()], ["RandAugment comes after Normalize"]),
        ([v2.ColorJitter(0.4), v2.Resize(9)], ["Resize comes after ColorJitter"]),
        ([v2.RandomApply([v2.Resize(9)])], ["Resize happens with a probability of 0.5"]),
        ([v2.ScaleJitter((9, 9))], ["ScaleJitter gives pictures of any size", "pad_if_needed=True"]),
        ([v2.ScaleJitter((9, 9)), v2.RandomHorizontalFlip()], ["RandomCrop directly after it"]),
        ([v2.ScaleJitter((9, 9)), v2.RandomCrop(8, pad_if_needed=True)], ["the same size"]),
        ([v2.ScaleJitter((9, 8))], ["9x8", "a square"]),
        ([v2.AutoAugment()], ["AutoAugment draws one of 25", "RandAugment"]),
        ([v2.AugMix()], ["AugMix mixes several versions"]),
        ([v2.RandomIoUCrop()], ["RandomIoUCrop", "min_visible"]),
        ([v2.ElasticTransform()], ["ElasticTransform bends", "op: warp"]),
        ([v2.MixUp(num_classes=3)], ["MixUp mixes the pictures of a batch", "op: mixup"]),
        ([v2.RandomChoice([v2.RandomInvert()])], ["RandomChoice draws one of several"]),
        ([v2.RandomHorizontalFlip(), v2.TenCrop(9)], ["TenCrop has no operation"]),
        ([v2.Lambda(lambda image: image)], ["Lambda is code of its own"]),
    ]


def test_what_would_be_drawn_otherwise_is_refused_by_name(subtests: pytest.Subtests) -> None:
    for steps, named in refused_transforms():
        with subtests.test(named[0]):
            assert_refused(named, imported, *steps)


def test_what_differs_though_the_draws_do_not_is_said() -> None:
    for steps, said in (
        ([v2.ColorJitter(0.4), v2.RandomRotation(9)], "RandomRotation comes after ColorJitter"),
        ([v2.ToImage(), v2.RandomResizedCrop(9)], "After ToImage torchvision works on tensors"),
        ([v2.RandomRotation(9)], "sampled once"),
        ([v2.RandomPerspective()], "Where RandomPerspective, with what else moves the picture, would show"),
        ([v2.RandomCrop(9)], "smaller than its RandomCrop"),
        ([v2.RandomHorizontalFlip(), v2.SanitizeBoundingBoxes()], "SanitizeBoundingBoxes is left out"),
    ):
        assert any(said in note for note in imported(*steps).notes), said


OPTIONS = {
    "input_size": (3, 96, 64), "scale": (0.4, 1.0), "ratio": (0.9, 1.1), "hflip": 0.4, "vflip": 0.1,
    "color_jitter": (0.1, 0.2, 0.3, 0.05), "color_jitter_prob": 0.8, "grayscale_prob": 0.2, "gaussian_blur_prob": 0.3,
    "interpolation": "bicubic", "mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25), "re_prob": 0.25,
}  # fmt: skip


def test_the_options_of_timm() -> None:
    found = augmentation_from_timm(OPTIONS)
    assert found.augmentation == Augmentation(
        [
            {"op": "box", "area": (0.4, 1.0), "ratio": (0.9, 1.1)},
            {"op": "flip", "probability": 0.4},
            {"op": "flip", "axis": "vertical", "probability": 0.1},
            {"op": "color_jitter", "brightness": 0.1, "contrast": 0.2, "saturation": 0.3, "hue": 0.05,
             "probability": 0.8},
            {"op": "grayscale", "probability": 0.2},
            {"op": "blur", "sigma": (0.1, 2.0), "probability": 0.3},
            # 0 after Normalize is the mean, 127.5.
            {"op": "erase", "area": (0.02, 1 / 3), "ratio": (0.3, round(10 / 3, 9)), "fill": 128, "probability": 0.25},
        ]
    )  # fmt: skip
    assert (found.size_hw, found.filter) == ((96, 64), "bicubic")
    created = timm_data.create_transform(**OPTIONS, is_training=True)
    assert found == augmentation_from_torchvision(created, origin=found.origin)
    # The prefetcher would normalize and erase later.
    assert augmentation_from_timm({**OPTIONS, "use_prefetcher": True}) == found
    prefetched = timm_data.create_transform(**OPTIONS, is_training=True, use_prefetcher=True)
    assert any("MaybePILToTensor" in note for note in augmentation_from_torchvision(prefetched).notes)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"auto_augment": "rand-m9-mstd0.5-inc1"}, ["Invert, SolarizeAdd", "probability of 0.5", "deviation of 0.5",
                                                   "{op: rand_augment, count: 2, magnitude: 27}"]),
        ({"auto_augment": "original"}, ["AutoAugment draws one of 25"]),
        ({"auto_augment": "augmix-m5-w4-d2"}, ["AugMixAugment mixes"]),
        ({"interpolation": "random"}, ["interpolation of RandomResizedCropAndInterpolation is drawn", "'bicubic'"]),
        ({"re_prob": 0.2, "re_mode": "pixel"}, ["re_mode is 'pixel'", "'const'"]),
        ({"re_prob": 0.2, "re_count": 3}, ["re_count is 3"]),
        ({"train_crop_mode": "rkrc"}, ["ResizeKeepRatio", "'rrc'"]),
        ({"no_aug": True}, ["draws nothing"]),
        ({"separate": True}, ["separate gives three transforms"]),
        ({"reprob": 0.2}, ["create_transform refuses its options", "reprob"]),
    ],
)  # fmt: skip
def test_options_of_timm_that_draw_otherwise_are_refused(options: dict[str, Any], named: list[str]) -> None:
    assert_refused(named, augmentation_from_timm, options)
