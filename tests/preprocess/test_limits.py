"""What is too much is refused from the header, quickly and without memory."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from definitions import chain, in_levels
from image_files import (
    bmp,
    bmp_of,
    encode,
    jpeg_declaring,
    png,
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

from onestream.preprocess import BadImage, CenterCrop, Limits, Pad, Resize, compile
from onestream.preprocess.cpu.fixed_point import resample_fixed_point
from onestream.preprocess.geometry import Window
from onestream.preprocess.limits import MAX_SIDE, PILLOW_MAX_PIXELS

BACKENDS = ("reference", "dali")
CLASSIFY = in_levels(Resize(mode="shorter", size=256), CenterCrop(size=(224, 224)))
SMALL = encode(Image.fromarray(card(20, 30)), "JPEG")


def png_declaring(width: int, height: int) -> bytes:
    return png([bytes(300)], width, height=height, bits=8, color=2)


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


@contextmanager
def traced() -> Iterator[Callable[[], tuple[int, int]]]:
    """Gives the bytes that Python holds, and the most that it held."""
    tracemalloc.start()
    try:
        yield tracemalloc.get_traced_memory
    finally:
        tracemalloc.stop()


def bad(limits: Limits, data: bytes) -> BadImage:
    with pytest.raises(BadImage) as caught:
        limits.check(data)
    return caught.value


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_without_memory(bomb: str) -> None:
    assert len(BOMBS[bomb]) < 1000
    with traced() as memory:
        error = bad(Limits(), BOMBS[bomb])
        assert memory()[1] < 200_000
    assert error.code == "too_many_pixels"
    assert "allowed" in error.reason


# Sizes that only a decoder sees, below a header that is small.
INNER = [
    webp_extended(webp_chunks(webp_declaring(16_383, 16_383)), (8, 8), 0),
    tiff_of_blocks([jpeg_declaring(30_000, 30_000)], (8, 8, 3), np.dtype(np.uint8), photometric=6, compression=7),
    tiff(card(8, 8), tile=16, tags={322: (4, [65_520]), 323: (4, [65_520])}),
    png_of(card(8, 8), before=[(b"zTXt", b"k\0\0" + b"\0" * 50)]),
]


@pytest.mark.parametrize("backend", BACKENDS)
def test_bombs_cost_a_backend_nothing(backend: str) -> None:
    report = run_separately(
        [*BOMBS.values(), *INNER, *[BOMBS["jpeg"]] * 50],
        definition=CLASSIFY,
        backend=backend,
        warm_up=[SMALL, png_of(card(500, 700))],
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


@pytest.mark.parametrize(
    ("fields", "data", "code", "reason"),
    [
        ({}, b"", "empty", "got 0 bytes; expected an encoded image (JPEG, PNG, WebP, TIFF, BMP)"),
        ({}, bytearray(), "empty", "got 0 bytes"),
        ({}, memoryview(b""), "empty", "got 0 bytes"),
        ({}, np.empty(0, np.uint8), "empty", "got 0 bytes"),
        # Bytes are counted before anything is read.
        ({"max_body_bytes": 8000}, b"no image" * 1001, "too_large", "8008 bytes; at most 8000"),
        ({"max_body_bytes": len(SMALL)}, SMALL + b"\0", "too_large", f"at most {len(SMALL)}"),
        ({"max_pixels": 10_000}, png_declaring(101, 100), "too_many_pixels", "101x100 = 10100 pixels; at most 10000"),
        ({"max_pixels": 10_000}, png_declaring(10_001, 1), "too_many_pixels", "10001x1 = 10001 pixels"),
        ({"max_pixels": 10_000}, png_declaring(73, 137), "too_many_pixels", "73x137 = 10001 pixels"),
        ({}, png_declaring(MAX_SIDE + 1, 1), "too_many_pixels", "65536x1 pixels; at most 65535 a side are"),
        ({"formats": ("JPEG",)}, png_of(card(3, 3)), "unsupported_format", "got PNG; allowed: JPEG"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_above_a_limit_is_refused_by_name(fields: dict[str, Any], data: bytes, code: str, reason: str) -> None:
    error = bad(Limits(**fields), data)
    assert error.code == code
    assert reason in error.reason
    assert str(error) == f"bad image ({code}): {error.reason}"


def test_what_is_at_a_limit_is_taken() -> None:
    for width, height in ((100, 100), (10_000, 1), (1, 10_000)):
        assert Limits(max_pixels=10_000).check(png_declaring(width, height)).width == width
    assert Limits().check(png_declaring(MAX_SIDE, 1)).width == MAX_SIDE
    assert Limits(max_body_bytes=len(SMALL)).check(SMALL).format == "JPEG"


@pytest.mark.parametrize("backend", BACKENDS)
def test_configured_limits_hold_in_a_backend(backend: str) -> None:
    limits = Limits(max_pixels=600, max_body_bytes=5000, formats=("JPEG", "PNG"))
    compiled = compile(chain(Resize(mode="longer", size=25)), backend=backend, limits=limits)
    images = [SMALL, png_of(card(31, 20)), png_of(card(2, 2)) + bytes(5000), bmp_of(card(4, 4)), png_of(card(24, 25))]
    codes = [getattr(outcome, "code", "good") for outcome in compiled.run(images)]
    assert codes == ["good", "too_many_pixels", "too_large", "unsupported_format", "good"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_image_that_a_pad_cannot_hold_is_refused_and_the_others_are_not(backend: str) -> None:
    compiled = compile(chain(Resize(mode="shorter", size=20), Pad(size=(32, 32))), backend=backend)
    wide, square = png_of(card(20, 60)), png_of(card(20, 20))
    good, refused, same = compiled.run([square, wide, square])
    assert refused.code == "too_many_pixels"
    assert "pads to 32x32 pixels, which cannot hold the 60x20" in refused.reason
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
    with pytest.raises(ValidationError):
        limits.max_pixels = 5


def test_palette_indices_are_checked_without_a_copy_of_the_pixels() -> None:
    data = bmp([bytes(4000)] * 2000, 4000, bits=8, palette=bytes(400))
    with traced() as memory:
        assert Limits().check(data).width == 4000
        assert memory()[1] < 200_000


def test_weights_of_long_lines_are_not_kept() -> None:
    with traced() as memory:
        for width in range(60_000, 60_040):
            line, spans = np.zeros((1, width, 3), np.uint8), Window(0, 0, 1, width).spans
            resample_fixed_point(line, spans, (1, 200), "bilinear", columns_first=False, to_bgr=False)
        assert memory()[0] < 2_000_000
