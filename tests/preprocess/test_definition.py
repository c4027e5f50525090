"""The definition is a value: written in any form it is the same, and what makes no sense is refused by name."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
import yaml
from definition_strategies import definitions
from definitions import IMAGENET, chain
from hypothesis import given
from image_files import encode
from pydantic import ValidationError
from sample_images import photo

from onestream.preprocess import (
    CannotCompile,
    CenterCrop,
    Decode,
    Definition,
    Letterbox,
    Normalize,
    Output,
    Pad,
    Resize,
    TensorSpec,
    Tiles,
    compile,
    compile_from_picture,
    first_difference,
)
from onestream.preprocess.interop.to_torchvision import to_torchvision
from onestream.preprocess.operations import Patches

REST = (Resize(mode="shorter", size=256), CenterCrop(size=(224, 224)), IMAGENET)
CLASSIFY = chain(*REST)


@given(definitions(one_fill=False))
def test_json_and_yaml_round_trip_to_an_equal_definition(definition: Definition) -> None:
    for again in (
        Definition.from_json(definition.canonical_json()),
        Definition.from_json(definition.model_dump_json()),
        Definition.from_yaml(definition.to_yaml()),
        Definition.from_yaml(definition.canonical_json()),
    ):
        assert again == definition
        assert hash(again) == hash(definition)
        assert again.digest == definition.digest
        assert first_difference(again, definition) == ""


def test_the_digest_does_not_change_between_versions() -> None:
    """Models in the field carry digests: this one may change only with the meaning of a definition."""
    assert CLASSIFY.digest == "082a0281534df81f22c3d0ce1ebd93db9f30547e594a837955de6011682aaa22"
    gray = chain(Resize(mode="shorter", size=256), color="gray")
    assert gray.digest == "74fa4c9813cf6abf6b670fd38ed8eb0b717b4a2efd370a2659f73ade92baf696"
    assert json.loads(CLASSIFY.canonical_json())["operations"][1] == OLD_RESIZE | {"mode": "shorter", "size": 256}


DECODE = {"op": "decode", "color": "rgb", "orientation": "apply", "alpha": "drop"}
OLD_RESIZE = {"op": "resize", "filter": "bilinear", "antialias": True, "rounding": "truncate"}


@pytest.mark.parametrize(
    ("plain", "with_newer_fields"),
    [
        ({"op": "center_crop", "size": [64, 64]}, {"rounding": "truncate"}),
        (OLD_RESIZE | {"mode": "longer", "size": 64}, {"multiple_of": 32, "enlarge": False}),
        (OLD_RESIZE | {"mode": "shorter", "size": 64}, {"max_size": 96, "shrink": False}),
        (OLD_RESIZE | {"mode": "shorter", "size": 64}, {"arithmetic": "aten"}),
        (
            {"op": "letterbox", "size": [64, 64], "value": 114, "align": "center", "filter": "bilinear",
             "rounding": "nearest"},
            {"arithmetic": "aten"},
        ),
        (DECODE, {"profile": "srgb"}),
        (DECODE, {"bits": 12}),
        (DECODE, {"frame": "error"}),
        ({"op": "pad", "size": [64, 64], "value": 0, "align": "center"}, {"multiple_of": [0, 8]}),
        ({"op": "normalize", "mean": [0.5] * 3, "std": [0.5] * 3, "scale": 255.0}, {"folded": True}),
    ],
)  # fmt: skip
def test_newer_fields_are_stated_only_where_they_matter(plain: dict[str, Any], with_newer_fields: Any) -> None:
    """Digests of definitions that were written before them stay."""
    before = [] if plain is DECODE else [DECODE]
    old, new = (
        Definition.model_validate({"operations": [*before, fields]}) for fields in (plain, plain | with_newer_fields)
    )
    assert json.loads(old.canonical_json())["operations"][len(before)] == plain
    assert json.loads(new.canonical_json())["operations"][len(before)] == plain | with_newer_fields
    assert old.digest != new.digest
    assert Definition.from_json(new.canonical_json()) == Definition.from_yaml(new.to_yaml()) == new


QWEN = """
operations:
  - {op: decode}
  - {op: resize, mode: area, multiple_of: 28, min_pixels: 3136, max_pixels: 100352, filter: bicubic}
  - {op: normalize, mean: [0.5, 0.5, 0.5], std: [0.25, 0.25, 0.25]}
  - {op: patches, patch: 14}
"""


@pytest.mark.parametrize(
    ("definition", "spec", "last"),
    [
        (Definition.from_yaml(QWEN), TensorSpec((None, 3 * 2 * 14 * 14), "float32", "ROWS"), "patches"),
        (chain(Tiles(size=8, mode="multiple"), IMAGENET), TensorSpec((None, 3, 8, 8), "float32", "TILES"), "tiles"),
    ],
)
def test_a_definition_of_patches_or_tiles_is_a_value_that_only_a_processor_executes(
    definition: Definition, spec: TensorSpec, last: str
) -> None:
    assert definition.output_spec == spec
    assert Definition.from_json(definition.canonical_json()) == Definition.from_yaml(definition.to_yaml()) == definition
    assert definition.pixels().output_spec == TensorSpec((None, None, 3), "uint8", "HWC")
    for refusing in (compile, compile_from_picture, to_torchvision):
        with pytest.raises(CannotCompile, match=rf"ends in {last}, which onestream\.preprocess\.patches\.Processor"):
            refusing(definition)


def test_rows_of_patches() -> None:
    """The tokens of a picture and the patches of each come from left to right, and their rows from top to bottom."""
    numbers = np.arange(2 * 4 * 3).reshape(2, 4, 3)
    assert Patches(patch=1).rows(numbers).tolist() == [
        [0, 0, 1, 1, 2, 2], [3, 3, 4, 4, 5, 5], [12, 12, 13, 13, 14, 14], [15, 15, 16, 16, 17, 17],
        [6, 6, 7, 7, 8, 8], [9, 9, 10, 10, 11, 11], [18, 18, 19, 19, 20, 20], [21, 21, 22, 22, 23, 23],
    ]  # fmt: skip
    in_lines = Patches(patch=1, temporal=1, order="raster", flatten=False).rows(numbers)
    assert in_lines.shape == (8, 3, 1, 1)
    assert in_lines[:, 0, 0, 0].tolist() == numbers[:, :, 0].ravel().tolist()
    assert Patches(patch=14).grid((56, 84)) == (1, 4, 6)
    assert Patches(patch=2, temporal=1, merge=1).rows(numbers[:, :, :1]).tolist() == [[0, 3, 12, 15], [6, 9, 18, 21]]


def test_a_definition_of_regions_is_a_value_like_others() -> None:
    written = """
    operations:
      - {op: region, of: find, color: gray, shape: quad, margin: -0.0, upright: 1.5, classes: [cat, 3, "4"]}
      - {op: resize, mode: height, size: [48, 3200], rounding: up}
      - {op: pad, size: [48, 320], multiple_of: [0, 8]}
    """
    definition = Definition.from_yaml(written)
    assert (definition.color, definition.source.classes) == ("gray", ("cat", 3, "4"))
    assert definition.output_spec == TensorSpec((1, 48, None), "float32", "CHW")
    assert Definition.from_json(definition.canonical_json()) == Definition.from_yaml(definition.to_yaml()) == definition
    assert Definition.from_yaml(written.replace("-0.0", "0")).digest == definition.digest
    assert definition.stages == ("region", "resize", "crop", "normalize")
    assert definition.stage("region").operations == (definition.source, Output(layout="NHWC", dtype="uint8"))
    with pytest.raises(ValueError, match="no stage 'decode' in a definition that begins with region"):
        definition.stage("decode")
    with pytest.raises(ValueError, match="no stage 'region' in a definition that begins with decode"):
        CLASSIFY.stage("region")
    assert CLASSIFY.stages == ("decode", "resize", "crop", "normalize")


@pytest.mark.parametrize(
    ("operations", "size"),
    [
        ([Resize(mode="longer", size=64, multiple_of=32)], (None, None)),
        ([Resize(mode="height", size=(48, 320))], (48, None)),
        ([Resize(mode="height", size=(48, 320)), Pad(size=(48, 320))], (48, 320)),
        ([Resize(mode="height", size=(48, 3200)), Pad(size=(48, 320), multiple_of=(0, 8))], (48, None)),
        ([Resize(mode="exact", size=(50, 30)), Pad(size=(48, 48), multiple_of=(32, 32))], (64, 48)),
        ([Pad(size=(48, 48), multiple_of=(32, 0))], (None, 48)),
    ],
)
def test_free_sides_are_none(operations: list[Any], size: tuple[int | None, int | None]) -> None:
    assert chain(*operations).output_spec.size_hw == size


def test_definitions_are_equal_however_they_are_written() -> None:
    written = """
    operations:
      - op: decode
      - {op: resize, size: 256, mode: shorter}
      - {size: [224, 224], op: center_crop}
      - {op: normalize, std: [0.229, 0.224, 0.225], mean: [0.485, 0.456, 0.406], scale: 255}
      - {op: output, dtype: float32}
    """
    assert Definition.from_yaml(written) == CLASSIFY
    assert Definition.from_yaml(written).digest == CLASSIFY.digest
    assert Definition(operations=(*CLASSIFY.operations,)) == CLASSIFY
    assert Definition(operations=[*CLASSIFY.operations[:-1]]) == CLASSIFY
    minus_zero, zero = (chain(Normalize(mean=(mean,), std=(1,)), color="gray") for mean in (-0.0, 0))
    assert minus_zero == zero
    assert minus_zero.digest == zero.digest
    for value, field in ((CLASSIFY, "operations"), (CLASSIFY.source, "color")):
        with pytest.raises(ValidationError):
            setattr(value, field, getattr(value, field))


AVERAGES = "dct_scaling averages pixels, so the next operation must be a resize"
BEGINNINGS = [
    ("", "operations / at least 1"),
    ("{op: blur}", "blur / 'decode' / 'letterbox'"),
    ("{op: decode, color: grb}", "color / 'rgb', 'bgr' or 'gray'"),
    ("{op: decode, gamma: 2}", "gamma / not permitted"),
    ("{op: resize, mode: exact, size: [2, 2]}", "operations[0] must be decode or region, got resize"),
    ("{op: region}", "region.of / required"),
    ("{op: region, of: find, shape: oval}", "shape / 'box' or 'quad'"),
    ("{op: region, of: find, margin: -0.1}", "margin / greater than or equal to 0"),
    ("{op: region, of: find, upright: 0.5}", "upright / greater than or equal to 1"),
    ("{op: region, of: find, min_score: 2}", "min_score / less than or equal to 1"),
    ("{op: region, of: find, classes: [1.5]}", "classes / valid integer"),
    ("{op: decode, color: gray}, {op: tiles, size: 8, mode: multiple}", "tiles have 3 channels, got 1"),
    ("{op: decode, dct_scaling: true}", AVERAGES),
    ("{op: decode, dct_scaling: true}, {op: center_crop, size: [9, 9]}, {op: resize, mode: longer, size: 9}", AVERAGES),
    ("{op: decode, dct_scaling: true}, {op: resize, mode: longer, size: 9, filter: nearest}", AVERAGES),
    ("{op: decode, dct_scaling: true}, {op: resize, mode: longer, size: 9, antialias: false}", AVERAGES),
    ("{op: decode, dct_scaling: true}, {op: letterbox, size: [9, 9], filter: nearest}", AVERAGES),
    ("{op: decode, dct_scaling: true}, {op: letterbox, size: [9, 9], arithmetic: aten}", "within a pixel / 'pil' only"),
    ("{op: decode, color: gray}, {op: letterbox, size: [9, 9], value: [1, 2, 3]}", "3 levels for 1 channel"),
]
NORMALIZE = "{op: normalize, mean: [0, 0, 0], std: [1, 1, 1]}"
AFTER_DECODE = [
    ("{op: decode}", "operations[1] / only decode"),
    ("{op: resize, mode: short, size: 2}", "mode / 'height', 'area' or 'patches'"),
    ("{op: resize, mode: shorter, size: [2, 2]}", "'shorter' / one side / (2, 2)"),
    ("{op: resize, mode: exact, size: 2}", "'exact' / [height, width] / got size 2"),
    ("{op: resize, mode: shorter, size: 0}", "size / greater than or equal to 1"),
    ("{op: resize, mode: shorter, size: 1, filter: box}", "filter / 'lanczos'"),
    (
        "{op: resize, mode: shorter, size: 1, antialias: false, filter: bicubic}",
        "antialias false / 'bilinear' only / 'bicubic'",
    ),
    ("{op: center_crop, size: [1, 1], rounding: up}", "rounding / 'nearest' or 'truncate'"),
    ("{op: center_crop, size: [1, 20000]}", "size / less than or equal to 16384"),
    ("{op: region, of: find}", "operations[1] / region must be the first operation"),
    ("{op: resize, mode: longer, size: 100, multiple_of: 32}", "multiple of multiple_of 32 / 100"),
    ("{op: resize, mode: fit, size: [64, 100], multiple_of: 32}", "multiple of multiple_of 32 / (64, 100)"),
    ("{op: resize, mode: height, size: [32, 64], multiple_of: 32}", "'height' takes no multiple_of / longer"),
    ("{op: resize, mode: exact, size: [32, 64], enlarge: false}", "'exact' takes no enlarge / fit"),
    ("{op: resize, mode: exact, size: [32, 64], shrink: false}", "'exact' takes no shrink / fit"),
    ("{op: resize, mode: longer, size: 32, max_size: 40}", "max_size / 'shorter' only / 'longer'"),
    ("{op: resize, mode: shorter, size: 32, max_size: 31}", "max_size / at least size 32 / got 31"),
    ("{op: resize, mode: shorter, size: 32, rounding: detr}", "'detr' / max_size"),
    ("{op: resize, mode: fit, size: [9, 9], enlarge: false, shrink: false}", "enlarge and shrink"),
    ("{op: resize, mode: shorter, size: 8, max_size: 9, multiple_of: 8}", "multiple of multiple_of 8 / max_size 9"),
    ("{op: resize, mode: height, size: 32}", "'height' / [height, width] / got size 32"),
    ("{op: resize, mode: area, size: 32}", "'area' takes min_pixels and max_pixels / got size 32"),
    ("{op: resize, mode: area, min_pixels: 9}", "'area' takes min_pixels and max_pixels / (9, None)"),
    ("{op: resize, mode: longer}", "'longer' takes size / got size None"),
    ("{op: resize, mode: longer, size: 9, max_pixels: 9}", "'longer' takes size / (None, 9)"),
    ("{op: resize, mode: area, min_pixels: 9, max_pixels: 8}", "at most max_pixels / (9, 8)"),
    ("{op: resize, mode: area, min_pixels: 9, max_pixels: 90, enlarge: false}", "'area' takes no enlarge / fit"),
    ("{op: resize, mode: shorter, size: 9, temporal: 2}", "temporal goes with mode 'area' only"),
    ("{op: resize, mode: patches, size: 9}", "'patches' takes max_patches / got size 9"),
    ("{op: center_crop, size: [8, 8]}, {op: patches, patch: 2, layout: THWC, flatten: false}", "'CTHW' only"),
    ("{op: center_crop, size: [8, 8]}, {op: patches, patch: 2, layout: image}", "takes temporal 1"),
    ("{op: patches, patch: 14}", "operations[1] patches / divide the sides / multiple_of 28"),
    (
        "{op: resize, mode: area, min_pixels: 9, max_pixels: 9, multiple_of: 14}, {op: patches, patch: 14}",
        "operations[2] patches / multiple_of 28",
    ),
    ("{op: center_crop, size: [8, 9]}, {op: patches, patch: 4}", "[2] patches / patch * merge 8 must divide / (8, 9)"),
    ("{op: patches, patch: 1}, {op: output}", "operations[1] patches must be the last"),
    ("{op: resize, mode: exact, size: [8, 8], filter: nearest-exact}", "goes with arithmetic 'aten' only"),
    (
        "{op: resize, mode: longer, size: 8, arithmetic: aten, antialias: false}",
        "antialias false goes with arithmetic 'pil' only",
    ),
    ("{op: resize, mode: longer, size: 8, arithmetic: opencv}", "'pil' or 'aten'"),
    ("{op: resize, mode: shorter, size: 8, rounding: even}", "'even' goes with mode 'longer' only"),
    ("{op: tiles, size: 8, mode: multiple}, {op: output}", "only normalize may follow tiles"),
    ("{op: tiles, size: 8, mode: multiple}, {op: resize, mode: shorter, size: 9}", "only normalize may follow"),
    ("{op: tiles, size: 8, mode: multiple, max_tiles: 3}", "max_tiles goes with mode 'aspect_ratio'"),
    ("{op: tiles, size: 8, mode: aspect_ratio}", "max_tiles goes with mode 'aspect_ratio'"),
    ("{op: tiles, size: 8, mode: aspect_ratio, min_tiles: 4, max_tiles: 3}", "min_tiles must be at most"),
    ("{op: tiles, size: 8, mode: resolutions}", "resolutions go with mode 'resolutions'"),
    ("{op: tiles, size: 8, mode: resolutions, resolutions: [[8, 12]]}", "multiples of size 8, got [8, 12]"),
    ("{op: tiles, size: 8, mode: multiple, filter: nearest-exact}", "goes with arithmetic 'aten'"),
    ("{op: pad, size: [1, 1], multiple_of: [0, 2000]}", "multiple_of / equal to 1024"),
    ("{op: resize, mode: height, size: [9, 9]}, {op: pad, size: [8, 9]}", "operations[2] pad / (8, 9) / (9, None)"),
    ("{op: pad, size: [1, 1], value: 256}", "value / less than or equal to 255"),
    ("{op: resize, mode: exact, size: [30, 30]}, {op: pad, size: [20, 40]}", "operations[2] pad / (20, 40) / (30, 30)"),
    ("{op: normalize, mean: [0], std: [1, 1, 1]}", "normalize.mean has 1 values / 3 channels"),
    ("{op: normalize, mean: [0, 0, 0], std: [1, 0, 1]}", "std must be above 0"),
    ("{op: normalize, mean: [0, 0, .nan], std: [1, 1, 1]}", "mean / finite"),
    ("{op: normalize, mean: [0, 0, 0], std: [1, 1, .inf]}", "std / finite"),
    ("{op: normalize, mean: [0, 0, 0], std: [1, 1, 1], scale: 0}", "scale / greater than 0"),
    (NORMALIZE + ", {op: center_crop, size: [1, 1]}", "operations[2] / before normalize"),
    (NORMALIZE + ", " + NORMALIZE, "operations[2] / once"),
    ("{op: output}, {op: center_crop, size: [1, 1]}", "output must be the last"),
    (NORMALIZE + ", {op: output, dtype: uint8}", "uint8 / float32 or float16"),
]


@pytest.mark.parametrize(
    ("operations", "named"), [*BEGINNINGS, *((f"{{op: decode}}, {rest}", named) for rest, named in AFTER_DECODE)]
)
def test_a_chain_that_makes_no_sense_is_refused_by_name(operations: str, named: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Definition.from_yaml(f"operations: [{operations}]")
    for text in named.split(" / "):
        assert text in str(caught.value)


def test_yaml_that_is_no_definition_is_refused() -> None:
    for text in ("just text", "[1, 2]", "operations: 3", "operation: []"):
        with pytest.raises(ValidationError):
            Definition.from_yaml(text)
    for text in ("a: [", ""):
        with pytest.raises(yaml.YAMLError):
            Definition.from_yaml(text)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (chain(*REST[:2], color="gray"), "operations[0].color: 'rgb' != 'gray'"),
        (chain(*REST, color="bgr"), "operations[0].color: 'rgb' != 'bgr'"),
        (chain(REST[-1]), "operations[1].op: 'resize' != 'normalize'"),
        (chain(Resize(mode="shorter", size=232), *REST[1:]), "operations[1].size: 256 != 232"),
        (chain(REST[0], CenterCrop(size=(224, 192)), IMAGENET), "operations[2].size[1]: 224 != 192"),
        (chain(REST[0], Pad(size=(256, 256)), IMAGENET), "operations[2].op: 'center_crop' != 'pad'"),
        (chain(*REST, Output(dtype="float16")), "operations[4].dtype: 'float32' != 'float16'"),
        (chain(*REST, Output()), ""),
    ],
)
def test_first_difference_names_field_and_both_values(other: Definition, expected: str) -> None:
    assert first_difference(CLASSIFY, other) == expected


def test_pixels_stop_at_the_network_door() -> None:
    pixels = CLASSIFY.pixels()
    assert pixels.output_spec == TensorSpec((224, 224, 3), "uint8", "HWC")
    assert pixels.normalize is None
    assert pixels.pixels() == pixels
    (whole,), (door,) = (compile(one).run([encode(photo("coffee"), "JPEG")]) for one in (CLASSIFY, pixels))
    expected = (door.astype(np.float32) / 255 - np.float32(IMAGENET.mean)) / np.float32(IMAGENET.std)
    np.testing.assert_array_equal(whole, expected.transpose(2, 0, 1))


def test_stages_cut_the_chain() -> None:
    crop = CenterCrop(size=(8, 8))
    whole = Letterbox(size=(64, 96), value=7, align="top_left", filter="bicubic", rounding="truncate")
    letterbox = chain(whole, crop, color="gray")
    assert letterbox.stage("decode").geometry == ()
    assert letterbox.stage("decode").source == Decode(color="gray")
    (resize,) = letterbox.stage("resize").geometry
    assert resize == Resize(mode="fit", size=(64, 96), filter="bicubic", rounding="truncate")
    assert letterbox.stage("crop").geometry == (resize, Pad(size=(64, 96), value=7, align="top_left"), crop)
    assert letterbox.stage("normalize") is letterbox
    for name in ("decode", "resize", "crop"):
        spec = letterbox.stage(name).output_spec
        assert (spec.dtype, spec.layout) == ("uint8", "HWC")
    crop_only = chain(crop)
    assert crop_only.stage("resize") == crop_only.stage("decode")


def test_what_was_computed_of_a_definition_stays_with_it() -> None:
    known = Definition(operations=CLASSIFY.operations)
    assert known.geometry is known.geometry
    copied = known.model_copy(update={"operations": known.operations[:1]})
    assert (copied.geometry, copied.output_spec.shape) == ((), (3, None, None))
    assert copied.digest != known.digest
    for same in (pickle.loads(pickle.dumps(known)), known.model_copy(), Definition(operations=CLASSIFY.operations)):
        assert (same, hash(same), same.digest, same.geometry) == (known, hash(known), known.digest, known.geometry)
