"""What can be given as an image, and that pixels arrive as they were."""

from __future__ import annotations

import array
import io
import os
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image, ImageOps

from onestream.client import BadImage, OnestreamError, UnreadableInput, UnsupportedInput
from onestream.client.images import encode

LIMIT = 1 << 20
FILE = b"\xff\xd8 an encoded file, as far as the client knows"


def both_ways(image: Any, limit: int = LIMIT) -> bytes:
    """The encoded bytes, after checking that writing them in place gives the same."""
    encoded = encode(image, max_body_bytes=limit)
    buffer = bytearray(b"\xaa" * encoded.byte_size)
    encoded.write_into(memoryview(buffer))
    data = encoded.to_bytes()
    assert data == bytes(buffer)
    assert len(data) == encoded.byte_size
    return data


def decoded(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "cat.jpg"
    path.write_bytes(FILE)
    return path


def test_an_encoded_file_travels_as_it_is(path: Path) -> None:
    for same in (FILE, bytearray(FILE), memoryview(FILE), memoryview(array.array("B", FILE)), io.BytesIO(FILE)):
        assert both_ways(same) == FILE
    assert both_ways(memoryview(FILE)[::2]) == FILE[::2]
    assert both_ways(path) == both_ways(str(path)) == FILE
    with path.open("rb") as file:
        file.seek(5)
        assert both_ways(file) == FILE[5:]
    with path.open("rb", buffering=0) as file:
        assert both_ways(file) == FILE


def test_a_stream_without_an_end_is_read_to_the_limit_only() -> None:
    class Endless:
        given = 0

        def read(self, size: int) -> bytes:
            self.given += size
            return bytes(size)

    endless = Endless()
    with pytest.raises(BadImage, match="too_large"):
        encode(endless, max_body_bytes=1000)  # type: ignore[arg-type]
    assert endless.given == 1001


def test_a_pipe_can_be_given_by_its_path(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(FILE))
    writer.start()
    encoded = encode(pipe, max_body_bytes=LIMIT)
    writer.join()
    assert encoded.to_bytes() == FILE


@given(
    arrays(
        np.uint8,
        st.tuples(st.integers(1, 9), st.integers(1, 9)).flatmap(lambda s: st.sampled_from([s, (*s, 1), (*s, 3)])),
    )
)
def test_pixels_arrive_unchanged(pixels: np.ndarray) -> None:
    image = decoded(both_ways(pixels))
    assert image.format == "BMP"
    expected = pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels
    assert np.array_equal(np.asarray(image), expected)


def test_views_with_strides_arrive_unchanged() -> None:
    bgr = noise(20, 30, 3)
    for view in (bgr[..., ::-1], bgr[::-1], bgr[::2, 1:20:3], bgr.transpose(1, 0, 2), bgr[..., 0]):
        assert np.array_equal(np.asarray(decoded(both_ways(view))), view)


def test_what_is_too_large_as_bmp_goes_as_png() -> None:
    pixels = np.zeros((100, 100, 3), np.uint8)
    image = decoded(both_ways(pixels, limit=10_000))
    assert image.format == "PNG"
    assert np.array_equal(np.asarray(image), pixels)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "RGBX", "PA"])
def test_every_mode_of_pil_keeps_its_colours(mode: str) -> None:
    image = Image.fromarray(noise(12, 17, 3)).convert(mode)
    assert np.array_equal(np.asarray(decoded(both_ways(image)).convert("RGB")), np.asarray(image.convert("RGB")))


def test_alpha_and_depth_are_left_to_the_servers_definition_and_no_profile_is_sent() -> None:
    rgba = Image.new("RGBA", (4, 3), (10, 20, 30, 40))
    rgba.info["icc_profile"] = b"a profile that a decoder might apply"
    sent = decoded(both_ways(rgba))
    assert sent.getpixel((0, 0)) == (10, 20, 30, 40)
    assert "icc_profile" not in sent.info
    sixteen = Image.fromarray(np.full((3, 4), 51_234, np.uint16))
    assert sixteen.mode == "I;16"
    assert decoded(both_ways(sixteen)).getpixel((0, 0)) == 51_234


@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_opened_photo_keeps_its_orientation(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "photo.png"
    Image.fromarray(noise(5, 8, 3)).save(path, exif=exif)
    with Image.open(path) as photo:
        upright = ImageOps.exif_transpose(photo)
        for given in (photo, upright):
            sent = decoded(both_ways(given))
            assert np.array_equal(np.asarray(ImageOps.exif_transpose(sent)), np.asarray(upright))


CLOSED = io.BytesIO(FILE)
CLOSED.close()
PIXELS = [np.zeros((3, 4, 3), np.uint8), np.zeros((3, 4), np.uint8), Image.new("CMYK", (4, 3))]


@pytest.mark.parametrize(
    ("image", "limits", "said"),
    [
        (3, {}, "UnsupportedInput: .*type int"),
        (None, {}, "UnsupportedInput: .*NoneType"),
        ([1, 2], {}, "UnsupportedInput: .*list"),
        (io.StringIO("text"), {}, "UnsupportedInput: .*mode 'rb'"),
        (np.zeros((4, 4, 3), np.float32), {}, r"UnsupportedInput: .*float32 \[4, 4, 3\]"),
        (noise(4, 4, 4), {}, r"UnsupportedInput: .*\[4, 4, 4\].*expected uint8 \[height, width, 3\]"),
        (noise(3, 8, 8), {}, "UnsupportedInput: .*transpose"),
        (noise(1, 4, 4, 3), {}, r"UnsupportedInput: .*\[1, 4, 4, 3\]"),
        (noise(100), {}, "UnsupportedInput: .*tobytes"),
        (Image.new("F", (2, 2)), {}, "UnsupportedInput: .*mode 'F'"),
        (Image.new("I", (2, 2)), {}, "UnsupportedInput: .*mode 'I'"),
        ("/no/none.jpg", {}, r"UnreadableInput: .*none\.jpg: the image cannot be read: No such file"),
        ("/", {}, "UnreadableInput: .*directory"),
        ("a\0b", {}, "UnreadableInput: .*null"),
        ("/9j/4AAQSkZJ" * 8000, {}, "UnreadableInput: .*a string is the path of a file.*b64decode"),
        (CLOSED, {}, "UnreadableInput: .*closed"),
        *((nothing, {}, r"BadImage: bad image \(empty\)") for nothing in (b"", io.BytesIO(), noise(0, 4, 3))),
        (Image.new("RGB", (0, 3)), {}, r"BadImage: bad image \(empty\)"),
        ("/dev/zero", {"max_body_bytes": 1000}, "BadImage: .*1001 bytes, allowed are at most 1000"),
        (noise(100, 100, 3), {"max_body_bytes": 10_000}, r"BadImage: bad image \(too_large\).*at most 10000"),
        *((image, {"max_pixels": 11}, r"BadImage: .*\(too_many_pixels\): 4x3 = 12 pix.*most 11") for image in PIXELS),
    ],
)
def test_what_is_no_image_or_too_much_is_refused_by_name(image: Any, limits: dict[str, int], said: str) -> None:
    with pytest.raises(OnestreamError) as caught:
        encode(image, **{"max_body_bytes": LIMIT, **limits})
    assert re.match(said, f"{type(caught.value).__name__}: {caught.value}")
    assert len(str(caught.value)) < 400
    assert issubclass(UnsupportedInput, TypeError)
    assert issubclass(UnreadableInput, OSError)


def test_the_limit_is_inclusive_and_checked_before_a_file_is_read(tmp_path: Path) -> None:
    assert encode(bytes(100), max_body_bytes=100).byte_size == 100
    sparse = tmp_path / "huge.jpg"
    with sparse.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(BadImage, match=r"1099511627776 bytes, allowed are at most 100"):
        encode(sparse, max_body_bytes=100)


@pytest.mark.parametrize("image", PIXELS)
def test_as_many_pixels_as_allowed_are_taken(image: Any) -> None:
    assert encode(image, max_body_bytes=LIMIT, max_pixels=12).byte_size > 12


def test_a_file_that_shrinks_meanwhile_is_noticed(path: Path) -> None:
    encoded = encode(path, max_body_bytes=LIMIT)
    path.write_bytes(FILE[:10])
    with pytest.raises(UnreadableInput, match=f"10 of {len(FILE)} bytes"):
        encoded.to_bytes()


def test_a_pil_image_whose_file_is_cut_is_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "cut.png"
    Image.fromarray(noise(50, 50, 3)).save(path)
    path.write_bytes(path.read_bytes()[:2000])
    with Image.open(path) as image, pytest.raises(UnreadableInput, match=r"cut\.png"):
        encode(image, max_body_bytes=LIMIT)
