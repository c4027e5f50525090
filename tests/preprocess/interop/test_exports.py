"""Definitions as configs of transformers and timm, which make the same pixels of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agreement import assert_equal
from lazily import Lazily

from onestream.preprocess import CannotCompile, CenterCrop, Decode, Definition, Letterbox, Normalize, Output
from onestream.preprocess.interop import from_huggingface, from_timm, to_huggingface, to_timm
from onestream.preprocess.moves import Pad, Resize

transformers, timm, timm_data = Lazily("transformers"), Lazily("timm"), Lazily("timm.data")
IMAGENET = Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
LEVELS = Normalize(mean=(127, 127, 127), std=(128, 128, 128), scale=1)
SHORTER = Resize(mode="shorter", size=110, filter="bicubic")
CUT = CenterCrop(size=(96, 80), rounding="truncate")


def of(*operations: Any, color: Any = "rgb") -> Definition:
    return Definition(operations=[Decode(color=color), *operations])


FOR_TRANSFORMERS = {
    "shorter and crop": of(SHORTER, CUT, IMAGENET),
    "shorter": of(Resize(mode="shorter", size=50), LEVELS),
    "exact": of(Resize(mode="exact", size=(60, 90), filter="lanczos"), IMAGENET),
    "exact and crop": of(Resize(mode="exact", size=(100, 100)), CenterCrop(size=(80, 90)), IMAGENET),
    "0 to 1": of(Resize(mode="exact", size=(60, 90), filter="nearest"), Normalize(mean=[0] * 3, std=[1] * 3)),
    "levels": of(Resize(mode="exact", size=(60, 90)), Output(dtype="uint8")),
    "levels as floats": of(Resize(mode="exact", size=(60, 90)), Normalize(mean=[0] * 3, std=[1] * 3, scale=1)),
    "not resized": of(IMAGENET),
    "two bounds": of(Resize(mode="shorter", size=80, max_size=120, rounding="detr"),
                     Pad(size=(120, 120), value=127, align="top_left"), LEVELS),
    "the longer": of(Resize(mode="longer", size=120, rounding="half_up"),
                     Pad(size=(120, 120), value=127, align="top_left"), LEVELS),
    "of tensors": of(Resize(mode="shorter", size=110, filter="bicubic", arithmetic="aten"), CUT, IMAGENET),
    "nearest of tensors": of(Resize(mode="exact", size=(60, 90), filter="nearest-exact", arithmetic="aten"), IMAGENET),
}  # fmt: skip


@pytest.mark.parametrize("name", FOR_TRANSFORMERS)
def test_transformers_makes_the_same_pixels(name: str, tmp_path: Path) -> None:
    definition = FOR_TRANSFORMERS[name]
    config = to_huggingface(definition)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    backend = "torchvision" if config["image_processor_type"].endswith("Fast") else "pil"
    made = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend=backend)
    assert made.backend == backend
    assert_equal(definition, lambda image: made(image, return_tensors="np")["pixel_values"][0])


@pytest.mark.parametrize(
    ("definition", "named"),
    [
        (of(SHORTER, CenterCrop(size=(96, 80)), IMAGENET), "rounding: 'nearest' != 'truncate'"),
        (of(Letterbox(size=(64, 64)), IMAGENET), "no resize with mode 'fit'.*'longer'"),
        (of(SHORTER, CUT, IMAGENET, color="bgr"), "'bgr' != 'rgb'"),
        (of(SHORTER, CUT, IMAGENET, Output(layout="NHWC")), "layout: 'NHWC' != 'NCHW'"),
        (of(SHORTER, CUT, IMAGENET, Output(dtype="float16")), "dtype: 'float16' != 'float32'"),
        (of(SHORTER, CenterCrop(size=(120, 80), rounding="truncate"), IMAGENET), "may be larger"),
        (of(Resize(mode="longer", size=64), IMAGENET), "rounding: 'truncate' != 'half_up'"),
        (of(Resize(mode="longer", size=64, rounding="half_up"), Pad(size=(64, 64), align="top_left"), LEVELS),
         "value: 0 != 127"),
        (of(Resize(mode="exact", size=(9, 9), antialias=False), IMAGENET), "antialias: False != True"),
        (of(Resize(mode="exact", size=(9, 9), filter="nearest", arithmetic="aten"), IMAGENET),
         "'nearest' != 'nearest-exact'"),
        (of(CUT, IMAGENET), "may be larger than the image"),
    ],
)  # fmt: skip
def test_what_no_image_processor_does_is_refused_by_name(definition: Definition, named: str) -> None:
    with pytest.raises(CannotCompile, match=named):
        to_huggingface(definition)


FOR_TIMM = {
    "center": of(SHORTER, CenterCrop(size=(96, 96)), IMAGENET),
    "center, whole": of(SHORTER, CenterCrop(size=(110, 110)), IMAGENET),
    "squash": of(Resize(mode="exact", size=(60, 90)), IMAGENET),
    "squash and crop": of(Resize(mode="exact", size=(80, 100), filter="nearest"), CenterCrop(size=(64, 80)), IMAGENET),
    "border": of(Resize(mode="fit", size=(60, 90), rounding="quotient"), Pad(size=(60, 90), value=(124, 116, 104)),
                 IMAGENET),
}  # fmt: skip


@pytest.mark.parametrize("name", FOR_TIMM)
def test_timm_makes_the_same_pixels(name: str) -> None:
    definition = FOR_TIMM[name]
    assert_equal(definition, timm_data.create_transform(**to_timm(definition)))


def test_what_was_imported_is_exported_and_every_side_and_crop_of_timm_comes_back() -> None:
    for name in ("resnet50.tv_in1k", "vit_so400m_patch14_siglip_384.webli"):
        definition = from_timm(name)
        assert from_timm(to_timm(definition)) == definition
    definition = from_huggingface(transformers.CLIPImageProcessorPil())
    assert from_huggingface(to_huggingface(definition)) == definition
    for size in range(200, 300):
        for crop in range(190, size + 1, 7):
            definition = of(Resize(mode="shorter", size=size), CenterCrop(size=(crop, crop)), IMAGENET)
            assert from_timm(to_timm(definition)) == definition


@pytest.mark.parametrize(
    ("definition", "named"),
    [
        (of(SHORTER, CenterCrop(size=(96, 80)), IMAGENET), "no square"),
        (of(SHORTER, IMAGENET), "the same for every picture"),
        (of(SHORTER, CenterCrop(size=(96, 96)), LEVELS), "scale: 1.0 != 255.0"),
        (of(Resize(mode="longer", size=9), Pad(size=(9, 9)), IMAGENET), "'longer'; it has 'shorter', 'exact', 'fit'"),
        (of(Letterbox(size=(64, 64)), IMAGENET), "rounding: 'nearest' != 'quotient'"),
        (
            of(Resize(mode="shorter", size=96, arithmetic="aten"), CenterCrop(size=(96, 96)), IMAGENET),
            "'aten' != 'pil'",
        ),
        (of(SHORTER, CenterCrop(size=(96, 96))), "and normalizes"),
    ],
)
def test_what_timm_does_not_do_is_refused_by_name(definition: Definition, named: str) -> None:
    with pytest.raises(CannotCompile, match=named):
        to_timm(definition)
