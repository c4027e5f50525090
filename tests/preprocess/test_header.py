"""Headers say what Pillow says; forms that the backends would read differently are refused by name.

Mutated and cut files raise nothing but ``BadImage``; that it takes little work is counted in
``tests/hostile/test_hostile_headers.py``.
"""

from __future__ import annotations

import io
import random
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from image_files import (
    bmp,
    bmp_of,
    encode,
    jpeg_with_segments,
    png,
    png_of,
    tiff,
    tiff_of_blocks,
    webp_extended,
    webp_file,
)
from oriented_files import HEIGHT, ICC, IMAGE, JPEG, LOSSY, NOT_EXIF, ORIENTED, PIXELS, UNCLEAR_EXIF, WIDTH
from PIL import Image
from sample_images import CONVERTED, PLAIN, photo, pillow_oriented

from benchmarks.hostile.headers import mutated
from onestream.preprocess import BadImage
from onestream.preprocess.headers.reader import FORMATS, Header, for_decoders, read_header


@pytest.mark.parametrize("form", ORIENTED)
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_what_pillow_applies(form: str, order: str, orientation: int) -> None:
    data = ORIENTED[form](orientation, order)
    header = read_header(data)
    assert header.orientation == orientation
    assert (header.height, header.width) == (HEIGHT, WIDTH)
    expected = pillow_oriented(data)
    assert header.oriented_hw == (expected.height, expected.width)
    # What decoders get to see shows the same picture.
    np.testing.assert_array_equal(np.asarray(pillow_oriented(bytes(for_decoders(data, header)))), np.asarray(expected))


@pytest.mark.parametrize("form", [*PLAIN, *CONVERTED])
def test_size_is_what_pillow_says(form: str) -> None:
    for width, height in ((61, 47), (1, 1), (1, 200), (333, 2)):
        data = (PLAIN | CONVERTED)[form](photo("chelsea").resize((width, height)))
        header = read_header(data)
        expected = pillow_oriented(data)
        assert header.oriented_hw == (expected.height, expected.width)
        assert header.format.upper() == Image.open(io.BytesIO(data)).format


@pytest.mark.parametrize("form", UNCLEAR_EXIF | NOT_EXIF)
def test_what_is_no_clear_exif_counts_as_upright(form: str) -> None:
    assert read_header((UNCLEAR_EXIF | NOT_EXIF)[form]).orientation == 1


@pytest.mark.parametrize(
    ("seen", "data"),
    [
        ("GIF", encode(IMAGE, "GIF")),
        ("AVIF", b"\0\0\0\x20ftypavif" + bytes(300)),
        ("HEIC", b"\0\0\0\x18ftypheic" + bytes(300)),
        ("an ISO media file", b"\0\0\0\x18ftypmp42" + bytes(300)),
        ("SVG", b"<svg xmlns='http://www.w3.org/2000/svg'/>"),
        ("SVG", b"\xef\xbb\xbf<?xml version='1.0'?>\n<!-- -->\n<svg/>"),
        ("JPEG 2000", b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(60)),
        ("JPEG XL", b"\xff\x0a" + bytes(60)),
        ("PDF", b"%PDF-1.7\n" + bytes(60)),
        ("BigTIFF", b"II+\0" + bytes(60)),
        ("text", b"Not found\n"),
        ("text", b"<html><body>404</body></html>"),
        ("an unknown format beginning with 0x00010203", bytes(range(64))),
        ("an unknown format beginning with 0xff", b"\xff"),
        ("a RIFF file that is not WebP", b"RIFF" + struct.pack("<I", 40) + b"WAVEfmt " + bytes(60)),
    ],
)
def test_other_formats_are_named(seen: str, data: bytes) -> None:
    with pytest.raises(BadImage) as caught:
        read_header(data, formats=FORMATS)
    assert caught.value.code == "unsupported_format"
    assert caught.value.reason.startswith(f"got {seen}; allowed: ")


def packed(bits: int) -> list[bytes]:
    rows = PIXELS[:, :, 0] >> (8 - bits)
    return [np.packbits(np.unpackbits(row[:, None], axis=1)[:, 8 - bits :]).tobytes() for row in rows]


PALETTE = bytes(range(256)) * 4
GRAY_PALETTE = b"".join(bytes([level, level, level, 0]) for level in range(256))
NO_EXTRA = {338: (3, [])}
RGBA = np.dstack([PIXELS, PIXELS[:, :, :1]])
GRAY_ALPHA = PIXELS[:, :, :2]
WIDE = PIXELS.astype(np.uint16) * 257
CMYK_JPEG = encode(IMAGE.convert("CMYK"), "JPEG")
SOF = JPEG.find(b"\xff\xc0")


def with_scans(jpeg: bytes, more: int) -> bytes:
    """A JPEG whose last scan is repeated."""
    end = jpeg.rfind(b"\xff\xd9")
    return jpeg[:end] + jpeg[jpeg.rfind(b"\xff\xda") : end] * more + jpeg[end:]


FORMS_REFUSED: dict[str, tuple[str, bytes]] = {
    "JPEG of a hundred scans": ("more than 64 scans", with_scans(encode(IMAGE, "JPEG", progressive=True), 96)),
    "12-bit JPEG": ("12-bit JPEG", JPEG[: SOF + 4] + b"\x0c" + JPEG[SOF + 5 :]),
    "lossless JPEG": ("0xffc3", JPEG[: SOF + 1] + b"\xc3" + JPEG[SOF + 2 :]),
    "arithmetic JPEG": ("0xffc9", JPEG[: SOF + 1] + b"\xc9" + JPEG[SOF + 2 :]),
    "JPEG of 2 components": ("2 components", JPEG[: SOF + 9] + b"\x02" + JPEG[SOF + 10 :]),
    "CMYK JPEG without Adobe marker": ("without an Adobe marker", CMYK_JPEG[:2] + CMYK_JPEG[18:]),
    "TIFF, gray and alpha": ("2 samples", tiff(GRAY_ALPHA)),
    "TIFF, premultiplied alpha": ("extra samples [1]", tiff(RGBA, tags={338: (3, [1])})),
    "TIFF, CMYK": ("photometric interpretation 5", tiff(RGBA, photometric=5, tags=NO_EXTRA)),
    "TIFF, Lab": ("photometric interpretation 8", tiff(PIXELS, photometric=8)),
    "TIFF, YCbCr": ("photometric interpretation 6", tiff(PIXELS, photometric=6)),
    "TIFF, 5 channels": ("5 samples", tiff(np.dstack([PIXELS, GRAY_ALPHA]))),
    "TIFF, float": ("[32] bit, format 3", tiff(PIXELS[:, :, :1].astype(np.float32))),
    "TIFF, 32 bit": ("[32] bit", tiff(PIXELS[:, :, :1].astype(np.uint32))),
    "TIFF, signed": ("format 2", tiff(PIXELS[:, :, :1].astype(np.int8))),
    "TIFF, fax": ("compression 4", encode(IMAGE.convert("1"), "TIFF", compression="group4")),
    "TIFF, 1 bit unsaid": ("[1] bit", encode(IMAGE.convert("1"), "TIFF")),
    "TIFF, planes": ("planar configuration 2", tiff(PIXELS, planar=True)),
    "TIFF, deep planes": ("planar configuration 2", tiff(WIDE, planar=True)),
    "TIFF, PackBits": ("compression 32773", encode(IMAGE, "TIFF", compression="packbits")),
    "TIFF, old JPEG": ("compression 6", tiff(PIXELS, compression=6)),
    "TIFF, LZMA": ("compression 34925", tiff(PIXELS, compression=34925)),
    "TIFF, fill order": ("fill order 2", tiff(PIXELS, tags={266: (3, [2])})),
    "TIFF, oriented tiles": ("tiled TIFF with orientation 6", tiff(PIXELS, tile=16, tags={274: (3, [6])})),
    "TIFF, huge tiles": ("tiles of 65520x16", tiff(PIXELS, tile=16, tags={322: (4, [65520])})),
    "BMP, RLE": ("compression 1", bmp([b""] * 4, 4, bits=8, compression=1, palette=GRAY_PALETTE, data=b"\0\1")),
    "BMP, 16 bit": ("16 bit", bmp([bytes(2 * WIDTH)] * HEIGHT, WIDTH, bits=16)),
    "BMP, other masks": (
        "bit masks ['ff', 'ff00', 'ff0000']",
        bmp_of(RGBA, header_bytes=56, compression=3, masks=struct.pack("<4I", 0xFF, 0xFF00, 0xFF0000, 0)),
    ),
    "BMP, JPEG inside": ("compression 4", bmp([b""] * 4, 4, bits=0, compression=4, data=JPEG)),
    "BMP, unknown header": ("header of 128 bytes", bmp_of(PIXELS, header_bytes=128)),
}


GOOD_BMP = bmp_of(PIXELS)
CONTRADICTIONS: dict[str, bytes] = {
    "JPEG without a frame": JPEG[:SOF] + JPEG[JPEG.find(b"\xff\xda") :],
    "JPEG with two frames": JPEG[:SOF] + JPEG[SOF : SOF + 19] + JPEG[SOF:],
    "JPEG of height 0": JPEG[: SOF + 5] + b"\0\0" + JPEG[SOF + 7 :],
    "JPEG, bytes between segments": JPEG[:20] + b"\0\1\2" + JPEG[20:],
    "JPEG, restart marker outside a scan": jpeg_with_segments(JPEG, b"\xff\xd0"),
    "JPEG, segment of length 1": jpeg_with_segments(JPEG, b"\xff\xe1\0\1"),
    "JPEG, only fill bytes": JPEG[:2] + b"\xff" * 500,
    "PNG without IHDR": JPEG and b"\x89PNG\r\n\x1a\n" + bytes(40),
    "PNG of width 0": png([b""], 0, bits=8, color=2),
    "PNG of 3 bit": png(packed(8), WIDTH, bits=3, color=0),
    "PNG, palette missing": png(packed(8), WIDTH, bits=8, color=3),
    "PNG, two palettes": png(packed(8), WIDTH, bits=8, color=3, before=[(b"PLTE", PALETTE[:768])] * 2),
    "PNG, unknown critical chunk": png_of(PIXELS, before=[(b"ABCD", b"")]),
    "PNG without pixels": b"\x89PNG\r\n\x1a\n" + png_of(PIXELS)[8:33] + png_of(PIXELS)[-12:],
    "WebP, no picture": webp_extended([ICC], (HEIGHT, WIDTH), 0x20),
    "WebP, two pictures": webp_extended([LOSSY, LOSSY], (HEIGHT, WIDTH), 0),
    "WebP, other canvas": webp_extended([LOSSY], (HEIGHT + 3, WIDTH), 0),
    "WebP, no key frame": webp_file([(b"VP8 ", bytes(100))]),
    "WebP, unknown first chunk": webp_file([(b"EXIF", bytes(100)), LOSSY]),
    "TIFF without size": tiff(PIXELS, tags={256: None}),
    "TIFF, size of two": tiff(PIXELS, tags={256: (4, [WIDTH, WIDTH])}),
    "TIFF of width 0": tiff(PIXELS, tags={256: (4, [0])}),
    "WebP of width 0": webp_file([(b"VP8 ", LOSSY[1][:6] + bytes(2) + LOSSY[1][8:])]),
    "BMP of height 0": GOOD_BMP[:22] + bytes(4) + GOOD_BMP[26:],
    "TIFF without pixels": tiff(PIXELS, tags={273: None}),
    "TIFF, too few strips": tiff(PIXELS, tags={278: (4, [5])}),
    "TIFF, no rows in a strip": tiff(PIXELS, tags={278: (4, [0])}),
    "TIFF, short strip": tiff(PIXELS, tags={279: (4, [100])}),
    "TIFF, strip beyond the end": tiff(PIXELS, tags={273: (4, [2**32 - 9])}),
    "TIFF, one bit count for three samples": tiff(PIXELS, tags={258: (3, [8])}),
    "TIFF, orientation in bytes": tiff(PIXELS, tags={274: (1, [6])}),
    "TIFF, two orientations": tiff(PIXELS, tags={274: (3, [6, 3])}),
    "TIFF, smaller JPEG in a strip": tiff_of_blocks(
        [encode(IMAGE.resize((59, 47)), "JPEG")], PIXELS.shape, PIXELS.dtype, photometric=6, compression=7),
    "TIFF, cut JPEG in a strip": tiff_of_blocks(
        [JPEG[:-2]], PIXELS.shape, PIXELS.dtype, photometric=6, compression=7),
    "BMP, palette inside its pixels": bmp(packed(8), WIDTH, bits=8),
    "BMP, indices beyond its palette": bmp(packed(8), WIDTH, bits=8, palette=GRAY_PALETTE[:400]),
    "BMP, 4-bit indices beyond its palette": bmp(packed(4), WIDTH, bits=4, palette=GRAY_PALETTE[:8]),
    "BMP, pixels inside its header": GOOD_BMP[:10] + struct.pack("<I", 50) + GOOD_BMP[14:],
    "BMP of width -61": GOOD_BMP[:18] + struct.pack("<i", -WIDTH) + GOOD_BMP[22:],
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS_REFUSED | CONTRADICTIONS)
def test_forms_that_backends_read_differently_and_contradictions_are_refused(form: str) -> None:
    named, data = FORMS_REFUSED.get(form) or ("", CONTRADICTIONS[form])
    with pytest.raises(BadImage) as caught:
        read_header(data)
    assert caught.value.code == ("unsupported_format" if named else "corrupt")
    assert named in caught.value.reason
    assert not named or "; allowed: " in caught.value.reason


def test_the_first_page_of_many_is_read() -> None:
    pages = encode(IMAGE, "TIFF", save_all=True, append_images=[IMAGE.resize((9, 9))])
    assert read_header(pages) == Header("TIFF", HEIGHT, WIDTH, has_more_frames=True)
    control, frame = (b"acTL", struct.pack(">II", 1, 0)), (b"fcTL", struct.pack(">5I2H2B", 0, 61, 47, 0, 0, 1, 9, 0, 0))
    animated = read_header(png_of(PIXELS, before=[control, frame]))
    assert (animated.has_more_frames, animated.by_pillow, animated.kept[0]) == (True, False, (0, 33))
    webp = read_header(encode(IMAGE, "WEBP", save_all=True, append_images=[IMAGE.rotate(9)]))
    assert (webp.has_more_frames, webp.by_pillow) == (True, True)


def test_jpeg_strips_in_tiff_are_read() -> None:
    strips = [encode(IMAGE.crop((0, top, WIDTH, min(HEIGHT, top + 16))), "JPEG") for top in (0, 16, 32)]
    data = tiff_of_blocks(
        strips, (HEIGHT, WIDTH, 3), np.dtype(np.uint8), photometric=6, compression=7, rows_per_strip=16
    )
    assert read_header(data) == Header("TIFF", HEIGHT, WIDTH)


def test_as_many_scans_as_encoders_write_are_read() -> None:
    for more in (0, 20, 54):
        assert read_header(with_scans(encode(IMAGE, "JPEG", progressive=True), more)).width == WIDTH
    # A baseline picture ends with its only scan, so that what looks like more of them costs nothing.
    assert read_header(with_scans(JPEG, 90)).width == WIDTH


def test_a_plain_file_is_not_copied() -> None:
    assert read_header(np.frombuffer(JPEG, np.uint8).reshape(1, -1)) == read_header(JPEG)
    for data in (JPEG, png_of(PIXELS), webp_file([LOSSY]), tiff(PIXELS), GOOD_BMP):
        view = for_decoders(data, read_header(data))
        assert isinstance(view, memoryview)
        assert view.obj is data


ALL_FILES = [make(photo("chelsea").resize((61, 47))) for make in (PLAIN | CONVERTED).values()] + [
    make(6, "<") for make in ORIENTED.values()
]


def outcome(data: bytes) -> Header | BadImage:
    """Read a header; anything but a header or ``BadImage`` fails the test."""
    try:
        result: Header | BadImage = read_header(data)
        bytes(for_decoders(data, result))
    except BadImage as error:
        result = error
    if isinstance(result, BadImage):
        assert result.reason.isprintable()
        assert "/" not in result.reason
        assert len(result.reason) < 400
    return result


@given(file=st.sampled_from(ALL_FILES), seed=st.integers(0, 2**32))
def test_mutated_files_raise_nothing_else(file: bytes, seed: int) -> None:
    outcome(mutated(file, random.Random(seed)))


@pytest.mark.parametrize("number", range(len(ALL_FILES)))
def test_a_file_cut_anywhere_is_refused(number: int) -> None:
    """Only what follows the picture may be missing; nothing that follows is needed in any format but TIFF."""
    file = ALL_FILES[number]
    whole, picture = read_header(file), np.asarray(pillow_oriented(file))
    without_the_last = range(len(file) - 8, len(file)) if number < len(PLAIN | CONVERTED) else range(0)
    for length in {*range(0, len(file), max(1, len(file) // 150)), *without_the_last}:
        result = outcome(file[:length])
        if isinstance(result, Header):
            assert result == whole
            assert length not in without_the_last
            np.testing.assert_array_equal(np.asarray(pillow_oriented(file[:length])), picture)
