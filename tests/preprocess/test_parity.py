"""DALI against the reference: every format and stage within the tolerance table, geometry equal to the pixel."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from definition_strategies import SIZES, definitions
from hypothesis import given
from hypothesis import strategies as st
from image_files import encode, exif_block, jpeg_exif, jpeg_with_segments, png_of, webp_file
from oriented_files import JPEG, LOSSY, NOT_EXIF, ORIENTED, PIXELS, UNCLEAR_EXIF
from PIL import Image
from sample_images import CONVERTED, PHOTOS, PLAIN, card, edges, half, noise, photo, pillow_oriented, portrait

from onestream.preprocess import (
    BadImage,
    CannotCompile,
    CenterCrop,
    Compiled,
    Decode,
    Definition,
    Letterbox,
    Normalize,
    Output,
    Pad,
    Resize,
    compile,
)
from onestream.preprocess.backends.finish import CpuFinish
from onestream.preprocess.definition import PreprocessingStage
from onestream.preprocess.geometry import Window
from onestream.preprocess.plan import Planner
from onestream.preprocess.tolerances import Comparison, Source, compare
from onestream.preprocess.variation import Variation

STAGES: tuple[PreprocessingStage, ...] = ("decode", "resize", "crop", "normalize")
IMAGENET = Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
CLASSIFY = Definition(operations=[Decode(), Resize(mode="shorter", size=256), CenterCrop(size=(224, 224)), IMAGENET])
SMALL = Definition(operations=[Decode(), Resize(mode="shorter", size=64), CenterCrop(size=(56, 56)), IMAGENET])

VARIANTS: dict[str, Definition] = {
    "classify": CLASSIFY,
    "classify, gray, NHWC": Definition(
        operations=[Decode(color="gray"), Resize(mode="shorter", size=128), CenterCrop(size=(112, 96)),
                    Normalize(mean=(0.4,), std=(0.25,)), Output(layout="NHWC")]),
    "detect": Definition(
        operations=[Decode(), Letterbox(size=(320, 320)), Normalize(mean=(0, 0, 0), std=(1, 1, 1)),
                    Output(dtype="float16")]),
    "top left, truncated": Definition(
        operations=[Decode(), Letterbox(size=(96, 160), align="top_left", rounding="truncate", value=0),
                    Output(layout="NHWC", dtype="uint8")]),
    "bounded": Definition(
        operations=[Decode(), Resize(mode="shorter", size=50, max_size=70, rounding="detr"),
                    Pad(size=(80, 90), value=124, align="top_left"), IMAGENET]),
    "enlarged": Definition(
        operations=[Decode(), Resize(mode="shorter", size=401), CenterCrop(size=(200, 200)),
                    Normalize(mean=(127, 127, 127), std=(128, 128, 128), scale=1)]),
    "one way up, one way down": Definition(
        operations=[Decode(), Resize(mode="exact", size=(37, 800)), Output(dtype="uint8")]),
    "no resize": Definition(operations=[Decode(), CenterCrop(size=(131, 160)), Output(dtype="uint8")]),
    "nothing": Definition(operations=[Decode(), Output(layout="NHWC", dtype="float16")]),
    "crop larger than the image": Definition(
        operations=[Decode(color="gray"), Resize(mode="longer", size=77), CenterCrop(size=(90, 41)),
                    Output(dtype="float32")]),
    "padded": Definition(
        operations=[Decode(), Resize(mode="fit", size=(60, 50)), Pad(size=(64, 70), value=200, align="top_left")]),
    "nearest": Definition(
        operations=[Decode(), Resize(mode="shorter", size=100, filter="nearest"), CenterCrop(size=(64, 96))]),
    "bicubic": Definition(
        operations=[Decode(), Resize(mode="shorter", size=100, filter="bicubic"), CenterCrop(size=(64, 96))]),
    "lanczos": Definition(
        operations=[Decode(), Resize(mode="longer", size=300, filter="lanczos"), CenterCrop(size=(90, 90)), IMAGENET]),
    "crop truncated": Definition(
        operations=[Decode(), Resize(mode="shorter", size=90), CenterCrop(size=(67, 75), rounding="truncate")]),
    "letterbox, not antialiased": Definition(
        operations=[Decode(), Resize(mode="fit", size=(96, 128), antialias=False, rounding="ratio"),
                    Pad(size=(96, 128), value=114), IMAGENET]),
    "bgr": Definition(
        operations=[Decode(color="bgr"), Letterbox(size=(96, 128)),
                    Normalize(mean=(103.53, 116.28, 123.675), std=(57.375, 57.12, 58.395), scale=1)]),
    "bgr, bicubic": Definition(
        operations=[Decode(color="bgr"), Resize(mode="exact", size=(80, 60), filter="bicubic")]),
    "bgr, nearest": Definition(
        operations=[Decode(color="bgr"), Resize(mode="exact", size=(80, 60), filter="nearest"),
                    Output(layout="NHWC", dtype="uint8")]),
    "bgr, not antialiased": Definition(
        operations=[Decode(color="bgr"), Resize(mode="fit", size=(96, 128), antialias=False, rounding="ratio"),
                    Pad(size=(96, 128), value=114), Output(layout="NHWC", dtype="uint8")]),
    "bgr, no resize": Definition(
        operations=[Decode(color="bgr"), CenterCrop(size=(131, 160)), Output(layout="NHWC", dtype="uint8")]),
    "gray, not antialiased": Definition(
        operations=[Decode(color="gray"), Resize(mode="shorter", size=99, antialias=False), CenterCrop(size=(99, 99))]),
}  # fmt: skip


@cache
def compiled(definition: Definition, backend: str) -> Compiled:
    return compile(definition, backend=backend)


def judged(data: bytes, definition: Definition, stage: PreprocessingStage, source: Source = "plain") -> Comparison:
    cut = definition.stage(stage)
    (reference,) = compiled(cut, "reference").run([data])
    (other,) = compiled(cut, "dali").run([data])
    assert not isinstance(reference, BadImage), reference
    assert not isinstance(other, BadImage), other
    return compare(reference, other, definition=cut, stage=stage, backend="dali", source=source)


@pytest.mark.parametrize("form", PLAIN)
def test_every_format_at_every_stage(form: str) -> None:
    for image in (half("chelsea"), portrait("coffee").reduce(2)):
        data = PLAIN[form](image)
        assert [judged(data, SMALL, stage).max for stage in STAGES] == [0] * len(STAGES)


@pytest.mark.parametrize("form", CONVERTED)
def test_formats_that_are_converted_at_every_stage(form: str) -> None:
    for image in (half("chelsea"), portrait("coffee").reduce(2)):
        data = CONVERTED[form](image)
        for definition in (SMALL, VARIANTS["lanczos"]):
            for stage in STAGES:
                comparison = judged(data, definition, stage, "converted")
                assert comparison.within, (definition, stage, comparison)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_kind_of_definition_at_every_stage(variant: str) -> None:
    definition = VARIANTS[variant]
    tiny = photo("coffee").resize((9, 7))
    images = [photo("astronaut"), half("chelsea"), portrait("rocket").reduce(2), noise(111, 153), edges(131, 93), tiny]
    for image in images:
        data = encode(image, "JPEG", quality=90)
        assert [judged(data, definition, stage).max for stage in STAGES] == [0] * len(STAGES)


@given(
    data=st.data(),
    filter=st.sampled_from(
        [{"filter": "bilinear"}, {"antialias": False}, {"filter": "bicubic"}, {"filter": "lanczos"}]
    ),
)
def test_windows_equal_the_reference_to_the_bit(data: st.DataObject, filter: dict[str, Any]) -> None:
    """Whatever the window, and for tall images too, which Pillow resamples along the columns first."""
    height, width = data.draw(SIZES)
    side = data.draw(st.integers(1, 64))
    crop = data.draw(st.tuples(st.integers(1, 80), st.integers(1, 80)))
    color = data.draw(st.sampled_from(["rgb", "bgr", "gray"]))
    definition = Definition(
        operations=[Decode(color=color), Resize(mode="shorter", size=side, **filter), CenterCrop(size=crop),
                    Output(layout="NHWC", dtype="uint8")]
    )  # fmt: skip
    assert judged(png_of(card(height, width)), definition, "crop").max == 0


@pytest.mark.parametrize("options", [{}, {"antialias": False}, {"filter": "bicubic"}])
def test_variations_are_resized_as_the_definition_says(options: dict[str, Any]) -> None:
    """A wide box and a tall one, which Pillow resamples along the columns first where the filter is its own."""
    resize = Resize(mode="exact", size=(40, 44), **options)
    definition = Definition(operations=[Decode(), resize, Output(layout="NHWC", dtype="uint8")])
    data = encode(photo("coffee"), "PNG")
    for box in (Window(11, 7, 60, 200), Window(3, 40, 300, 50)):
        vary = [lambda _, box=box: Variation.of_box(box)]
        (expected,), (seen,) = (
            compile(definition, backend=backend, varied=True).run([data], vary) for backend in ("reference", "dali")
        )
        np.testing.assert_array_equal(expected, seen)


def test_linear_interpolation_without_antialias_is_what_it_says() -> None:
    """A picture of four pixels, by hand: the border is repeated outwards, a half is rounded up."""
    pixels = np.array([[[0], [100]], [[51], [201]]], np.uint8).repeat(3, axis=2)
    definition = Definition(
        operations=[Decode(), Resize(mode="exact", size=(1, 4), antialias=False), Output(layout="NHWC", dtype="uint8")]
    )
    for backend in ("reference", "dali"):
        (seen,) = compiled(definition, backend).run([png_of(pixels)])
        # Rows in the middle between both: 25.5 and 150.5; columns at -0.25, 0.25, 0.75 and 1.25.
        assert seen[0, :, 0].tolist() == [26, 57, 119, 151]


@pytest.mark.parametrize("subsampling", [0, 1, 2, "4:1:1"])
def test_a_decoded_part_is_the_same_part_of_the_whole(subsampling: int | str) -> None:
    """Chroma is interpolated from neighbours, which a part must bring along."""
    data = encode(photo("astronaut").resize((333, 251)), "JPEG", quality=95, subsampling=subsampling)
    for size in [(1, 1), (7, 9), (50, 64), (101, 17), (16, 300), (250, 332), (251, 333)]:
        definition = Definition(operations=[Decode(), CenterCrop(size=size), Output(layout="NHWC", dtype="uint8")])
        assert judged(data, definition, "crop").max == 0


def test_formats_and_filters_within_one_level_means_most_values_equal() -> None:
    """What a user sees on photos, far below the table's bounds for the hardest content."""
    shares = [judged(encode(photo(name), "JPEG", quality=90), CLASSIFY, "crop").share_different for name in PHOTOS]
    assert max(shares) < 0.2


@pytest.mark.parametrize("form", ORIENTED)
def test_orientation_is_the_same_wherever_it_stands(form: str) -> None:
    for orientation in range(1, 9):
        data = ORIENTED[form](orientation, ">" if orientation % 2 else "<")
        assert judged(data, CLASSIFY, "decode").max == 0
        (seen,) = compiled(CLASSIFY.stage("decode"), "dali").run([data])
        np.testing.assert_array_equal(seen, np.asarray(pillow_oriented(data)))


UPRIGHT = {"jpeg": JPEG, "png": png_of(PIXELS), "webp": webp_file([LOSSY]), "tiff": png_of(PIXELS)}


@pytest.mark.parametrize("form", UNCLEAR_EXIF | NOT_EXIF)
def test_what_only_seems_to_be_an_orientation_turns_nothing(form: str) -> None:
    (plain,) = compiled(CLASSIFY.stage("decode"), "reference").run([UPRIGHT[form.partition(" ")[0].strip(",")]])
    for backend in ("reference", "dali"):
        (seen,) = compiled(CLASSIFY.stage("decode"), backend).run([(UNCLEAR_EXIF | NOT_EXIF)[form]])
        np.testing.assert_array_equal(seen, plain)


def at_orientation(pixels: Any, orientation: int, form: str) -> bytes:
    if form == "png":
        return png_of(pixels, before=[(b"eXIf", exif_block(orientation))])
    jpeg = encode(Image.fromarray(pixels), "JPEG", quality=100, subsampling=0)
    return jpeg_with_segments(jpeg, jpeg_exif(orientation))


@given(
    definition=definitions(),
    size_hw=SIZES,
    orientation=st.integers(1, 8),
    form=st.sampled_from(["png", "jpeg"]),
)
def test_geometry_is_equal_to_the_pixel(
    definition: Definition, size_hw: tuple[int, int], orientation: int, form: str
) -> None:
    """The card's neighbouring pixels differ so much that a window off by one pixel fails the tolerance."""
    definition = definition.stage("crop")
    data = at_orientation(card(*size_hw), orientation, form)
    (reference,) = compile(definition).run([data])
    (other,) = compile(definition, backend="dali").run([data])
    if isinstance(reference, BadImage):
        assert isinstance(other, BadImage)
        assert str(other) == str(reference)
        return
    assert other.shape == reference.shape
    difference = np.abs(other.astype(int) - reference.astype(int))
    assert difference.max() <= 1


@pytest.mark.parametrize("axis", [0, 1])
def test_a_shift_by_one_pixel_would_be_seen(axis: int) -> None:
    definition = Definition(operations=[Decode(), Resize(mode="shorter", size=24)]).pixels()
    for size_hw in ((24, 24), (30, 47), (90, 31)):
        (sample,) = compile(definition).run([png_of(card(*size_hw))])
        shifted = np.abs(np.roll(sample, 1, axis).astype(int) - sample)
        assert np.median(shifted.max(axis=2)) > 10


@given(definition=definitions(), size_hw=SIZES)
def test_any_definition_normalizes_alike(definition: Definition, size_hw: tuple[int, int]) -> None:
    data = png_of(card(*size_hw))
    (reference,) = compile(definition).run([data])
    (other,) = compile(definition, backend="dali").run([data])
    if isinstance(reference, BadImage):
        assert isinstance(other, BadImage)
        return
    comparison = compare(reference, other, definition=definition, stage="normalize", backend="dali")
    assert comparison.max <= 1
    spec = definition.output_spec
    assert other.dtype == np.dtype(spec.dtype)
    assert all(said in (None, seen) for said, seen in zip(spec.shape, other.shape, strict=True))
    assert other.flags.c_contiguous


def test_a_crop_that_misses_the_image_is_all_border() -> None:
    definition = Definition(
        operations=[Decode(), Pad(size=(4, 4), value=9), CenterCrop(size=(1, 1)), Output(layout="NHWC", dtype="uint8")]
    )
    for backend in ("reference", "dali"):
        (sample,) = compile(definition, backend=backend).run([png_of(card(1, 1))])
        np.testing.assert_array_equal(sample, np.full((1, 1, 3), 9))


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("color", ["rgb", "gray"])
@pytest.mark.parametrize("operations", [[], [CenterCrop(size=(9, 60))], [Resize(mode="exact", size=(40, 60))]])
def test_a_result_shares_no_memory_with_the_decoder(operations: list[Any], color: str, layout: str) -> None:
    definition = Definition(operations=[Decode(color=color), *operations, Output(layout=layout, dtype="uint8")])
    pixels, plan, finish = card(40, 60), Planner(definition)((40, 60)), CpuFinish(definition)
    decoded = np.ascontiguousarray(pixels[plan.part.slices])
    assert not np.shares_memory(finish.finish(decoded, plan), decoded)


@pytest.mark.parametrize("color", ["rgb", "bgr"])
@pytest.mark.parametrize("backend", ["reference", "dali"])
def test_a_border_in_a_colour(backend: str, color: str) -> None:
    """Its channels are in the order of the definition's colours."""
    fill = (1, 200, 70)
    definition = Definition(
        operations=[Decode(color=color), Letterbox(size=(20, 60), value=fill), Output(layout="NHWC", dtype="uint8")]
    )
    pixels = card(40, 60)
    (seen,) = compile(definition, backend=backend).run([png_of(pixels)])
    assert not isinstance(seen, BadImage)
    assert (seen[:, :15] == fill).all()
    assert (seen[:, 45:] == fill).all()
    resized = np.asarray(Image.fromarray(pixels).resize((30, 20), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(seen[:, 15:45], resized if color == "rgb" else resized[:, :, ::-1])


REFUSED = {
    "one resize": [Decode(), Resize(mode="exact", size=(9, 9)), Resize(mode="exact", size=(5, 5))],
    "before any crop or pad": [Decode(), CenterCrop(size=(9, 9)), Resize(mode="exact", size=(5, 5))],
    "(114, 0)": [Decode(), Letterbox(size=(9, 9)), CenterCrop(size=(12, 12))],
    "(3, 4)": [Decode(), Pad(size=(9, 9), value=3), Pad(size=(12, 12), value=4)],
}


@pytest.mark.parametrize("named", REFUSED)
def test_dali_refuses_by_name_what_the_reference_can_do(named: str) -> None:
    definition = Definition(operations=REFUSED[named])
    (sample,) = compile(definition).run([png_of(card(5, 5))])
    assert not isinstance(sample, BadImage)
    with pytest.raises(CannotCompile) as caught:
        compile(definition, backend="dali")
    assert named in str(caught.value)


@pytest.mark.parametrize("filter", ["nearest", "bicubic", "lanczos"])
def test_dali_refuses_other_filters_on_a_gpu(filter: str) -> None:
    definition = Definition(operations=[Decode(), Resize(mode="exact", size=(9, 9), filter=filter)])
    with pytest.raises(CannotCompile, match=f"'{filter}'.*supports 'bilinear'"):
        compile(definition, backend="dali", device="gpu")


def test_dali_refuses_a_resize_without_antialias_on_a_gpu() -> None:
    definition = Definition(operations=[Decode(), Resize(mode="exact", size=(9, 9), antialias=False)])
    with pytest.raises(CannotCompile, match="without antialias exactly on a GPU"):
        compile(definition, backend="dali", device="gpu")


def test_unknown_backends_and_devices_are_refused_by_name() -> None:
    with pytest.raises(CannotCompile, match=r"'opencv'.*reference, dali"):
        compile(CLASSIFY, backend="opencv")
    with pytest.raises(CannotCompile, match="'cpu'"):
        compile(CLASSIFY, backend="reference", device="gpu")
