"""What ``decode`` says of ICC profiles, of samples of 16 bit, of several frames, and of a JPEG's fraction."""

from __future__ import annotations

import io
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif
import pytest
from cvcuda_on_host import cvcuda_on_host
from definition_strategies import BOXES, FILTERS, resizes
from definitions import in_levels
from hypothesis import given
from hypothesis import strategies as st
from image_files import encode, exif_block, jpeg_segment, jpeg_with_segments, png_of, tiff
from PIL import Image, ImageCms, ImageOps
from same_samples import assert_same
from sample_images import ASSETS, photo

from benchmarks.hostile.headers import mutated
from onestream.preprocess import BadImage, CannotCompile, CenterCrop, Definition, Limits, Resize, compile
from onestream.preprocess.backends.base import refuse_decoding
from onestream.preprocess.geometry import Size
from onestream.preprocess.headers import by_pillow
from onestream.preprocess.headers.reader import read_header
from onestream.preprocess.plan import Planner

ADOBE_RGB = (ASSETS / "adobe_rgb.icc").read_bytes()
SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
PICTURE = photo("coffee").resize((61, 43))
TURNED = b"Exif\0\0" + exif_block(6)
"""By a quarter, clockwise."""
GRAY = np.array([[0, 1, 15, 16, 2047, 4095, 4096, 65535]], np.uint16).repeat(3, axis=0)[:, :, None]


def by_all(definition: Definition, file: bytes, limits: Limits | None = None) -> np.ndarray[Any, Any]:
    """What every backend makes of a file, the same in every bit. Raises ``BadImage`` where all refuse it alike."""
    with cvcuda_on_host() as on_host:
        on_cpu = [compile(definition, backend=backend, limits=limits) for backend in ("reference", "dali")]
        expected, *found = [one.run([file])[0] for one in (*on_cpu, on_host(definition, limits=limits))]
    if isinstance(expected, BadImage):
        assert {str(one) for one in found} == {str(expected)}
        raise expected
    assert all(np.array_equal(expected, one) for one in found)
    return expected


@pytest.mark.parametrize(
    ("image", "kind", "options"),
    [
        *((PICTURE, kind, {}) for kind in ("PNG", "TIFF", "JPEG")),
        (PICTURE, "WEBP", {"lossless": True}),
        (PICTURE.quantize(32), "PNG", {}),
        (PICTURE.convert("RGBA"), "PNG", {}),
        (PICTURE.convert("L"), "JPEG", {}),
    ],
)
def test_a_profile_is_converted_as_pillow_does(image: Image.Image, kind: str, options: dict[str, Any]) -> None:
    plain, file = (encode(image, kind, icc_profile=profile, **options) for profile in (None, ADOBE_RGB))
    opened = Image.open(io.BytesIO(file)).convert("RGB")
    converted = ImageCms.profileToProfile(
        opened, ImageCms.ImageCmsProfile(io.BytesIO(ADOBE_RGB)), ImageCms.createProfile("sRGB")
    )
    assert np.abs(np.asarray(converted, int) - np.asarray(opened)).max() > 8 or image.mode == "L"
    np.testing.assert_array_equal(by_all(in_levels(profile="srgb"), file), np.asarray(converted))
    np.testing.assert_array_equal(by_all(in_levels(), file), by_all(in_levels(), plain))
    np.testing.assert_array_equal(by_all(in_levels(profile="srgb"), plain), by_all(in_levels(), plain))
    if kind != "TIFF":
        sideways = encode(image, kind, icc_profile=ADOBE_RGB, exif=TURNED, **options)
        np.testing.assert_array_equal(by_all(in_levels(profile="srgb"), sideways), np.rot90(np.asarray(converted), -1))


def test_a_profile_goes_before_color_and_resize() -> None:
    file = encode(PICTURE, "PNG", icc_profile=ADOBE_RGB)
    converted = encode(Image.fromarray(by_all(in_levels(profile="srgb"), file)), "PNG")
    small = Resize(mode="exact", size=(20, 30))
    for color in ("bgr", "gray"):
        seen = by_all(in_levels(small, color=color, profile="srgb"), file)
        np.testing.assert_array_equal(seen, by_all(in_levels(small, color=color), converted))


def test_profiles_that_are_passed_over_are_said_once(said: list[str]) -> None:
    for file in (encode(PICTURE, "JPEG"), encode(PICTURE, "JPEG", icc_profile=SRGB), encode(PICTURE, "WEBP")):
        by_all(in_levels(), file)
    assert said == []
    for _ in range(2):
        by_all(in_levels(), encode(PICTURE, "JPEG", icc_profile=ADOBE_RGB))
    (line,) = said
    assert "a JPEG carries an ICC profile, which is passed over" in line
    assert "decode.profile: ignore" in line


@pytest.mark.parametrize(
    ("image", "profile", "reason"),
    [
        (PICTURE, b"no profile at all" * 20, "its ICC profile cannot be used: cannot open profile"),
        (PICTURE, bytes((4 << 20) + 1), "its ICC profile has 4194305 bytes; at most 4194304 are allowed"),
        (PICTURE.convert("CMYK"), ADOBE_RGB, "its ICC profile cannot be used: cannot build transform"),
    ],
)
def test_profiles_that_cannot_be_used_are_refused(image: Image.Image, profile: bytes, reason: str) -> None:
    file = encode(image, "JPEG", icc_profile=profile)
    with pytest.raises(BadImage, match=f"corrupt.*the image cannot be decoded: {reason}"):
        by_all(in_levels(profile="srgb"), file)
    assert by_all(in_levels(), file).shape == (43, 61, 3)


@pytest.mark.parametrize(
    "file",
    [png_of(GRAY), tiff(GRAY), tiff(GRAY, order=">"), encode(Image.fromarray(GRAY[:, :, 0]), "PNG", icc_profile=SRGB)],
)
def test_bits_of_a_16_bit_picture(file: bytes, said: list[str]) -> None:
    for bits, levels in ((12, [0, 0, 0, 1, 127, 255, 255, 255]), (8, [0, 1, 15, 16, 255, 255, 255, 255])):
        found = by_all(in_levels(bits=bits), file)
        assert found[0, :, 0].tolist() == levels
        assert found.shape == (3, 8, 3)
    assert said == []
    (reference,) = compile(in_levels()).run([file])
    assert reference[0, :, 0].tolist() == [0, 0, 0, 0, 7, 15, 16, 255]
    assert "has samples of 16 bit, of which the high byte is used (decode.bits: 16)" in said[0]
    assert by_all(in_levels(bits=12), encode(PICTURE, "PNG")).shape == (43, 61, 3)
    with pytest.raises(BadImage, match=r"got a PNG in colour of 16 bit; decode.bits 12 is for gray ones"):
        by_all(in_levels(bits=12), png_of(np.repeat(GRAY, 3, axis=2)))


FRAMES = [PICTURE, PICTURE.rotate(180), PICTURE.convert("L").convert("RGB")]
ALL = Limits(formats=("JPEG", "PNG", "WebP", "TIFF", "BMP", "GIF", "AVIF", "HEIC"))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {}) for kind in ("TIFF", "PNG", "GIF", "AVIF")),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"lossless": True, "exif": TURNED}),
    ],
)
def test_the_first_frame_is_used_and_it_is_said(kind: str, options: dict[str, Any], said: list[str]) -> None:
    file = encode(FRAMES[0], kind, save_all=True, append_images=FRAMES[1:], **options)
    opened = Image.open(io.BytesIO(file))
    assert opened.n_frames == 3
    expected = np.asarray(ImageOps.exif_transpose(opened).convert("RGB"))
    assert read_header(file).oriented_hw == expected.shape[:2]
    np.testing.assert_array_equal(by_all(in_levels(), file, ALL), expected)
    name = read_header(file).format
    several = "has several pages or frames, of which the first is used (decode.frame: first) (said once)"
    assert said == [f"a {name} {several}"]
    one = encode(FRAMES[0], kind, **options)
    assert by_all(in_levels(frame="error"), one, ALL).shape == expected.shape
    with pytest.raises(BadImage, match=f"got a {name} of several pages or frames; decode.frame is 'error'"):
        by_all(in_levels(frame="error"), file, ALL)


pillow_heif.register_heif_opener()


@pytest.mark.parametrize("kind", ["GIF", "AVIF", "HEIC"])
def test_formats_of_pillow_are_for_those_who_ask(kind: str) -> None:
    file = encode(PICTURE, kind.replace("HEIC", "HEIF"))
    expected = np.asarray(Image.open(io.BytesIO(file)).convert("RGB"))
    assert read_header(file).oriented_hw == expected.shape[:2] == PICTURE.size[::-1]
    np.testing.assert_array_equal(by_all(in_levels(), file, ALL), expected)
    for data, limits, refused in (
        (file, None, rf"got {kind}; allowed: JPEG, PNG, WebP, TIFF, BMP \({kind} where limits.formats"),
        (file[: len(file) // 2], ALL, "corrupt"),
        (file, ALL.model_copy(update={"max_pixels": 61 * 43 - 1}), "too_many_pixels"),
    ):
        with pytest.raises(BadImage, match=refused):
            by_all(in_levels(), data, limits)


def test_heic_takes_a_package_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_pillow, "find_spec", lambda _: None)
    with pytest.raises(BadImage, match=r"got HEIC, which takes pillow-heif; .*pip install -e '\.\[heif\]'"):
        by_all(in_levels(), encode(PICTURE, "HEIF"), ALL)


@pytest.mark.parametrize("kind", ["GIF", "AVIF", "HEIF", "WEBP"])
def test_damaged_files_of_pillow_are_bad_images(kind: str) -> None:
    file = encode(PICTURE, kind, save_all=True, append_images=FRAMES[1:])
    chosen, size = random.Random(5), len(file)
    damaged = [mutated(file, chosen)[: chosen.randrange(size // 2, 2 * size)] for _ in range(40)]
    limits = ALL.model_copy(update={"max_pixels": 100_000})
    both = [compile(in_levels(), backend=backend, limits=limits).run(damaged) for backend in ("reference", "dali")]
    for one, other in zip(*both, strict=True):
        assert str(one) == str(other) if isinstance(one, BadImage) else np.array_equal(one, other)


def test_a_profile_is_found_in_every_place() -> None:
    split = jpeg_with_segments(encode(PICTURE, "JPEG"), jpeg_segment(0xE2, b"ICC_PROFILE\0\1\2" + ADOBE_RGB[:99]))
    assert read_header(split).profile == "other"
    assert {read_header(encode(PICTURE, kind, icc_profile=SRGB)).profile for kind in ("JPEG", "TIFF")} == {"sRGB"}
    # A part of a profile is none.
    assert np.array_equal(by_all(in_levels(profile="srgb"), split), by_all(in_levels(), encode(PICTURE, "JPEG")))


SIZES = st.tuples(st.integers(1, 900), st.integers(1, 900)) | st.tuples(st.integers(2000, 65535), st.integers(1, 9000))
BACKENDS = ("reference", "dali")
FILE = encode(photo("coffee").crop((0, 0, 597, 395)), "JPEG", quality=92)
"""No side is a multiple of 2."""
scaled = partial(in_levels, dct_scaling=True)
SMALL = scaled(Resize(mode="shorter", size=40, filter="bicubic"), CenterCrop(size=(33, 47)))


@given(resize=resizes(FILTERS.filter(lambda name: name != "nearest")), crop=BOXES, size_hw=SIZES)
def test_the_smallest_picture_of_twice_the_resized_size_is_decoded(resize: Resize, crop: Size, size_hw: Size) -> None:
    planner = Planner(scaled(resize, CenterCrop(size=crop)))
    whole, plan = planner(size_hw), planner(size_hw, is_jpeg=True)
    sides = [*zip(size_hw, whole.resized_hw, strict=True)]
    enough = [n for n in (1, 2, 4, 8) if all(-(-side // n) >= 2 * resized for side, resized in sides)]
    assert (whole.factor, plan.factor) == (1, max(enough, default=1))
    for same in ("resized_hw", "window", "offset", "canvas_hw"):
        assert getattr(plan, same) == getattr(whole, same)
    np.testing.assert_allclose(np.array(plan.source) * plan.factor, whole.source, rtol=1e-12)
    if plan.factor > 1:
        assert plan.part.size_hw == tuple(-(-side // plan.factor) for side in size_hw)
        assert plan.spans == plan.source


@pytest.mark.parametrize("filter", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize(("size", "factor"), [(150, 1), (90, 2), (49, 4), (20, 8)])
def test_the_reference_is_pillows_draft_and_its_resize_of_a_box(filter: Any, size: int, factor: int) -> None:
    image = Image.open(io.BytesIO(FILE))
    width, height = image.size
    image.draft(None, (width // factor, height // factor))
    box = (0, 0, width / factor, height / factor)
    expected = image.resize((size * width // height, size), Image.Resampling[filter.upper()], box=box)
    for backend in BACKENDS:
        (found,) = compile(scaled(Resize(mode="shorter", size=size, filter=filter)), backend=backend).run([FILE])
        np.testing.assert_array_equal(found, np.asarray(expected))


ROCKET = photo("rocket")
FORMS: dict[str, tuple[bytes, dict[str, Any]]] = {
    "progressive": (encode(ROCKET, "JPEG", progressive=True), {}),
    "4:4:4": (encode(ROCKET, "JPEG", subsampling=0), {}),
    "gray": (encode(ROCKET.convert("L"), "JPEG"), {}),
    "turned": (encode(ROCKET, "JPEG", exif=TURNED), {}),
    "to gray": (FILE, {"color": "gray"}),
    "to bgr": (FILE, {"color": "bgr"}),
    "profile": (encode(ROCKET, "JPEG", icc_profile=ADOBE_RGB), {"profile": "srgb"}),
    "PNG": (encode(ROCKET, "PNG"), {}),
    "no larger than a pixel": (encode(ROCKET.resize((1, 1)), "JPEG"), {}),
}


@pytest.mark.parametrize("form", FORMS)
def test_backends_on_a_cpu_agree_in_every_bit_and_only_jpegs_change(form: str) -> None:
    file, decode = FORMS[form]
    definition = scaled(*SMALL.geometry, **decode)
    reference, dali = (compile(definition, backend=backend).run([file])[0] for backend in BACKENDS)
    (other,) = compile(in_levels(*SMALL.geometry, **decode)).run([file])
    np.testing.assert_array_equal(reference, dali)
    difference = np.abs(reference.astype(int) - other)
    assert difference.max() < 30
    assert (difference.max() == 0) == (form in ("PNG", "no larger than a pixel"))


def test_a_batch_keeps_its_order_and_bad_files_hurt_only_themselves() -> None:
    files = [FILE, FILE[:-900], FORMS["PNG"][0], b"", FORMS["turned"][0], FILE[:3000]]
    alone = [compile(SMALL).run([file])[0] for file in files]
    for threads in (1, 2):
        dali = compile(SMALL, backend="dali", threads=threads)
        assert_same(dali.run(files), alone)
        dali.close()
    assert [isinstance(one, BadImage) for one in alone] == [False, True, False, True, False, True]
    # Limits are of the size in the header.
    for backend in BACKENDS:
        (refused,) = compile(SMALL, backend=backend, limits=Limits(max_pixels=597 * 395 - 1)).run([FILE])
        assert refused.code == "too_many_pixels"


def test_a_loader_gives_what_is_served_and_training_decodes_whole_pictures(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from onestream.preprocess.training import ImageLoader

    for name in ("coffee", "rocket"):
        (tmp_path / f"{name}.jpg").write_bytes((ASSETS / f"{name}.jpg").read_bytes())
    served = compile(SMALL, backend="dali").run([path.read_bytes() for path in sorted(tmp_path.iterdir())])
    loaded = []
    for definition, train in ((SMALL, False), (SMALL, True), (in_levels(*SMALL.geometry), True)):
        with ImageLoader(definition, tmp_path, batch_size=2, threads=1, train=train) as loader:
            loaded.append(next(iter(loader)).images)
    np.testing.assert_array_equal(loaded[0], served)
    np.testing.assert_array_equal(loaded[1], loaded[2])


def test_what_decodes_whole_pictures_refuses_it() -> None:
    with cvcuda_on_host() as on_host, pytest.raises(CannotCompile, match=r"cvcuda decodes JPEGs whole"):
        on_host(SMALL)
    with pytest.raises(CannotCompile, match=r"dali on a GPU decodes JPEGs whole"):
        compile(SMALL, backend="dali", device="gpu")
    with pytest.raises(CannotCompile, match="cannot do profile 'srgb', bits 12, dct_scaling True of decode"):
        refuse_decoding(scaled(*SMALL.geometry, profile="srgb", bits=12), what="a container")
    refuse_decoding(in_levels(), what="a container")
    pytest.importorskip("torch")
    from onestream.preprocess.interop import to_torchvision
    from onestream.preprocess.training.proxy import DaliProxy

    with pytest.raises(CannotCompile, match=r"torchvision decodes JPEGs whole"):
        to_torchvision(SMALL)
    with pytest.raises(CannotCompile, match=r"the DALI proxy decodes JPEGs whole"):
        DaliProxy(SMALL, batch_size=2)


def test_a_definition_without_it_keeps_its_json() -> None:
    assert "dct_scaling" not in in_levels().canonical_json()
    assert '"dct_scaling":true' in SMALL.canonical_json()
    assert SMALL.stage("decode") == in_levels()
