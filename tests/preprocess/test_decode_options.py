"""What ``decode`` says of ICC profiles, of samples of 16 bit, and of files with several frames."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif
import pytest
from cvcuda_on_host import cvcuda_on_host
from image_files import encode, jpeg_segment, jpeg_with_segments, png_of, tiff
from PIL import Image, ImageCms, ImageOps
from sample_images import photo

from onestream.preprocess import BadImage, CannotCompile, Decode, Definition, Limits, Output, Resize, compile
from onestream.preprocess.backends.base import refuse_decoding
from onestream.preprocess.headers import by_pillow
from onestream.preprocess.headers.reader import read_header

ADOBE_RGB = (Path(__file__).parents[1] / "assets" / "adobe_rgb.icc").read_bytes()
SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
PICTURE = photo("coffee").resize((61, 43))
GRAY = np.array([[0, 1, 15, 16, 2047, 4095, 4096, 65535]], np.uint16).repeat(3, axis=0)[:, :, None]


def turned() -> Image.Exif:
    """By a quarter, clockwise."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def pixels(**decode: Any) -> Definition:
    """The picture as it is."""
    return Definition(operations=[Decode(**decode), Output(layout="NHWC", dtype="uint8")])


def by_all(definition: Definition, file: bytes, limits: Limits | None = None) -> np.ndarray[Any, Any]:
    """What every backend makes of a file, the same in every bit. Raises ``BadImage`` where all refuse it alike."""
    with cvcuda_on_host() as on_host:
        found = [
            compile(definition, limits=limits).run([file])[0],
            compile(definition, backend="dali", limits=limits).run([file])[0],
            on_host(definition, limits=limits).run([file])[0],
        ]
    if isinstance(found[0], BadImage):
        assert {str(one) for one in found} == {str(found[0])}
        raise found[0]
    assert all(np.array_equal(found[0], one) for one in found)
    return found[0]


@pytest.mark.parametrize(
    ("image", "kind", "options"),
    [
        (PICTURE, "PNG", {}),
        (PICTURE, "WEBP", {"lossless": True}),
        (PICTURE, "TIFF", {}),
        (PICTURE, "JPEG", {"quality": 90}),
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
    np.testing.assert_array_equal(by_all(pixels(profile="srgb"), file), np.asarray(converted))
    np.testing.assert_array_equal(by_all(pixels(), file), by_all(pixels(), plain))
    np.testing.assert_array_equal(by_all(pixels(profile="srgb"), plain), by_all(pixels(), plain))
    if kind != "TIFF":
        sideways = encode(image, kind, icc_profile=ADOBE_RGB, exif=turned(), **options)
        np.testing.assert_array_equal(by_all(pixels(profile="srgb"), sideways), np.rot90(np.asarray(converted), -1))


def test_a_profile_goes_before_color_and_resize() -> None:
    file = encode(PICTURE, "PNG", icc_profile=ADOBE_RGB)
    (whole,) = compile(pixels(profile="srgb")).run([file])
    converted = encode(Image.fromarray(whole), "PNG")
    for color in ("bgr", "gray"):
        small = [Resize(mode="exact", size=(20, 30)), Output(layout="NHWC", dtype="uint8")]
        with_profile = Definition(operations=[Decode(color=color, profile="srgb"), *small])
        plain = Definition(operations=[Decode(color=color), *small])
        for backend in ("reference", "dali"):
            one, other = (
                compile(d, backend=backend).run([f])[0] for d, f in ((with_profile, file), (plain, converted))
            )
            np.testing.assert_array_equal(one, other)


def test_profiles_that_are_passed_over_are_said_once(said: list[str]) -> None:
    for file in (encode(PICTURE, "JPEG"), encode(PICTURE, "JPEG", icc_profile=SRGB), encode(PICTURE, "WEBP")):
        by_all(pixels(), file)
    assert said == []
    for _ in range(2):
        by_all(pixels(), encode(PICTURE, "JPEG", icc_profile=ADOBE_RGB))
    assert len(said) == 1
    assert "a JPEG carries an ICC profile, which is passed over" in said[0]
    assert "decode.profile: ignore" in said[0]


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
        by_all(pixels(profile="srgb"), file)
    assert by_all(pixels(), file).shape == (43, 61, 3)


@pytest.mark.parametrize(
    "file",
    [png_of(GRAY), tiff(GRAY), tiff(GRAY, order=">"), encode(Image.fromarray(GRAY[:, :, 0]), "PNG", icc_profile=SRGB)],
)
def test_bits_of_a_16_bit_picture(file: bytes, said: list[str]) -> None:
    for bits, levels in ((12, [0, 0, 0, 1, 127, 255, 255, 255]), (8, [0, 1, 15, 16, 255, 255, 255, 255])):
        found = by_all(pixels(bits=bits), file)
        assert found[0, :, 0].tolist() == levels
        assert found.shape == (3, 8, 3)
    assert said == []
    (reference,) = compile(pixels()).run([file])
    assert reference[0, :, 0].tolist() == [0, 0, 0, 0, 7, 15, 16, 255]
    assert "has samples of 16 bit, of which the high byte is used (decode.bits: 16)" in said[0]
    assert by_all(pixels(bits=12), encode(PICTURE, "PNG")).shape == (43, 61, 3)
    with pytest.raises(BadImage, match=r"got a PNG in colour of 16 bit; decode.bits 12 is for gray ones"):
        by_all(pixels(bits=12), png_of(np.repeat(GRAY, 3, axis=2)))


def test_defaults_leave_digests_as_they_are() -> None:
    stated = Decode(profile="ignore", bits=16, frame="first")
    assert stated.model_dump() == {"op": "decode", "color": "rgb", "orientation": "apply", "alpha": "drop"}
    others = [pixels(profile="srgb"), pixels(bits=12), pixels(frame="error"), pixels()]
    assert len({definition.digest for definition in others}) == 4
    assert all(Definition.from_json(one.canonical_json()) == one for one in others)


FRAMES = [PICTURE, PICTURE.rotate(180), PICTURE.convert("L").convert("RGB")]
ALL = Limits(formats=("JPEG", "PNG", "WebP", "TIFF", "BMP", "GIF", "AVIF", "HEIC"))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("TIFF", {}),
        ("PNG", {}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"lossless": True, "exif": turned()}),
        ("GIF", {}),
        ("AVIF", {"quality": 90}),
    ],
)
def test_the_first_frame_is_used_and_it_is_said(kind: str, options: dict[str, Any], said: list[str]) -> None:
    file = encode(FRAMES[0], kind, save_all=True, append_images=FRAMES[1:], **options)
    opened = Image.open(io.BytesIO(file))
    assert opened.n_frames == 3
    expected = np.asarray(ImageOps.exif_transpose(opened).convert("RGB"))
    assert read_header(file).oriented_hw == expected.shape[:2]
    np.testing.assert_array_equal(by_all(pixels(), file, ALL), expected)
    name = read_header(file).format
    assert said == [
        f"a {name} has several pages or frames, of which the first is used (decode.frame: first) (said once)"
    ]
    one = encode(FRAMES[0], kind, **options)
    assert by_all(pixels(frame="error"), one, ALL).shape == expected.shape
    with pytest.raises(BadImage, match=f"got a {name} of several pages or frames; decode.frame is 'error'"):
        by_all(pixels(frame="error"), file, ALL)


@pytest.mark.parametrize("kind", ["GIF", "AVIF"])
def test_formats_of_pillow_are_for_those_who_ask(kind: str) -> None:
    file = encode(PICTURE, kind)
    with pytest.raises(
        BadImage, match=rf"got {kind}; allowed: JPEG, PNG, WebP, TIFF, BMP \({kind} where limits.formats"
    ):
        by_all(pixels(), file)
    with pytest.raises(BadImage, match="corrupt"):
        by_all(pixels(), file[: len(file) // 2], ALL)
    with pytest.raises(BadImage, match="too_many_pixels"):
        by_all(pixels(), file, ALL.model_copy(update={"max_pixels": 61 * 43 - 1}))


def test_heic_is_what_pillow_heif_makes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pillow_heif.register_heif_opener()
    file = encode(PICTURE, "HEIF", quality=90)
    with pytest.raises(BadImage, match=r"got HEIC; allowed: JPEG, PNG, WebP, TIFF, BMP \(HEIC where limits.formats"):
        by_all(pixels(), file)
    expected = np.asarray(Image.open(io.BytesIO(file)).convert("RGB"))
    assert read_header(file).oriented_hw == expected.shape[:2] == PICTURE.size[::-1]
    np.testing.assert_array_equal(by_all(pixels(), file, ALL), expected)
    with pytest.raises(BadImage, match="corrupt"):
        by_all(pixels(), file[: len(file) // 2], ALL)
    monkeypatch.setattr(by_pillow, "find_spec", lambda _: None)
    with pytest.raises(BadImage, match=r"got HEIC, which takes pillow-heif; .*pip install -e '\.\[heif\]'"):
        by_all(pixels(), file, ALL)


@pytest.mark.parametrize("kind", ["GIF", "AVIF", "HEIF", "WEBP"])
def test_damaged_files_of_pillow_are_bad_images(kind: str) -> None:
    file = encode(PICTURE, kind, save_all=True, append_images=FRAMES[1:])
    random = np.random.default_rng(5)
    damaged = [bytearray(file) for _ in range(40)]
    for data in damaged:
        places = random.integers(0, random.choice([60, 400, len(data)]), 4)
        for place in places:
            data[place] = random.integers(0, 256)
        del data[random.integers(len(data) // 2, 2 * len(data)) :]
    limits = ALL.model_copy(update={"max_pixels": 100_000})
    both = [compile(pixels(), backend=backend, limits=limits).run(damaged) for backend in ("reference", "dali")]
    for one, other in zip(*both, strict=True):
        assert str(one) == str(other) if isinstance(one, BadImage) else np.array_equal(one, other)


def test_what_is_not_ours_refuses_what_it_would_pass_over() -> None:
    with pytest.raises(CannotCompile, match="a container cannot do profile 'srgb', bits 12 of decode"):
        refuse_decoding(pixels(profile="srgb", bits=12), what="a container")
    refuse_decoding(pixels(), what="a container")


def test_a_profile_is_found_in_every_place() -> None:
    split = jpeg_with_segments(encode(PICTURE, "JPEG"), jpeg_segment(0xE2, b"ICC_PROFILE\0\1\2" + ADOBE_RGB[:99]))
    assert read_header(split).profile == "other"
    assert read_header(encode(PICTURE, "JPEG", icc_profile=SRGB)).profile == "sRGB"
    assert read_header(encode(PICTURE, "TIFF", icc_profile=SRGB)).profile == "sRGB"
    # A part of a profile is none.
    assert np.array_equal(by_all(pixels(profile="srgb"), split), by_all(pixels(), encode(PICTURE, "JPEG")))
