"""The DALI graph of varied images, as a GPU trains with it, on a CPU: the same boxes, flips and colours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from definitions import in_levels
from image_files import encode
from sample_images import PHOTOS, photo, portrait
from varied_tolerances import Varied, varied_tolerance

from onestream.preprocess import CannotCompile, CenterCrop, Decode, Definition, Normalize, Resize, compile
from onestream.preprocess.backends.base import Sample
from onestream.preprocess.backends.dali_graph import (
    VARIED_INPUTS,
    build_varied_graph,
    external_inputs,
    new_pipeline,
    varied_values,
)
from onestream.preprocess.geometry import Window
from onestream.preprocess.training.augmentation import Augmentation
from onestream.preprocess.variation import Variation, Warp

SIDES = (96, 112)
RGB, BGR, GRAY = (
    in_levels(Resize(mode="shorter", size=128), CenterCrop(size=SIDES), color=color) for color in ("rgb", "bgr", "gray")
)
IMAGES = [photo(name) for name in PHOTOS] + [portrait("coffee")]
FILES = [encode(image, "JPEG", quality=90) for image in IMAGES]
PLAIN = Augmentation()
STRONG = Augmentation(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)
MIRRORED = Augmentation([{"op": "box"}, {"op": "flip"}, {"op": "flip", "axis": "vertical"}])


def variations(augmentation: Augmentation, definition: Definition) -> list[Variation]:
    return [
        augmentation.draw((image.height, image.width), seed=3, epoch=0, index=index, definition=definition)
        for index, image in enumerate(IMAGES)
    ]


def run_graph(definition: Definition, drawn: list[Variation]) -> list[Sample]:
    pipeline = new_pipeline(device="cpu", max_batch_size=len(FILES), threads=1)
    with pipeline:
        pipeline.set_outputs(build_varied_graph(external_inputs(VARIED_INPUTS), definition, device="cpu"))
    pipeline.build()
    columns: dict[str, list[Sample]] = {name: [] for name in VARIED_INPUTS}
    for file, variation in zip(FILES, drawn, strict=True):
        columns["encoded"].append(np.frombuffer(file, np.uint8))
        for name, value in varied_values(variation, definition.output_spec.channels).items():
            columns[name].append(value)
    (output,) = pipeline.run(**columns)
    return [np.array(output.at(index)) for index in range(len(FILES))]


def reference(definition: Definition, drawn: list[Variation]) -> list[Sample]:
    varies = [lambda _, one=variation: one for variation in drawn]
    samples = compile(definition, varied=True).run(FILES, varies)
    return [sample for sample in samples if isinstance(sample, np.ndarray)]


@pytest.mark.parametrize(
    ("definition", "augmentation", "of"),
    [
        (RGB, PLAIN, "box"),
        (RGB, MIRRORED, "box"),
        (RGB, STRONG, "colours"),
        (BGR, PLAIN, "box"),
        (BGR, STRONG, "colours"),
        (GRAY, PLAIN, "gray box"),
        (GRAY, STRONG, "colours"),
    ],
)
def test_the_graph_is_near_the_reference(definition: Definition, augmentation: Augmentation, of: Varied) -> None:
    drawn = variations(augmentation, definition)
    assert {variation.flip for variation in drawn} == {False, True}
    assert {variation.upside_down for variation in drawn} == ({False, True} if augmentation is MIRRORED else {False})
    expected, seen = reference(definition, drawn), run_graph(definition, drawn)
    assert len(expected) == len(seen) == len(FILES)
    for right, one in zip(expected, seen, strict=True):
        assert one.shape == right.shape
        assert varied_tolerance("dali", of).allows(one[1:-1, 1:-1], right[1:-1, 1:-1])
        if of != "colours":
            assert varied_tolerance("dali", "border").allows(one, right)


def test_normalized_output_has_the_networks_layout() -> None:
    definition = Definition(
        operations=(*RGB.operations[:3], Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)))
    )
    drawn = variations(PLAIN, definition)
    for right, one in zip(reference(definition, drawn), run_graph(definition, drawn), strict=True):
        assert one.shape == right.shape == (3, *SIDES)
        assert one.dtype == right.dtype == np.float32
        # One level, divided by 255 and the smallest standard deviation.
        assert np.abs(one - right)[:, 1:-1, 1:-1].max() < 1.01 / 255 / 0.224


@pytest.mark.parametrize(
    ("resize", "reason"),
    [
        ({"filter": "lanczos"}, "filter 'lanczos' and arithmetic 'pil' exactly"),
        ({"antialias": False}, "antialias false and arithmetic 'pil' exactly"),
        ({"arithmetic": "aten"}, "arithmetic 'aten' exactly"),
    ],
)
def test_a_resize_without_an_exact_form_is_refused(resize: dict[str, Any], reason: str) -> None:
    definition = Definition(operations=(Decode(), Resize(mode="exact", size=SIDES, **resize)))
    with pytest.raises(CannotCompile, match=reason):
        run_graph(definition, variations(PLAIN, RGB))


@pytest.mark.parametrize("more", [{"warp": Warp(moved=(((1, 0), (0, 1)),) * 2)}, {"canvas_hw": SIDES}])
def test_a_warp_and_a_part_of_a_canvas_are_refused(more: dict[str, Any]) -> None:
    variation = Variation.of_box(Window(1, 2, 9, 8)).model_copy(update=more)
    with pytest.raises(CannotCompile, match="dali on a GPU varies images by a box on the whole canvas"):
        varied_values(variation, 3)


def test_variations_are_asked_for_when_compiling() -> None:
    vary = [lambda _: variations(PLAIN, RGB)[0]]
    with pytest.raises(ValueError, match=r"compile\(varied=True\)"):
        compile(RGB, backend="dali").run(FILES[:1], vary)
    with pytest.raises(ValueError, match=r"compile\(varied=True\)"):
        compile(RGB, backend="dali", varied=True).run(FILES[:1])
    with pytest.raises(CannotCompile, match="images cannot vary: the definition's output size depends on the image"):
        compile(RGB.stage("resize"), varied=True)
