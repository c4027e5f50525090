"""The whole DALI graph, as a GPU or a training loader runs it, on a CPU: the same geometry, nearly the same levels.

Its triangle filter repeats border pixels where Pillow renormalizes, so that the outermost pixels of an uncropped image
differ by more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from image_files import encode
from nvidia.dali import Pipeline, fn
from PIL import Image
from sample_images import PHOTOS, photo, portrait

from onestream.preprocess import (
    CannotCompile,
    CenterCrop,
    Decode,
    Definition,
    Letterbox,
    Limits,
    Normalize,
    Output,
    Pad,
    Resize,
    compile,
)
from onestream.preprocess.backends.base import Device, Sample
from onestream.preprocess.backends.dali_graph import build_graph, external_inputs, graph_inputs, graph_values
from onestream.preprocess.plan import Planner
from onestream.preprocess.tolerances import compare

IMAGENET = Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))

WITHIN_ONE_LEVEL = {
    "classify": [Decode(), Resize(mode="shorter", size=256), CenterCrop(size=(224, 224)), IMAGENET],
    "enlarged": [Decode(), Resize(mode="shorter", size=701), CenterCrop(size=(300, 300)), Output(dtype="float16")],
    "no resize": [Decode(), CenterCrop(size=(131, 160)), Output(layout="NHWC", dtype="uint8")],
    "no resize, larger crop": [Decode(), CenterCrop(size=(400, 160)), Output(dtype="uint8")],
    "bgr": [Decode(color="bgr"), Resize(mode="shorter", size=140), CenterCrop(size=(112, 96)),
            Normalize(mean=(103.53, 116.28, 123.675), std=(57.375, 57.12, 58.395), scale=1)],
    "float16": [Decode(), Resize(mode="shorter", size=140), CenterCrop(size=(112, 96)), IMAGENET,
                Output(layout="NHWC", dtype="float16")],
}  # fmt: skip
ONE_MORE_FOR_LUMA = {
    "gray": [Decode(color="gray"), Resize(mode="shorter", size=128), CenterCrop(size=(112, 96)),
             Normalize(mean=(0.4,), std=(0.25,)), Output(layout="NHWC")],
}  # fmt: skip
TO_THE_BORDER = {
    "shorter": [Decode(), Resize(mode="shorter", size=128), Output(layout="NHWC", dtype="uint8")],
    "letterbox": [Decode(), Letterbox(size=(160, 128)), Output(layout="NHWC", dtype="uint8")],
    "top left": [Decode(), Letterbox(size=(96, 160), align="top_left", value=3), Output(layout="NHWC", dtype="uint8")],
    "padded": [Decode(), Resize(mode="longer", size=99), Pad(size=(100, 120), value=7),
               Output(layout="NHWC", dtype="uint8")],
    "multiples": [Decode(), Resize(mode="longer", size=128, multiple_of=32), Output(layout="NHWC", dtype="uint8")],
    "height": [Decode(), Resize(mode="height", size=(96, 100), rounding="up"), Output(layout="NHWC", dtype="uint8")],
}  # fmt: skip
IMAGES = [photo(name) for name in PHOTOS] + [portrait("coffee")]


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


def run_graph(definition: Definition, files: list[bytes], *, device: Device = "cpu") -> list[Sample]:
    used = graph_inputs(definition)
    pipeline = Pipeline(batch_size=len(files), num_threads=1, device_id=None, prefetch_queue_depth=1)
    with pipeline:
        pipeline.set_outputs(build_graph(external_inputs(used), definition, device=device))
    pipeline.build()
    columns: dict[str, list[Sample]] = {name: [] for name in used}
    for file in files:
        plan = Planner(definition)(Limits().check(file).oriented_hw)
        values = {"encoded": np.frombuffer(file, np.uint8), **graph_values(plan)}
        for name in used:
            columns[name].append(values[name])
    (output,) = pipeline.run(**columns)
    return [np.array(output.at(index)) for index in range(len(files))]


def both(definition: Definition) -> list[tuple[Sample, Sample]]:
    files = [encode(image, "JPEG", quality=90) for image in IMAGES]
    return list(zip(compile(definition).run(files), run_graph(definition, files), strict=True))


def test_a_border_whose_size_depends_on_the_image_is_refused_by_name() -> None:
    free = Definition(
        operations=[Decode(), Resize(mode="height", size=(48, 900)), Pad(size=(48, 32), multiple_of=(0, 8))]
    )
    with pytest.raises(CannotCompile, match="cannot pad to a size that depends on the image in a graph; cvcuda can"):
        run_graph(free, [encode(IMAGES[0], "JPEG")])


@pytest.mark.parametrize("name", WITHIN_ONE_LEVEL | ONE_MORE_FOR_LUMA)
def test_inside_the_image_the_graph_is_within_a_level(name: str) -> None:
    definition = Definition(operations=(WITHIN_ONE_LEVEL | ONE_MORE_FOR_LUMA)[name])
    for reference, seen in both(definition):
        comparison = compare(reference, seen, definition=definition, stage="normalize", backend="dali")
        assert comparison.max <= (1 if name in WITHIN_ONE_LEVEL else 2)
        assert comparison.share_above_one < 0.001


@pytest.mark.parametrize("name", TO_THE_BORDER)
def test_at_the_border_only_the_outermost_pixels_differ_by_more(name: str) -> None:
    definition = Definition(operations=TO_THE_BORDER[name])
    for image, (reference, seen) in zip(IMAGES, both(definition), strict=True):
        assert seen.shape == reference.shape
        difference = np.abs(seen.astype(int) - reference.astype(int)).max(axis=2)
        assert difference.max() <= 20
        placement = Planner(definition)((image.height, image.width))
        (top, left), window = placement.offset, placement.window
        inner = difference[top + 1 : top + window.height - 1, left + 1 : left + window.width - 1]
        assert inner.max() <= 1
        outside = np.ones(difference.shape, bool)
        outside[top : top + window.height, left : left + window.width] = False
        assert not difference[outside].any()


@pytest.mark.parametrize("name", WITHIN_ONE_LEVEL | TO_THE_BORDER)
def test_a_gpu_decodes_whole_images_and_cuts_what_the_cpu_decodes(
    name: str, gpu_s_decoder_on_the_cpu: list[str]
) -> None:
    """Its decoders make mistakes where they decode a part of an image (``decode_part``)."""
    definition = Definition(operations=(WITHIN_ONE_LEVEL | TO_THE_BORDER)[name])
    exif = Image.Exif()
    exif[0x0112] = 6
    files = [encode(image, "JPEG", quality=90) for image in IMAGES] + [encode(IMAGES[0], "JPEG", exif=exif)]
    parts = run_graph(definition, files)
    whole = run_graph(definition, files, device="gpu")
    assert gpu_s_decoder_on_the_cpu == ["image_slice on cpu", "image on mixed"]
    for one, other in zip(parts, whole, strict=True):
        np.testing.assert_array_equal(one, other)
