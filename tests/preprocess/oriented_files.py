"""Files of every format that carry an orientation, in all the places where writers put it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from image_files import (
    encode,
    exif_block,
    jpeg_exif,
    jpeg_segment,
    jpeg_with_segments,
    png_of,
    tiff,
    webp_chunks,
    webp_extended,
)
from PIL import Image
from sample_images import card

HEIGHT, WIDTH = 47, 61
PIXELS = card(HEIGHT, WIDTH)
IMAGE = Image.fromarray(PIXELS)
JPEG = encode(IMAGE, "JPEG")
XMP = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="3"/></x:xmpmeta>'
LOSSY, LOSSLESS = webp_chunks(encode(IMAGE, "WEBP"))[0], webp_chunks(encode(IMAGE, "WEBP", lossless=True))[0]
ICC = (b"ICCP", b"i" * 301)


def exif_chunk(orientation: int, **options: Any) -> tuple[bytes, bytes]:
    return b"EXIF", exif_block(orientation, **options)


def with_thumbnail(orientation: int) -> bytes:
    """EXIF with a second directory, which has another orientation, and a thumbnail JPEG with its own markers."""
    thumbnail = encode(IMAGE.resize((16, 12)), "JPEG")
    first = struct.pack("<4sIHHHIHHI", b"II*\0", 8, 1, 0x0112, 3, 1, orientation, 0, 26)
    entries = [(0x0112, 3), (0x0201, 26 + 2 + 36 + 4), (0x0202, len(thumbnail))]
    second = struct.pack("<H", 3) + b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in entries)
    return jpeg_segment(0xE1, b"Exif\0\0" + first + second + bytes(4) + thumbnail)


ORIENTED: dict[str, Callable[[int, Any], bytes]] = {
    "jpeg": lambda o, order: jpeg_with_segments(JPEG, jpeg_exif(o, order)),
    "jpeg, after JFIF": lambda o, order: JPEG[:20] + jpeg_exif(o, order) + JPEG[20:],
    "jpeg, after its frame header": lambda o, order: JPEG[: JPEG.find(b"\xff\xda")] + jpeg_exif(o, order)
    + JPEG[JPEG.find(b"\xff\xda") :],
    "jpeg, after many segments": lambda o, order: jpeg_with_segments(
        JPEG, *[jpeg_segment(0xE2, bytes(500))] * 60, jpeg_segment(0xFE, b"comment"), jpeg_exif(o, order)),
    "jpeg, fill bytes": lambda o, order: jpeg_with_segments(JPEG, b"\xff" * 9 + jpeg_exif(o, order)),
    "jpeg, XMP first": lambda o, order: jpeg_with_segments(
        JPEG, jpeg_segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + XMP), jpeg_exif(o, order)),
    "jpeg, second EXIF": lambda o, order: jpeg_with_segments(JPEG, jpeg_exif(o, order), jpeg_exif(3)),
    "jpeg, thumbnail": lambda o, _: jpeg_with_segments(JPEG, with_thumbnail(o)),
    "jpeg, trailing bytes": lambda o, order: jpeg_with_segments(JPEG, jpeg_exif(o, order)) + b"\0garbage",
    "jpeg, restart markers": lambda o, order: jpeg_with_segments(
        encode(IMAGE, "JPEG", restart_marker_blocks=2), jpeg_exif(o, order)),
    "png": lambda o, order: png_of(PIXELS, before=[(b"eXIf", exif_block(o, order=order))]),
    "png, after text": lambda o, order: png_of(
        PIXELS, before=[(b"tEXt", b"Comment\0hello"), (b"eXIf", exif_block(o, order=order))]),
    "png, after its pixels": lambda o, order: png_of(PIXELS, after=[(b"eXIf", exif_block(o, order=order))]),
    "png, six tags before": lambda o, order: png_of(
        PIXELS, before=[(b"eXIf", exif_block(o, order=order, before=6))]),
    "webp": lambda o, order: webp_extended([LOSSY, exif_chunk(o, order=order)], (HEIGHT, WIDTH), 0x08),
    "webp, lossless": lambda o, order: webp_extended([LOSSLESS, exif_chunk(o, order=order)], (HEIGHT, WIDTH), 0x08),
    "webp, odd ICC": lambda o, order: webp_extended([ICC, LOSSY, exif_chunk(o, order=order)], (HEIGHT, WIDTH), 0x28),
    "webp, EXIF first": lambda o, order: webp_extended([exif_chunk(o, order=order), LOSSY], (HEIGHT, WIDTH), 0x08),
    "webp, after XMP": lambda o, order: webp_extended(
        [LOSSY, (b"XMP ", XMP), exif_chunk(o, order=order)], (HEIGHT, WIDTH), 0x0C),
    "webp, with JPEG's prefix": lambda o, order: webp_extended(
        [LOSSY, (b"EXIF", b"Exif\0\0" + exif_block(o, order=order))], (HEIGHT, WIDTH), 0x08),
    "webp, alpha": lambda o, order: webp_extended(
        [*webp_chunks(encode(IMAGE.convert("RGBA").rotate(9), "WEBP"))[1:], exif_chunk(o, order=order)],
        (HEIGHT, WIDTH), 0x18),
    "tiff": lambda o, order: tiff(PIXELS, order=order, tags={274: (3, [o])}),
    "tiff, LONG": lambda o, order: tiff(PIXELS, order=order, tags={274: (4, [o])}),
    "tiff, strips": lambda o, order: tiff(
        PIXELS, order=order, rows_per_strip=5, compression=8, tags={274: (3, [o])}),
}  # fmt: skip
