"""What can be given as an image, and that pixels arrive as they were."""

from __future__ import annotations

import array
import io
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image, ImageOps

from onestream.client import BadImage, UnreadableInput, UnsupportedInput
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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "cat.jpg"
    path.write_bytes(FILE)
    return path


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: memoryview(array.array("B", data))])
def test_bytes_travel_as_they_are(kind: Any) -> None:
    assert both_ways(kind(FILE)) == FILE


def test_a_memoryview_with_gaps_is_sent_as_its_bytes() -> None:
    assert both_ways(memoryview(FILE)[::2]) == FILE[::2]


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_is_read(path: Path, kind: Any) -> None:
    assert both_ways(kind(path)) == FILE


def test_an_open_file_is_read_from_its_position_on(path: Path) -> None:
    with path.open("rb") as file:
        file.seek(5)
        assert both_ways(file) == FILE[5:]
    with path.open("rb", buffering=0) as file:
        assert both_ways(file) == FILE
    assert both_ways(io.BytesIO(FILE)) == FILE


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


def test_a_device_without_an_end_is_read_to_the_limit_only() -> None:
    with pytest.raises(BadImage, match="1001 bytes, allowed are at most 1000"):
        encode("/dev/zero", max_body_bytes=1000)


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
    bgr = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    for view in (bgr[..., ::-1], bgr[::-1], bgr[::2, 1:20:3], bgr.transpose(1, 0, 2), bgr[..., 0]):
        assert np.array_equal(np.asarray(decoded(both_ways(view))), view)


def test_what_is_too_large_as_bmp_goes_as_png() -> None:
    pixels = np.zeros((100, 100, 3), np.uint8)
    image = decoded(both_ways(pixels, limit=10_000))
    assert image.format == "PNG"
    assert np.array_equal(np.asarray(image), pixels)


def test_pixels_that_fit_in_no_form_are_refused() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (100, 100, 3), np.uint8)
    with pytest.raises(BadImage, match=r"too_large.*at most 10000") as caught:
        encode(noise, max_body_bytes=10_000)
    assert caught.value.code == "too_large"


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "RGBX", "PA"])
def test_every_mode_of_pil_keeps_its_colours(mode: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 17, 3), np.uint8)
    image = Image.fromarray(pixels).convert(mode)
    assert np.array_equal(np.asarray(decoded(both_ways(image)).convert("RGB")), np.asarray(image.convert("RGB")))


def test_alpha_palette_and_depth_are_left_to_the_servers_definition() -> None:
    rgba = Image.new("RGBA", (4, 3), (10, 20, 30, 40))
    assert decoded(both_ways(rgba)).getpixel((0, 0)) == (10, 20, 30, 40)
    sixteen = Image.fromarray(np.full((3, 4), 51_234, np.uint16))
    assert sixteen.mode == "I;16"
    assert decoded(both_ways(sixteen)).getpixel((0, 0)) == 51_234


@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_opened_photo_keeps_its_orientation(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    pixels = np.random.default_rng(0).integers(0, 256, (5, 8, 3), np.uint8)
    path = tmp_path / "photo.png"
    Image.fromarray(pixels).save(path, exif=exif)
    with Image.open(path) as photo:
        upright = ImageOps.exif_transpose(photo)
        sent = decoded(both_ways(photo))
        assert np.array_equal(np.asarray(ImageOps.exif_transpose(sent)), np.asarray(upright))
        sent_upright = decoded(both_ways(upright))
        assert np.array_equal(np.asarray(ImageOps.exif_transpose(sent_upright)), np.asarray(upright))


def test_a_colour_profile_is_not_sent() -> None:
    image = Image.new("RGBA", (4, 4))
    image.info["icc_profile"] = b"a profile that a decoder might apply"
    assert "icc_profile" not in decoded(both_ways(image)).info


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (3, "type int"),
        (None, "NoneType"),
        ([1, 2], "list"),
        (io.StringIO("text"), "mode 'rb'"),
        (np.zeros((4, 4, 3), np.float32), r"float32 \[4, 4, 3\]"),
        (np.zeros((4, 4, 4), np.uint8), r"\[4, 4, 4\].*expected uint8 \[height, width, 3\]"),
        (np.zeros((3, 8, 8), np.uint8), "transpose"),
        (np.zeros((1, 4, 4, 3), np.uint8), r"\[1, 4, 4, 3\]"),
        (np.zeros(100, np.uint8), "tobytes"),
        (Image.new("F", (2, 2)), "mode 'F'"),
        (Image.new("I", (2, 2)), "mode 'I'"),
    ],
)
def test_other_objects_are_refused_by_name(image: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words) as caught:
        encode(image, max_body_bytes=LIMIT)
    assert isinstance(caught.value, UnsupportedInput)


@pytest.mark.parametrize("image", [b"", io.BytesIO(), np.zeros((0, 4, 3), np.uint8), Image.new("RGB", (0, 3))])
def test_nothing_is_an_empty_image(image: Any) -> None:
    with pytest.raises(BadImage) as caught:
        encode(image, max_body_bytes=LIMIT)
    assert caught.value.code == "empty"


def test_the_limit_is_inclusive_and_checked_before_a_file_is_read(tmp_path: Path) -> None:
    assert encode(bytes(100), max_body_bytes=100).byte_size == 100
    sparse = tmp_path / "huge.jpg"
    with sparse.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(BadImage, match=r"1099511627776 bytes, allowed are at most 100"):
        encode(sparse, max_body_bytes=100)


@pytest.mark.parametrize(
    "image", [np.zeros((3, 4, 3), np.uint8), np.zeros((3, 4), np.uint8), Image.new("CMYK", (4, 3))]
)
def test_pixels_are_counted_before_they_are_encoded(image: Any) -> None:
    assert encode(image, max_body_bytes=LIMIT, max_pixels=12).byte_size > 12
    with pytest.raises(BadImage, match="4x3 = 12 pixels, allowed are at most 11") as caught:
        encode(image, max_body_bytes=LIMIT, max_pixels=11)
    assert caught.value.code == "too_many_pixels"


def test_content_given_as_a_path_makes_a_short_message() -> None:
    with pytest.raises(UnreadableInput, match=r"a string is the path of a file.*b64decode") as caught:
        encode("/9j/4AAQSkZJ" * 8000, max_body_bytes=LIMIT)
    assert len(str(caught.value)) < 400


def test_files_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match=r"none\.jpg: the image cannot be read: No such file"):
        encode(tmp_path / "none.jpg", max_body_bytes=LIMIT)
    with pytest.raises(OSError, match="directory"):
        encode(tmp_path, max_body_bytes=LIMIT)
    with pytest.raises(UnreadableInput, match="null"):
        encode("a\0b", max_body_bytes=LIMIT)
    closed = io.BytesIO(FILE)
    closed.close()
    with pytest.raises(UnreadableInput, match="closed"):
        encode(closed, max_body_bytes=LIMIT)


def test_a_file_that_shrinks_meanwhile_is_noticed(path: Path) -> None:
    encoded = encode(path, max_body_bytes=LIMIT)
    path.write_bytes(FILE[:10])
    with pytest.raises(UnreadableInput, match=f"10 of {len(FILE)} bytes"):
        encoded.to_bytes()


def test_a_pil_image_whose_file_is_cut_is_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "cut.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 50, 3), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:2000])
    with Image.open(path) as image, pytest.raises(UnreadableInput, match=r"cut\.png"):
        encode(image, max_body_bytes=LIMIT)
