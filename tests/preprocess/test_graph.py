"""The whole DALI graph, as a GPU or a training loader runs it, on a CPU: the same geometry, nearly the same levels.

Its triangle filter repeats border pixels where Pillow renormalizes, so that the outermost pixels of an uncropped image
differ by more. The graph of varied images has the same boxes, flips and colours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from definitions import IMAGENET, chain, in_levels
from image_files import encode, jpeg_exif, jpeg_with_segments
from nvidia.dali import fn
from same_samples import assert_same
from sample_images import PHOTOS, photo, portrait
from test_parity import CLASSIFY, OPENCV, VARIANTS
from varied_tolerances import Varied, varied_tolerance

from onestream.preprocess import CannotCompile, CenterCrop, Definition, Letterbox, Limits, Output, Pad, Resize, compile
from onestream.preprocess.backends.base import Device, Sample
from onestream.preprocess.backends.dali_graph import (
    VARIED_INPUTS,
    build_graph,
    build_varied_graph,
    external_inputs,
    graph_inputs,
    graph_values,
    new_pipeline,
    varied_values,
)
from onestream.preprocess.geometry import Window
from onestream.preprocess.plan import Planner
from onestream.preprocess.tolerances import compare
from onestream.preprocess.training.augmentation import Augmentation
from onestream.preprocess.variation import Variation, Warp

CUT = (Resize(mode="shorter", size=140), CenterCrop(size=(112, 96)))
WITHIN_ONE_LEVEL = {
    "classify": CLASSIFY,
    "enlarged": chain(Resize(mode="shorter", size=701), CenterCrop(size=(300, 300)), Output(dtype="float16")),
    "no resize": in_levels(CenterCrop(size=(131, 160))),
    "no resize, larger crop": chain(CenterCrop(size=(400, 160)), Output(dtype="uint8")),
    "bgr": chain(*CUT, OPENCV, color="bgr"),
    "float16": chain(*CUT, IMAGENET, Output(layout="NHWC", dtype="float16")),
}
ONE_MORE_FOR_LUMA = {"gray": VARIANTS["classify, gray, NHWC"]}
TO_THE_BORDER = {
    "shorter": in_levels(Resize(mode="shorter", size=128)),
    "letterbox": in_levels(Letterbox(size=(160, 128))),
    "top left": in_levels(Letterbox(size=(96, 160), align="top_left", value=3)),
    "padded": in_levels(Resize(mode="longer", size=99), Pad(size=(100, 120), value=7)),
    "multiples": in_levels(Resize(mode="longer", size=128, multiple_of=32)),
    "height": in_levels(Resize(mode="height", size=(96, 100), rounding="up")),
}
IMAGES = [photo(name) for name in PHOTOS] + [portrait("coffee")]
FILES = [encode(image, "JPEG", quality=90) for image in IMAGES]


@pytest.fixture
def gpu_s_decoder_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lets a graph for a GPU run on the CPU; notes the decoders that it asks for."""
    asked: list[str] = []

    def stand_in(name: str) -> Callable[..., Any]:
        real = getattr(fn.decoders, name)

        def decode(*arguments: Any, device: str, **options: Any) -> Any:
            asked.append(f"{name} on {device}")
            return real(*arguments, device="cpu", **options)

        return decode

    for name in ("image", "image_slice"):
        monkeypatch.setattr(fn.decoders, name, stand_in(name))
    return asked


def run_on_cpu(build: Callable[[Any], Any], used: Sequence[str], rows: Sequence[dict[str, Sample]]) -> list[Sample]:
    """What a graph gives, built of its inputs and run on a row of their values for each picture."""
    pipeline = new_pipeline(device="cpu", max_batch_size=len(rows), threads=1)
    with pipeline:
        pipeline.set_outputs(build(external_inputs(used)))
    pipeline.build()
    (output,) = pipeline.run(**{name: [values[name] for values in rows] for name in used})
    return [np.array(output.at(index)) for index in range(len(rows))]


def run_graph(definition: Definition, files: list[bytes], *, device: Device = "cpu") -> list[Sample]:
    plans = [Planner(definition)(Limits().check(file).oriented_hw) for file in files]
    rows = [
        {"encoded": np.frombuffer(file, np.uint8), **graph_values(plan)}
        for file, plan in zip(files, plans, strict=True)
    ]
    return run_on_cpu(partial(build_graph, definition=definition, device=device), graph_inputs(definition), rows)


def both(definition: Definition) -> list[tuple[Sample, Sample]]:
    return list(zip(compile(definition).run(FILES), run_graph(definition, FILES), strict=True))


def test_a_border_whose_size_depends_on_the_image_is_refused_by_name() -> None:
    free = chain(Resize(mode="height", size=(48, 900)), Pad(size=(48, 32), multiple_of=(0, 8)))
    with pytest.raises(CannotCompile, match="cannot pad to a size that depends on the image in a graph; cvcuda can"):
        run_graph(free, FILES[:1])


@pytest.mark.parametrize("name", WITHIN_ONE_LEVEL | ONE_MORE_FOR_LUMA)
def test_inside_the_image_the_graph_is_within_a_level(name: str) -> None:
    definition = (WITHIN_ONE_LEVEL | ONE_MORE_FOR_LUMA)[name]
    for reference, seen in both(definition):
        comparison = compare(reference, seen, definition=definition, stage="normalize", backend="dali")
        assert comparison.max <= (1 if name in WITHIN_ONE_LEVEL else 2)
        assert comparison.share_above_one < 0.001


@pytest.mark.parametrize("name", TO_THE_BORDER)
def test_at_the_border_only_the_outermost_pixels_differ_by_more(name: str) -> None:
    definition = TO_THE_BORDER[name]
    for image, (reference, seen) in zip(IMAGES, both(definition), strict=True):
        assert seen.shape == reference.shape
        difference = np.abs(seen.astype(int) - reference.astype(int)).max(axis=2)
        assert difference.max() <= 20
        plan = Planner(definition)((image.height, image.width))
        inside = difference[Window(*plan.offset, *plan.window.size_hw).slices]
        assert inside.sum() == difference.sum()
        assert inside[1:-1, 1:-1].max() <= 1


@pytest.mark.parametrize("name", WITHIN_ONE_LEVEL | TO_THE_BORDER)
def test_a_gpu_decodes_whole_images_and_cuts_what_the_cpu_decodes(
    name: str, gpu_s_decoder_on_the_cpu: list[str]
) -> None:
    """Its decoders make mistakes where they decode a part of an image (``decode_part``)."""
    definition = (WITHIN_ONE_LEVEL | TO_THE_BORDER)[name]
    files = [*FILES, jpeg_with_segments(FILES[0], jpeg_exif(6))]
    parts = run_graph(definition, files)
    whole = run_graph(definition, files, device="gpu")
    assert gpu_s_decoder_on_the_cpu == ["image_slice on cpu", "image on mixed"]
    assert_same(parts, whole)


SIDES = (96, 112)
RGB, BGR, GRAY = (
    in_levels(Resize(mode="shorter", size=128), CenterCrop(size=SIDES), color=color) for color in ("rgb", "bgr", "gray")
)
PLAIN = Augmentation()
STRONG = Augmentation(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)
MIRRORED = Augmentation([{"op": "box"}, {"op": "flip"}, {"op": "flip", "axis": "vertical"}])


def variations(augmentation: Augmentation, definition: Definition) -> list[Variation]:
    return [
        augmentation.draw((image.height, image.width), seed=3, epoch=0, index=index, definition=definition)
        for index, image in enumerate(IMAGES)
    ]


def run_varied_graph(definition: Definition, drawn: list[Variation]) -> list[Sample]:
    channels = definition.output_spec.channels
    rows = [
        {"encoded": np.frombuffer(file, np.uint8), **varied_values(variation, channels)}
        for file, variation in zip(FILES, drawn, strict=True)
    ]
    return run_on_cpu(partial(build_varied_graph, definition=definition, device="cpu"), VARIED_INPUTS, rows)


def reference(definition: Definition, drawn: list[Variation]) -> list[Sample]:
    varies = [lambda _, one=variation: one for variation in drawn]
    samples = compile(definition, varied=True).run(FILES, varies)
    return [sample for sample in samples if isinstance(sample, np.ndarray)]


@pytest.mark.parametrize(
    ("definition", "augmentation", "of"),
    [
        *((definition, STRONG, "colours") for definition in (RGB, BGR, GRAY)),
        (RGB, PLAIN, "box"),
        (RGB, MIRRORED, "box"),
        (BGR, PLAIN, "box"),
        (GRAY, PLAIN, "gray box"),
    ],
)
def test_the_graph_is_near_the_reference(definition: Definition, augmentation: Augmentation, of: Varied) -> None:
    drawn = variations(augmentation, definition)
    assert {variation.flip for variation in drawn} == {False, True}
    assert {variation.upside_down for variation in drawn} == ({False, True} if augmentation is MIRRORED else {False})
    expected, seen = reference(definition, drawn), run_varied_graph(definition, drawn)
    assert len(expected) == len(seen) == len(FILES)
    for right, one in zip(expected, seen, strict=True):
        assert one.shape == right.shape
        assert varied_tolerance("dali", of).allows(one[1:-1, 1:-1], right[1:-1, 1:-1])
        if of != "colours":
            assert varied_tolerance("dali", "border").allows(one, right)


def test_normalized_output_has_the_networks_layout() -> None:
    definition = chain(*RGB.geometry, IMAGENET)
    drawn = variations(PLAIN, definition)
    for right, one in zip(reference(definition, drawn), run_varied_graph(definition, drawn), strict=True):
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
    definition = chain(Resize(mode="exact", size=SIDES, **resize))
    with pytest.raises(CannotCompile, match=reason):
        run_varied_graph(definition, variations(PLAIN, RGB))


@pytest.mark.parametrize("more", [{"warp": Warp(moved=(((1, 0), (0, 1)),) * 2)}, {"canvas_hw": SIDES}])
def test_a_warp_and_a_part_of_a_canvas_are_refused(more: dict[str, Any]) -> None:
    variation = Variation.of_box(Window(1, 2, 9, 8)).model_copy(update=more)
    with pytest.raises(CannotCompile, match="dali on a GPU varies images by a box on the whole canvas"):
        varied_values(variation, 3)


def test_variations_are_asked_for_when_compiling() -> None:
    vary = [lambda _: variations(PLAIN, RGB)[0]]
    for varied, given in ((False, vary), (True, None)):
        with pytest.raises(ValueError, match=r"compile\(varied=True\)"):
            compile(RGB, backend="dali", varied=varied).run(FILES[:1], given)
    with pytest.raises(CannotCompile, match="images cannot vary: the definition's output size depends on the image"):
        compile(RGB.stage("resize"), varied=True)
