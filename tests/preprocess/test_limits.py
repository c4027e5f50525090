"""What is too much is refused from the header, quickly and without memory."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest
from definitions import in_levels
from image_files import (
    PNG_MAGIC,
    bmp,
    bmp_of,
    encode,
    jpeg_declaring,
    png_chunk,
    png_of,
    tiff,
    tiff_of_blocks,
    webp_chunks,
    webp_extended,
    webp_file,
)
from PIL import Image
from pydantic import ValidationError
from sample_images import card
from separate_process import run_separately

from onestream.preprocess import BadImage, CenterCrop, Decode, Definition, Limits, Pad, Resize, compile
from onestream.preprocess.cpu.fixed_point import resample_fixed_point
from onestream.preprocess.geometry import Window
from onestream.preprocess.limits import MAX_SIDE, PILLOW_MAX_PIXELS

BACKENDS = ("reference", "dali")
CLASSIFY = in_levels(Resize(mode="shorter", size=256), CenterCrop(size=(224, 224)))
SMALL = encode(Image.fromarray(card(20, 30)), "JPEG")


def png_declaring(width: int, height: int) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", b"x\x9c" + bytes(300)), (b"IEND", b"")]
    return PNG_MAGIC + b"".join(png_chunk(*chunk) for chunk in chunks)


def webp_declaring(width: int, height: int) -> bytes:
    kind, data = webp_chunks(encode(Image.new("RGB", (8, 8)), "WEBP"))[0]
    return webp_file([(kind, data[:6] + struct.pack("<HH", width, height) + data[10:])])


BOMBS = {
    "jpeg": jpeg_declaring(30_000, 30_000),
    "jpeg, nothing but the header": jpeg_declaring(30_000, 30_000)[:300],
    "png": png_declaring(30_000, 30_000),
    "webp": webp_declaring(16_383, 16_383),
    "webp, canvas": webp_extended([(b"VP8 ", bytes(20))], (30_000, 30_000), 0),
    "tiff": tiff_of_blocks([bytes(9)], (30_000, 30_000, 3), np.dtype(np.uint8), compression=8),
    "bmp": bmp_of(card(4, 4))[:18] + struct.pack("<ii", 30_000, -30_000) + bmp_of(card(4, 4))[26:],
    "png, one line": png_declaring(50_000_000, 1),
    "tiff, one line": tiff_of_blocks([bytes(9)], (1, 50_000_000, 1), np.dtype(np.uint8), compression=8),
}


def bad(limits: Limits, data: bytes) -> BadImage:
    with pytest.raises(BadImage) as caught:
        limits.check(data)
    return caught.value


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_without_memory(bomb: str) -> None:
    data = BOMBS[bomb]
    assert len(data) < 1000
    tracemalloc.start()
    try:
        error = bad(Limits(), data)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()
    assert error.code == "too_many_pixels"
    assert "allowed" in error.reason


@pytest.mark.parametrize("backend", BACKENDS)
def test_bombs_cost_a_backend_nothing(backend: str) -> None:
    inner = {
        # Sizes that only a decoder sees, below a header that is small.
        "webp canvas smaller than its picture": webp_extended(webp_chunks(webp_declaring(16_383, 16_383)), (8, 8), 0),
        "jpeg in a tiff": tiff_of_blocks(
            [jpeg_declaring(30_000, 30_000)], (8, 8, 3), np.dtype(np.uint8), photometric=6, compression=7
        ),
        "tiff tile": tiff(card(8, 8), tile=16, tags={322: (4, [65_520]), 323: (4, [65_520])}),
        "png text": png_of(card(8, 8), before=[(b"zTXt", b"k\0\0" + b"\0" * 50)]),
    }
    report = run_separately(
        [*BOMBS.values(), *inner.values(), *[BOMBS["jpeg"]] * 50],
        definition=CLASSIFY,
        backend=backend,
        warm_up=[SMALL, encode(Image.fromarray(card(500, 700)), "PNG")],
    )
    assert all(isinstance(outcome, BadImage) for outcome in report.outcomes[: len(BOMBS)])
    assert report.grown_mib < 40


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_line_is_not_scaled_to_gigapixels(backend: str) -> None:
    """65535x1 is tiny, and 256 pixels high it is 4 gigapixels; the crop keeps 224 of these."""
    line, column = png_of(card(1, MAX_SIDE)), png_of(card(MAX_SIDE, 1))
    flat = in_levels(Resize(mode="exact", size=(8, 8)))
    refused = run_separately([line, column] * 2, definition=CLASSIFY, backend=backend, warm_up=[line, SMALL])
    assert [outcome.code for outcome in refused.outcomes] == ["too_many_pixels"] * 4
    assert "16776960x256" in refused.outcomes[0].reason
    assert refused.grown_mib < 40
    kept = run_separately([line, column] * 2, definition=flat, backend=backend, warm_up=[line, column])
    assert [outcome.shape for outcome in kept.outcomes] == [(8, 8, 3)] * 4
    assert kept.grown_mib < 40


def test_a_side_longer_than_any_jpeg_is_refused() -> None:
    assert Limits().check(png_declaring(MAX_SIDE, 1)).width == MAX_SIDE
    error = bad(Limits(), png_declaring(MAX_SIDE + 1, 1))
    assert error.code == "too_many_pixels"
    assert "65536x1" in error.reason
    assert "65535 a side" in error.reason


@pytest.mark.parametrize("data", [b"", bytearray(), memoryview(b""), np.empty(0, np.uint8)])
def test_nothing_is_not_an_image(data: bytes) -> None:
    error = bad(Limits(), data)
    assert error.code == "empty"
    assert str(error) == ("bad image (empty): got 0 bytes; expected an encoded image (JPEG, PNG, WebP, TIFF, BMP)")


def test_bytes_are_counted_before_anything_is_read() -> None:
    limits = Limits(max_body_bytes=len(SMALL))
    assert limits.check(SMALL).format == "JPEG"
    for data in (SMALL + b"\0", b"no image" * 1000):
        error = bad(limits, data)
        assert error.code == "too_large"
        assert str(len(data)) in error.reason
        assert str(len(SMALL)) in error.reason


def test_pixels_are_counted_to_the_last_one() -> None:
    for width, height in ((100, 100), (10_000, 1), (1, 10_000)):
        assert Limits(max_pixels=10_000).check(png_declaring(width, height)).width == width
    for width, height in ((101, 100), (10_001, 1), (73, 137)):
        error = bad(Limits(max_pixels=10_000), png_declaring(width, height))
        assert error.code == "too_many_pixels"
        assert f"{width}x{height} = {width * height} pixels" in error.reason
        assert "10000" in error.reason


@pytest.mark.parametrize("backend", BACKENDS)
def test_configured_limits_hold_in_a_backend(backend: str) -> None:
    limits = Limits(max_pixels=600, max_body_bytes=5000, formats=("JPEG", "PNG"))
    compiled = compile(
        Definition(operations=[Decode(), Resize(mode="longer", size=25)]), backend=backend, limits=limits
    )
    images = [SMALL, png_of(card(31, 20)), png_of(card(2, 2)) + bytes(5000), bmp_of(card(4, 4)), png_of(card(24, 25))]
    codes = [getattr(outcome, "code", "good") for outcome in compiled.run(images)]
    assert codes == ["good", "too_many_pixels", "too_large", "unsupported_format", "good"]


def test_a_format_can_be_left_out() -> None:
    error = bad(Limits(formats=("JPEG",)), png_of(card(3, 3)))
    assert error.code == "unsupported_format"
    assert error.reason == "got PNG; allowed: JPEG"


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_image_that_a_pad_cannot_hold_is_refused_and_the_others_are_not(backend: str) -> None:
    definition = Definition(operations=[Decode(), Resize(mode="shorter", size=20), Pad(size=(32, 32))])
    compiled = compile(definition, backend=backend)
    wide, square = png_of(card(20, 60)), png_of(card(20, 20))
    good, refused, same = compiled.run([square, wide, square])
    assert refused.code == "too_many_pixels"
    assert "pads to 32x32" in refused.reason
    assert "60x20" in refused.reason
    np.testing.assert_array_equal(good, same)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"max_body_bytes": 0}, "max_body_bytes"),
        ({"max_pixels": 0}, "max_pixels"),
        ({"max_pixels": PILLOW_MAX_PIXELS + 1}, str(PILLOW_MAX_PIXELS)),
        ({"formats": ()}, "formats"),
        ({"formats": ("SVG",)}, "'JPEG', 'PNG', 'WebP', 'TIFF', 'BMP', 'GIF', 'AVIF' or 'HEIC'"),
        ({"max_bytes": 3}, "max_bytes"),
    ],
)
def test_limits_that_make_no_sense_are_refused(values: dict[str, object], named: str) -> None:
    with pytest.raises(ValidationError, match=named.replace(".", r"\.")):
        Limits.model_validate(values)


def test_limits_are_a_value() -> None:
    limits = Limits(max_pixels=1000, formats=("PNG",))
    assert Limits.model_validate_json(limits.model_dump_json()) == limits
    assert Limits() == Limits()
    with pytest.raises(ValidationError):
        limits.max_pixels = 5


def test_palette_indices_are_checked_without_a_copy_of_the_pixels() -> None:
    data = bmp([bytes(4000)] * 2000, 4000, bits=8, palette=bytes(400))
    tracemalloc.start()
    try:
        assert Limits().check(data).width == 4000
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


def test_weights_of_long_lines_are_not_kept() -> None:
    tracemalloc.start()
    try:
        for width in range(60_000, 60_040):
            whole = Window(0, 0, 1, width).spans
            resample_fixed_point(
                np.zeros((1, width, 3), np.uint8), whole, (1, 200), "bilinear", columns_first=False, to_bgr=False
            )
        assert tracemalloc.get_traced_memory()[0] < 2_000_000
    finally:
        tracemalloc.stop()
