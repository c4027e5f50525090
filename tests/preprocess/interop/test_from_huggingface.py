"""Image processors of transformers against their definitions, on real photos; configs are made in code."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import assert_equal, assert_refused, differences, noise
from hypothesis import given
from hypothesis import strategies as st
from image_files import encode
from lazily import Lazily
from PIL import Image

from onestream.preprocess import CannotImport, compile
from onestream.preprocess.interop import from_huggingface, import_source
from onestream.preprocess.interop.huggingface.config import read_huggingface
from onestream.preprocess.interop.huggingface.families import FAMILIES

transformers = Lazily("transformers")
OF_SIZE_224 = {"size": {"shortest_edge": 224}}
# Its own size is smaller than its crop.
OF_SIZE_288 = {"size": {"shortest_edge": 288}}
ODD: dict[str, Any] = {
    "size": {"shortest_edge": 101}, "crop_size": {"height": 70, "width": 65}, "image_mean": [0.1, 0.2, 0.3],
    "image_std": [0.4, 0.3, 0.2], "rescale_factor": 1 / 127.5,
}  # fmt: skip
OF_TWO_BOUNDS = ("ConditionalDetr", "DeformableDetr", "Detr", "Yolos")
"""Detectors whose processors make sizes by the picture, unless their config says otherwise."""
LARGE: dict[str, dict[str, Any]] = {
    "Sam": {"size": {"longest_edge": 200}, "do_pad": False},
    "Chameleon": {"size": {"shortest_edge": 96}, "crop_size": {"height": 96, "width": 96}},
    "OwlViT": {"size": {"height": 160, "width": 224}},
}
"""In place of the sizes of 512 and more that are theirs."""
PROCESSORS: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        name: (name, LARGE.get(name, {}))
        for name, family in FAMILIES.items()
        if name not in ("MobileViT", *OF_TWO_BOUNDS) and not family.on_tensors and not family.fractions
        if family.patches is None and family.tiling in (None, "ratio")
    },
    **{family: (family, {"size": {"height": 160, "width": 224}}) for family in OF_TWO_BOUNDS},
    "RTDetr, normalized": ("RTDetr", {"do_normalize": True, "do_pad": True, "resample": 3}),
    "MobileViT": ("MobileViT", OF_SIZE_288),
    "MobileViT, RGB": ("MobileViT", {**OF_SIZE_288, "do_flip_channel_order": False, "resample": 2}),
    "ConvNext below 384": ("ConvNext", OF_SIZE_224),
    "ConvNext, crop_pct": ("ConvNext", {**OF_SIZE_224, "crop_pct": 0.95, "resample": 2}),
    "DINOv2": ("Bit", {"size": {"shortest_edge": 256}, "image_mean": [0.485, 0.456, 0.406],
                       "image_std": [0.229, 0.224, 0.225]}),
    "CLIP, odd": ("CLIP", ODD),
    "CLIP, uncropped": ("CLIP", {"do_center_crop": False, "size": {"height": 60, "width": 90}, "resample": 1}),
    "EfficientNet-B0": ("EfficientNet", {"resample": 0, "size": {"height": 224, "width": 224}, "image_std":
                                         [0.47853944, 0.4732864, 0.47434163]}),
    "EfficientNet, shifted": ("EfficientNet", {"rescale_factor": 1 / 127.5, "rescale_offset": True,
                                               "do_normalize": False, "include_top": False, "do_center_crop": True}),
    "Levit, exact": ("Levit", {"size": {"height": 240, "width": 230}}),
    "PoolFormer, square": ("PoolFormer", {"size": {"height": 200, "width": 200}, "crop_size": 200}),
    "PoolFormer, whole": ("PoolFormer", {"crop_pct": None}),
    "levels": ("ViT", {"do_rescale": False, "do_normalize": False}),
    "0 to 1": ("ViT", {"do_normalize": False}),
    "normalized levels": ("ViT", {"do_rescale": False, "image_mean": [127, 127, 127], "image_std": [128, 128, 128]}),
    "not resized": ("Siglip", {"do_resize": False}),
}  # fmt: skip


def processor(family: str, options: dict[str, Any], *, backend: str) -> Any:
    return getattr(transformers, f"{family}ImageProcessor{backend}")(**options)


def pixels_by(made: Any) -> Callable[[Image.Image], Any]:
    return lambda image: np.asarray(made(image, return_tensors="np")["pixel_values"][0])


@pytest.mark.parametrize("backend", ["Pil", ""])
@pytest.mark.parametrize("name", PROCESSORS)
def test_image_processors(name: str, backend: str) -> None:
    made = processor(*PROCESSORS[name], backend=backend)
    definition = from_huggingface(made)
    if made.backend == "torchvision":
        assert definition.resize is None or definition.resize.arithmetic == "aten"
    else:
        assert from_huggingface(made.to_dict()) == definition
    assert_equal(definition, pixels_by(made))


@pytest.mark.parametrize("name", ["RfDetr", *(name for name, family in FAMILIES.items() if family.on_tensors)])
def test_processors_without_pillow(name: str) -> None:
    """Some keep fractions of a level between their resize and the next step, whether they smooth or not."""
    made = processor(name, {"size": {"height": 160, "width": 224}}, backend="")
    definition = from_huggingface(made)
    assert from_huggingface(made.to_dict()) == definition
    most = max(comparison.max for comparison in differences(definition, pixels_by(made), backend="reference"))
    # Each of the two passes rounds to half a level; the sums are float32's.
    assert most < (1.01 if FAMILIES[name].fractions else 0.001)


TO_80_AND_133 = {"size": {"shortest_edge": 80, "longest_edge": 133}}
TO_99 = {"size": {"longest_edge": 99}}


@pytest.mark.parametrize("backend", ["", "Pil"])
@pytest.mark.parametrize(
    ("name", "options", "is_within"),
    [
        ("Detr", TO_80_AND_133, False),
        ("Detr", {**TO_80_AND_133, "pad_size": {"height": 133, "width": 133}}, True),
        ("ConditionalDetr", {"size": {"shortest_edge": 60, "longest_edge": 60}, "do_normalize": False}, False),
        ("Sam", {**TO_99, "pad_size": {"height": 99, "width": 99}}, True),
        ("Sam", {**TO_99, "pad_size": {"height": 99, "width": 120}, "image_mean": [0.2] * 3}, False),
    ],
)
def test_sizes_that_follow_from_the_picture(name: str, options: dict[str, Any], is_within: bool, backend: str) -> None:
    """A border of zeros after normalize is within half a level of the rounded mean colour."""
    made = processor(name, options, backend=backend)
    definition, notes = read_huggingface(made)
    assert any("Within a level" in note for note in notes) is is_within
    most = max(comparison.max for comparison in differences(definition, pixels_by(made), backend="reference"))
    assert (0.1 < most < 0.5) if is_within else (most < 0.001)


@pytest.mark.parametrize("backend", ["", "Pil"])
@pytest.mark.parametrize("name", ["DPT", "Flava", "PromptDepthAnything"])
def test_a_class_whose_rules_are_not_known_is_imported_by_what_it_computes(name: str, backend: str) -> None:
    made = processor(name, {"size": {"height": 90, "width": 70}, "do_center_crop": False}, backend=backend)
    definition = from_huggingface(made)
    assert_equal(definition, pixels_by(made), most=3)
    by_name = {"": "Fast", "Pil": ""}[backend]
    assert from_huggingface({**made.to_dict(), "image_processor_type": f"{name}ImageProcessor{by_name}"}) == definition


def test_a_class_that_computes_something_else_is_refused_with_the_nearest() -> None:
    class Inverting(transformers.ViTImageProcessorPil):  # type: ignore[misc, name-defined, unused-ignore]
        def rescale(self, image: Any, scale: float, **options: Any) -> Any:
            return super().rescale(255 - image, scale, **options)

    class Same(transformers.ViTImageProcessorPil):  # type: ignore[misc, name-defined, unused-ignore]
        pass

    size = {"size": {"height": 20, "width": 30}}
    assert from_huggingface(Same(**size)) == from_huggingface(transformers.ViTImageProcessorPil(**size))
    with pytest.raises(CannotImport, match=r"Inverting .* as \w+ImageProcessor reads it, differs by up to 255 levels"):
        from_huggingface(Inverting(**size))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Cohere2Vision", r"shape \[\d+, 3, 512, 512\] of one picture, which are tiles"),
        ("Step3p7", "makes pixel_values_local too"),
        ("Fuyu", "makes no pixel_values of a picture"),
    ],
)
def test_a_class_that_makes_more_than_one_picture_is_refused(name: str, said: str) -> None:
    with pytest.raises(CannotImport, match=said):
        from_huggingface(processor(name, {}, backend=""))


def test_a_processor_that_flips_the_channels_is_imported_in_bgr() -> None:
    """Whether its config says so or not, as those of older versions, which never normalize."""
    made = processor("MobileViT", OF_SIZE_288, backend="Pil").to_dict()
    bgr = from_huggingface(made)
    assert bgr.color == "bgr"
    assert from_huggingface({key: value for key, value in made.items() if key != "do_flip_channel_order"}) == bgr
    old = {key: value for key, value in made.items() if key not in ("do_normalize", "image_mean", "image_std")}
    assert from_huggingface(old) == bgr
    assert from_huggingface({**made, "do_flip_channel_order": False}).color == "rgb"


@given(
    size_hw=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    edge=st.integers(1, 50),
    crop=st.tuples(st.integers(1, 50), st.integers(1, 50)),
    resample=st.sampled_from([0, 1, 2, 3]),
)
def test_any_size_and_crop(size_hw: tuple[int, int], edge: int, crop: tuple[int, int], resample: int) -> None:
    """Every pixel differs from its neighbours, so a crop that is off by one shows."""
    height, width = (min(side, edge) for side in crop)
    options = {"size": {"shortest_edge": edge}, "crop_size": {"height": height, "width": width}, "resample": resample}
    made = transformers.CLIPImageProcessorPil(**options, do_rescale=False, do_normalize=False)
    image = noise(*size_hw)
    for backend in ("reference", "dali"):
        (seen,) = compile(from_huggingface(made), backend=backend).run([encode(image, "PNG")])
        # Only DALI's bilinear (2) has a tolerance.
        most = 1 if (backend, resample) == ("dali", 2) else 0
        assert np.abs(np.subtract(seen, pixels_by(made)(image), dtype=np.int16)).max() <= most


def test_configs_of_other_versions_and_what_changes_no_picture() -> None:
    vit = {
        "do_normalize": True, "do_resize": True, "feature_extractor_type": "ViTFeatureExtractor", "resample": 2,
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "size": 224,
    }  # fmt: skip
    assert from_huggingface({**vit, "default_to_square": False}).geometry[0].mode == "shorter"
    new = processor("CLIP", {}, backend="Pil").to_dict()
    extractor = {"image_processor_type": None, "feature_extractor_type": "CLIPFeatureExtractor"}
    # What version 4 wrote beside.
    written = {"default_to_square": False, "data_format": "channels_first", "device": None, "return_tensors": None,
               "_valid_processor_keys": ["images", "do_resize"], "do_pad": None, "crop_pct": None}  # fmt: skip
    florence = {"auto_map": {"AutoProcessor": "processing_florence2.Florence2Processor"}, "image_seq_length": 577}
    for config, same in (
        (vit, processor("ViT", {}, backend="Pil")),
        ({**new, **extractor, "size": 224, "crop_size": 224}, new),
        ({**new, **written}, new),
        ({**new, **florence}, new),
        ({**DETR, "size": 800, "max_size": 1333}, BOUNDED),
    ):
        assert from_huggingface(config) == from_huggingface(same)
    assert "size depends on the image" in " ".join(import_source(f"{__name__}:BOUNDED").notes)


def test_files_and_folders(tmp_path: Path) -> None:
    made = processor("CLIP", {}, backend="Pil")
    (file,) = made.save_pretrained(tmp_path)
    definition = from_huggingface(made)
    assert from_huggingface(tmp_path) == from_huggingface(file) == from_huggingface(Path(file)) == definition
    # Processors of text and images hold one for images.
    both = {"image_processor": made.to_dict(), "processor_class": "CLIPProcessor"}
    (tmp_path / "both.json").write_text(json.dumps(both))
    assert from_huggingface(tmp_path / "both.json") == definition


@pytest.mark.parametrize(
    ("network", "said"),
    [
        ({"model_type": "llava", "image_aspect_ratio": "pad"}, "image_aspect_ratio: pad"),
        ({"image_aspect_ratio": "anyres_max_9", "image_grid_pinpoints": [[336, 672]]}, "image_aspect_ratio: anyres"),
        ({"model_type": "internvl", "dynamic_image_size": True, "max_dynamic_patch": 12}, "dynamic_image_size: True"),
        ({"model_type": "minicpmv", "slice_mode": True}, "slice_mode: True"),
        ({"image_aspect_ratio": None, "max_dynamic_patch": 1, "use_thumbnail": False}, ""),
        ({"image_aspect_ratio": "square", "image_grid_pinpoints": []}, ""),
    ],
)
def test_a_network_that_prepares_pictures_itself_is_refused(network: dict[str, Any], said: str, tmp_path: Path) -> None:
    processor("CLIP", {}, backend="Pil").save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(network))
    for read in (from_huggingface, lambda folder: import_source(str(folder))):
        if not said:
            read(tmp_path)
            continue
        with pytest.raises(CannotImport, match=f"the config.json beside it says {said}"):
            read(tmp_path)


VIT = {
    "image_processor_type": "ViTImageProcessor", "do_resize": True, "size": {"height": 24, "width": 24},
    "resample": 2, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": [0, 0, 0],
    "image_std": [1, 1, 1],
}  # fmt: skip
CLIP = {**VIT, "image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 24}, "do_center_crop": True,
        "crop_size": {"height": 24, "width": 24}}  # fmt: skip
DETR = {**VIT, "image_processor_type": "DetrImageProcessor", "do_pad": True, "format": "coco_detection"}
BOUNDED = {**DETR, "size": {"shortest_edge": 800, "longest_edge": 1333}}
YOLOS = {**DETR, "image_processor_type": "YolosImageProcessor"}


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({**VIT, "image_processor_type": None}, ["does not say whose", "image_processor_type"]),
        ({**VIT, "image_processor_type": "MyViTImageProcessor"}, ["MyViTImageProcessor", "ViTImageProcessor"]),
        ({**VIT, "image_processor_type": "Owlv2ImageProcessor"}, ["Owlv2ImageProcessor computes", "nearest", "255"]),
        ({**YOLOS, "size": {"shortest_edge": 800, "longest_edge": 1333}},
         ["size is {'shortest_edge': 800, 'longest_edge': 1333}", "exact are height and width", "{'height': 800"]),
        ({**DETR, "size": {"shortest_edge": 800}}, ["exact are shortest_edge with longest_edge, or height and width"]),
        ({**DETR, "size": {"shortest_edge": 80, "longest_edge": 60}}, ["max_size must be at least size 80, got 60"]),
        ({**DETR, "size": 800}, ["size is 800"]),
        ({**DETR, "pad_size": {"longest_edge": 32}}, ["pad_size is", "height and width"]),
        ({**VIT, "pad_size": {"height": 32, "width": 32}}, ["pad_size is"]),
        ({**DETR, "image_processor_type": "RfDetrImageProcessor", "resample": 3}, ["without antialiasing"]),
        ({**VIT, "auto_map": {"AutoProcessor": "x.Y", "AutoImageProcessor": "x.Z"}}, ["auto_map", "code"]),
        ({**VIT, "resample": 4}, ["resample", "'box'"]),
        ({**VIT, "resample": 9}, ["resample is 9"]),
        ({**VIT, "resample": None}, ["does not state resample", "version"]),
        ({**VIT, "image_std": None}, ["does not state image_std"]),
        ({**VIT, "image_mean": [0, 0]}, ["image_mean has 2 values"]),
        ({**VIT, "size": {"shortest_edge": 8, "longest_edge": 9}}, ["longest_edge", "DetrImageProcessor"]),
        ({**VIT, "image_processor_type": "SamImageProcessor"}, ["longest_edge alone"]),
        ({**VIT, "size": "large"}, ["size is 'large'"]),
        ({**VIT, "do_flip_channel_order": True}, ["do_flip_channel_order"]),
        ({**VIT, "do_center_crop": True}, ["do_center_crop", "version 5"]),
        ({**VIT, "data_format": "channels_last"}, ["channels_last"]),
        ({**VIT, "rescale_factor": 0}, ["rescale_factor is 0"]),
        ({**CLIP, "do_center_crop": None}, ["does not state do_center_crop"]),
        ({**CLIP, "crop_size": {"height": 24, "width": 25}}, ["crop_size 24x25", "resize to at least"]),
        ({**CLIP, "do_resize": False}, ["crop_size 24x24 may be larger"]),
        ({**CLIP, "crop_size": {"shortest_edge": 24}}, ["crop_size", "height and width"]),
        ({**VIT, "image_processor_type": "ConvNextImageProcessor"}, ["shortest_edge only"]),
        ({**VIT, "size": 20000}, ["Resize size", "16384", "20000"]),
    ],
)  # fmt: skip
def test_what_is_not_exact_is_refused_by_name(config: dict[str, Any], named: list[str]) -> None:
    assert_refused(named, from_huggingface, config)


def test_files_that_are_no_configs_are_refused(tmp_path: Path) -> None:
    for text, reason in (
        ("[1]", "got list"),
        ("size: 224", "not JSON"),
        ("[" * 100_000, "nests more than 32"),
        ('{"size": ' + "[" * 500 + "]" * 500 + "}", "nests more than 32"),
        ('{"size": ' + "9" * 5000 + "}", "not JSON"),
    ):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(CannotImport, match=reason):
            from_huggingface(tmp_path / "bad.json")
    (tmp_path / "large.json").touch()
    os.truncate(tmp_path / "large.json", 30 << 30)
    for name, reason in (("none.json", "No such file"), ("large.json", "it has 32212254720 bytes")):
        with pytest.raises(CannotImport, match=reason):
            from_huggingface(tmp_path / name)
