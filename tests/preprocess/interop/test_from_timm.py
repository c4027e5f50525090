"""timm's configs against the transforms that timm builds of them, on real photos and over its whole registry."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from agreement import assert_equal, assert_refused
from hypothesis import example, given
from hypothesis import strategies as st
from lazily import Lazily

from onestream.preprocess import CannotImport
from onestream.preprocess.interop import from_timm, from_torchvision

timm, timm_data = Lazily("timm"), Lazily("timm.data")
MODELS = [
    "mobilenetv3_small_100.lamb_in1k",  # bicubic, 224 of 256
    "resnet50.tv_in1k",  # bilinear
    "vit_base_patch16_clip_224.openai",  # nothing is cropped but what is not square
    "vit_small_patch14_dinov2.lvd142m",  # 518
    "vit_so400m_patch14_siglip_384.webli",  # squash
    "deepseek_vit_412m.deepseek_v4_flash_vision_exp",  # border
]


def timms(config: dict[str, Any], *, use_test_size: bool = False) -> Any:
    resolved = timm_data.resolve_data_config(pretrained_cfg=config, use_test_size=use_test_size)
    return timm_data.create_transform(**resolved)


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    config = timm.get_pretrained_cfg(name)
    definition = from_timm(name)
    assert_equal(definition, timms(config.to_dict()))
    held = {"architecture": "x", "num_classes": 7, "pretrained_cfg": config.to_dict()}
    assert from_timm(config) == from_timm(config.to_dict()) == from_timm(held) == definition


def test_the_size_for_tests() -> None:
    """Beside a crop_pct of 0.875."""
    config = timm.get_pretrained_cfg("convnext_tiny.fb_in1k").to_dict()
    definition = from_timm(config, use_test_size=True)
    assert definition.output_spec.size_hw == (288, 288)
    assert_equal(definition, timms(config, use_test_size=True))


def test_every_second_model_of_timm_is_imported() -> None:
    """The transform that timm builds, read step by step, is the same definition as the config."""
    imported = 0
    for name in timm.list_pretrained()[::2]:
        config = timm.get_pretrained_cfg(name).to_dict()
        definition = from_timm(config)
        if config["crop_mode"] == "border":
            continue  # its steps are timm's own
        built = from_torchvision(timms(config))
        assert definition.pixels() == built.pixels(), name
        # timm keeps mean and deviation in float32.
        ours, theirs = (np.float32([norm.mean, norm.std]) for norm in (definition.normalize, built.normalize))
        np.testing.assert_array_equal(ours, theirs)
        imported += 1
    assert imported > 750


@given(size_hw=st.tuples(st.integers(1, 5000), st.integers(1, 5000)), side=st.integers(1, 800))
@example(size_hw=(841, 1856), side=224)  # a half that floats miss
def test_a_border_is_made_of_the_sizes_of_timm(size_hw: tuple[int, int], side: int) -> None:
    ratio = max(side_of / side for side_of in size_hw)
    resize = from_timm({"input_size": (3, side, side), "crop_pct": 1.0, "crop_mode": "border"}).geometry[0]
    assert resize.resized(size_hw) == tuple(max(1, round(side_of / ratio)) for side_of in size_hw)


def test_what_a_config_does_not_say_is_what_timm_takes() -> None:
    for config in ({"input_size": (3, 96, 96)}, {"mean": (0.5, 0.5, 0.5)}, {"crop_mode": "squash"}):
        assert from_timm(config) == from_torchvision(timms(config))
    # A border has the mean colour.
    config = {"input_size": (3, 70, 50), "crop_pct": 1.0, "crop_mode": "border", "interpolation": "bilinear"}
    assert_equal(from_timm(config), timms(config))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"crop_mode": "border"}, ["'border'", "crop_pct 0.875", "nearest exact is crop_pct 1"]),
        ({"crop_mode": "tile"}, ["'tile'", "'center', 'squash' and 'border'"]),
        ({"interpolation": "box"}, ["interpolation", "'box'", "bicubic"]),
        ({"input_size": [1, 224, 224]}, ["1 channels", "RGB"]),
        ({"input_size": [3, 224]}, ["[3, 224]", "[channels, height, width]"]),
        ({"input_size": [3, 256, 128]}, ["[256, 128] is no square", "'squash'"]),
        ({"crop_pct": "most"}, ["crop_pct is 'most'"]),
        ({"mean": [0.5, 0.5]}, ["mean has 2 values"]),
        ({"std": ["a", "b", "c"]}, ["std is ['a', 'b', 'c']"]),
        ({"crop_pct": 0.001}, ["16384", "224000"]),
    ],
)
def test_what_is_not_exact_is_refused_by_name(changed: dict[str, Any], named: list[str]) -> None:
    assert_refused(named, from_timm, {**dataclasses.asdict(timm.get_pretrained_cfg("resnet50.tv_in1k")), **changed})


def test_what_timm_does_not_know_is_refused_with_what_is_like_it() -> None:
    with pytest.raises(CannotImport, match=r"no model 'resnet5O.tv_in1k'; like it are resnet50.tv_in1k"):
        from_timm("resnet5O.tv_in1k")
    with pytest.raises(CannotImport, match="not a timm config"):
        from_timm({"image_mean": [1]})
