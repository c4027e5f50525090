"""DALI against the reference: every format and stage within the tolerance table, geometry equal to the pixel."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from definition_strategies import BOXES, SIDES, SIZES, definitions
from definitions import IMAGENET, chain, in_levels
from hypothesis import given
from hypothesis import strategies as st
from image_files import encode, exif_block, jpeg_exif, jpeg_with_segments, png_of, webp_file
from oriented_files import JPEG, LOSSY, NOT_EXIF, ORIENTED, PIXELS, UNCLEAR_EXIF
from PIL import Image
from sample_images import CONVERTED, PLAIN, card, edges, half, noise, photo, pillow_oriented, portrait

from onestream.preprocess import (
    BadImage,
    CannotCompile,
    CenterCrop,
    Compiled,
    Definition,
    Letterbox,
    Normalize,
    Output,
    Pad,
    Resize,
    compile,
)
from onestream.preprocess.backends.finish import CpuFinish
from onestream.preprocess.backends.reference import picture
from onestream.preprocess.definition import PreprocessingStage
from onestream.preprocess.geometry import Size, Window
from onestream.preprocess.plan import Planner
from onestream.preprocess.tolerances import Comparison, Source, compare
from onestream.preprocess.variation import Variation

BACKENDS = ("reference", "dali")
STAGES: tuple[PreprocessingStage, ...] = ("decode", "resize", "crop", "normalize")
CLASSIFY = chain(Resize(mode="shorter", size=256), CenterCrop(size=(224, 224)), IMAGENET)
SMALL = chain(Resize(mode="shorter", size=64), CenterCrop(size=(56, 56)), IMAGENET)
OPENCV = Normalize(mean=(103.53, 116.28, 123.675), std=(57.375, 57.12, 58.395), scale=1)
NOT_ANTIALIASED = (
    Resize(mode="fit", size=(96, 128), antialias=False, rounding="ratio"),
    Pad(size=(96, 128), value=114),
)

VARIANTS: dict[str, Definition] = {
    "classify": CLASSIFY,
    "classify, gray, NHWC": chain(
        Resize(mode="shorter", size=128), CenterCrop(size=(112, 96)), Normalize(mean=(0.4,), std=(0.25,)),
        Output(layout="NHWC"), color="gray"),
    "detect": chain(
        Letterbox(size=(320, 320)), Normalize(mean=(0, 0, 0), std=(1, 1, 1)), Output(dtype="float16")),
    "top left, truncated": in_levels(Letterbox(size=(96, 160), align="top_left", rounding="truncate", value=0)),
    "bounded": chain(
        Resize(mode="shorter", size=50, max_size=70, rounding="detr"),
        Pad(size=(80, 90), value=124, align="top_left"), IMAGENET),
    "enlarged": chain(
        Resize(mode="shorter", size=401), CenterCrop(size=(200, 200)),
        Normalize(mean=(127, 127, 127), std=(128, 128, 128), scale=1)),
    "one way up, one way down": chain(Resize(mode="exact", size=(37, 800)), Output(dtype="uint8")),
    "no resize": chain(CenterCrop(size=(131, 160)), Output(dtype="uint8")),
    "nothing": chain(Output(layout="NHWC", dtype="float16")),
    "crop larger than the image": chain(
        Resize(mode="longer", size=77), CenterCrop(size=(90, 41)), Output(dtype="float32"), color="gray"),
    "padded": chain(Resize(mode="fit", size=(60, 50)), Pad(size=(64, 70), value=200, align="top_left")),
    "nearest": chain(Resize(mode="shorter", size=100, filter="nearest"), CenterCrop(size=(64, 96))),
    "bicubic": chain(Resize(mode="shorter", size=100, filter="bicubic"), CenterCrop(size=(64, 96))),
    "lanczos": chain(Resize(mode="longer", size=300, filter="lanczos"), CenterCrop(size=(90, 90)), IMAGENET),
    "crop truncated": chain(Resize(mode="shorter", size=90), CenterCrop(size=(67, 75), rounding="truncate")),
    "letterbox, not antialiased": chain(*NOT_ANTIALIASED, IMAGENET),
    "bgr": chain(Letterbox(size=(96, 128)), OPENCV, color="bgr"),
    "bgr, bicubic": chain(Resize(mode="exact", size=(80, 60), filter="bicubic"), color="bgr"),
    "bgr, nearest": in_levels(Resize(mode="exact", size=(80, 60), filter="nearest"), color="bgr"),
    "bgr, not antialiased": in_levels(*NOT_ANTIALIASED, color="bgr"),
    "bgr, no resize": in_levels(CenterCrop(size=(131, 160)), color="bgr"),
    "gray, not antialiased": chain(
        Resize(mode="shorter", size=99, antialias=False), CenterCrop(size=(99, 99)), color="gray"),
}  # fmt: skip


@cache
def compiled(definition: Definition, backend: str) -> Compiled:
    return compile(definition, backend=backend)


def judged(data: bytes, definition: Definition, stage: PreprocessingStage, source: Source = "plain") -> Comparison:
    cut = definition.stage(stage)
    (reference,) = compiled(cut, "reference").run([data])
    (other,) = compiled(cut, "dali").run([data])
    return compare(reference, other, definition=cut, stage=stage, backend="dali", source=source)


@pytest.mark.parametrize("form", PLAIN)
def test_every_format_at_every_stage(form: str) -> None:
    for image in (half("chelsea"), portrait("coffee").reduce(2)):
        data = PLAIN[form](image)
        assert [judged(data, SMALL, stage).max for stage in STAGES] == [0] * len(STAGES)
        assert judged(data, VARIANTS["bgr"], "normalize").max == 0


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


@pytest.mark.parametrize("options", [{}, {"antialias": False}, {"filter": "bicubic"}])
def test_variations_are_resized_as_the_definition_says(options: dict[str, Any]) -> None:
    """A wide box and a tall one, which Pillow resamples along the columns first where the filter is its own."""
    definition = in_levels(Resize(mode="exact", size=(40, 44), **options))
    data = encode(photo("coffee"), "PNG")
    for box in (Window(11, 7, 60, 200), Window(3, 40, 300, 50)):
        vary = [lambda _, box=box: Variation.of_box(box)]
        samples = (compile(definition, backend=backend, varied=True).run([data], vary)[0] for backend in BACKENDS)
        np.testing.assert_array_equal(*samples)


def test_linear_interpolation_without_antialias_is_what_it_says() -> None:
    """A picture of four pixels, by hand: the border is repeated outwards, a half is rounded up."""
    pixels = np.array([[[0], [100]], [[51], [201]]], np.uint8).repeat(3, axis=2)
    definition = in_levels(Resize(mode="exact", size=(1, 4), antialias=False))
    for backend in BACKENDS:
        (seen,) = compiled(definition, backend).run([png_of(pixels)])
        # Rows in the middle between both: 25.5 and 150.5; columns at -0.25, 0.25, 0.75 and 1.25.
        assert seen[0, :, 0].tolist() == [26, 57, 119, 151]


def test_a_jpeg_that_ends_early_with_an_end_marker_is_the_same_picture() -> None:
    """Decoders fill the rest, so it is not a bad image."""
    file = encode(photo("coffee"), "JPEG", quality=90)
    assert judged(file[: len(file) // 3] + b"\xff\xd9", CLASSIFY, "decode").max == 0


@pytest.mark.parametrize("subsampling", [0, 1, 2, "4:1:1"])
def test_a_decoded_part_is_the_same_part_of_the_whole(subsampling: int | str) -> None:
    """Chroma is interpolated from neighbours, which a part must bring along."""
    data = encode(photo("astronaut").resize((333, 251)), "JPEG", quality=95, subsampling=subsampling)
    for size in [(1, 1), (7, 9), (50, 64), (101, 17), (16, 300), (250, 332), (251, 333)]:
        assert judged(data, in_levels(CenterCrop(size=size)), "crop").max == 0


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
    for backend in BACKENDS:
        (seen,) = compiled(CLASSIFY.stage("decode"), backend).run([(UNCLEAR_EXIF | NOT_EXIF)[form]])
        np.testing.assert_array_equal(seen, plain)


def at_orientation(pixels: Any, orientation: int, form: str) -> bytes:
    if form == "png":
        return png_of(pixels, before=[(b"eXIf", exif_block(orientation))])
    jpeg = encode(Image.fromarray(pixels), "JPEG", quality=100, subsampling=0)
    return jpeg_with_segments(jpeg, jpeg_exif(orientation))


INTERPOLATED = st.builds(
    in_levels,
    st.builds(Resize, mode=st.just("shorter"), size=SIDES, antialias=st.just(False)),
    st.builds(CenterCrop, size=BOXES),
    color=st.sampled_from(["rgb", "bgr", "gray"]),
)


@given(
    definition=definitions() | INTERPOLATED,
    size_hw=SIZES,
    orientation=st.integers(1, 8),
    form=st.sampled_from(["png", "jpeg"]),
)
def test_any_definition_gives_the_same_bits(definition: Definition, size_hw: Size, orientation: int, form: str) -> None:
    """Whatever the window, and for tall images too, which Pillow resamples along the columns first."""
    data = at_orientation(card(*size_hw), orientation, form)
    for stage in STAGES[2:]:
        cut = definition.stage(stage)
        (reference,), (other,) = (compile(cut, backend=backend).run([data]) for backend in BACKENDS)
        if isinstance(reference, BadImage):
            assert reference.code == "too_many_pixels"  # a pad that is smaller than this image
            assert str(other) == str(reference)
            continue
        assert compare(reference, other, definition=cut, stage=stage, backend="dali").max == 0
        spec = cut.output_spec
        assert other.dtype == np.dtype(spec.dtype)
        assert all(said in (None, seen) for said, seen in zip(spec.shape, other.shape, strict=True))
        assert reference.flags.c_contiguous
        assert other.flags.c_contiguous


def test_a_shift_by_one_pixel_would_be_seen() -> None:
    for size_hw in ((24, 24), (30, 47), (90, 31)):
        (sample,) = compile(in_levels(Resize(mode="shorter", size=24))).run([png_of(card(*size_hw))])
        for axis in (0, 1):
            shifted = np.abs(np.roll(sample, 1, axis).astype(int) - sample)
            assert np.median(shifted.max(axis=2)) > 10


def test_a_crop_that_misses_the_image_is_all_border() -> None:
    definition = in_levels(Pad(size=(4, 4), value=9), CenterCrop(size=(1, 1)))
    for backend in BACKENDS:
        (sample,) = compile(definition, backend=backend).run([png_of(card(1, 1))])
        np.testing.assert_array_equal(sample, np.full((1, 1, 3), 9))


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("color", ["rgb", "gray"])
@pytest.mark.parametrize("operations", [[], [CenterCrop(size=(9, 60))], [Resize(mode="exact", size=(40, 60))]])
def test_a_result_shares_no_memory_with_the_decoder(operations: list[Any], color: str, layout: str) -> None:
    definition = chain(*operations, Output(layout=layout, dtype="uint8"), color=color)
    pixels, plan, finish = card(40, 60), Planner(definition)((40, 60)), CpuFinish(definition)
    decoded = np.ascontiguousarray(pixels[plan.part.slices])
    assert not np.shares_memory(finish.finish(decoded, plan), decoded)


@pytest.mark.parametrize("color", ["rgb", "bgr"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_border_in_a_colour(backend: str, color: str) -> None:
    """Its channels are in the order of the definition's colours."""
    fill, pixels = (1, 200, 70), card(40, 60)
    definition = in_levels(Letterbox(size=(20, 60), value=fill), color=color)
    (seen,) = compile(definition, backend=backend).run([png_of(pixels)])
    assert (seen[:, :15] == fill).all()
    assert (seen[:, 45:] == fill).all()
    resized = np.asarray(Image.fromarray(pixels).resize((30, 20), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(seen[:, 15:45], resized if color == "rgb" else resized[:, :, ::-1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_first_channel_of_bgr_is_blue(backend: str) -> None:
    """A picture of one colour, by hand: nothing here depends on another run of the same code."""
    file = png_of(np.full((40, 60, 3), (200, 100, 50), np.uint8))
    for geometry in (
        [],
        [CenterCrop(size=(20, 20))],
        [Resize(mode="exact", size=(20, 20))],
        [Resize(mode="exact", size=(70, 80))],
    ):
        (seen,) = compile(in_levels(*geometry, color="bgr"), backend=backend).run([file])
        assert (seen == np.array([50, 100, 200])).all(), geometry
    (seen,) = compile(VARIANTS["bgr"], backend=backend).run([file])
    for place, levels in ((np.s_[:, 48, 64], np.array([50, 100, 200])), (np.s_[:, 0, 0], 114)):
        np.testing.assert_allclose(seen[place], (levels - np.array(OPENCV.mean)) / OPENCV.std, rtol=1e-6)


def test_pictures_to_look_at_have_the_right_colors() -> None:
    for color in ("rgb", "bgr", "gray"):
        (pixels,) = compile(in_levels(color=color)).run([encode(photo("coffee"), "PNG")])
        right = photo("coffee").convert("L" if color == "gray" else "RGB")
        np.testing.assert_array_equal(np.asarray(picture(pixels, color)), np.asarray(right))


NINE, FIVE = (Resize(mode="exact", size=(side, side)) for side in (9, 5))


@pytest.mark.parametrize(
    ("named", "operations"),
    [
        ("one resize", [NINE, FIVE]),
        ("before any crop or pad", [CenterCrop(size=(9, 9)), FIVE]),
        (r"\(114, 0\)", [Letterbox(size=(9, 9)), CenterCrop(size=(12, 12))]),
        (r"\(3, 4\)", [Pad(size=(9, 9), value=3), Pad(size=(12, 12), value=4)]),
    ],
)
def test_dali_refuses_by_name_what_the_reference_can_do(named: str, operations: list[Any]) -> None:
    (sample,) = compile(chain(*operations)).run([png_of(card(5, 5))])
    assert not isinstance(sample, BadImage)
    with pytest.raises(CannotCompile, match=named):
        compile(chain(*operations), backend="dali")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        *(({"filter": name}, f"'{name}'.*supports 'bilinear'") for name in ("nearest", "bicubic", "lanczos")),
        ({"antialias": False}, "without antialias exactly on a GPU"),
    ],
)
def test_dali_refuses_other_resizes_on_a_gpu(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(CannotCompile, match=named):
        compile(chain(Resize(mode="exact", size=(9, 9), **fields)), backend="dali", device="gpu")
