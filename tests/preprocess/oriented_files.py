"""Files that carry an orientation, in all the places where writers put it, and files that only seem to."""

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
    webp_file,
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


_RAW_PROFILE = b"\nexif\n%8d\n" % (len(exif_block(6)) + 6) + (b"Exif\0\0" + exif_block(6)).hex().encode() + b"\n"

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


_UNCLEAR_BLOCKS = {
    "absent value": exif_block(0),
    "9": exif_block(9),
    "cut in the value": exif_block(6)[:-6],
    "wrong magic": b"II\0\0" + exif_block(6)[4:],
    "directory beyond the end": exif_block(6)[:4] + struct.pack("<I", 1000) + exif_block(6)[8:],
    "directory at 0": exif_block(6)[:4] + bytes(4) + exif_block(6)[8:],
    "no values": exif_block(6).replace(struct.pack("<HHI", 0x0112, 3, 1), struct.pack("<HHI", 0x0112, 3, 0)),
    "two values": exif_block(6).replace(struct.pack("<HHI", 0x0112, 3, 1), struct.pack("<HHI", 0x0112, 3, 2)),
    "a signed type": exif_block(6).replace(struct.pack("<HHI", 0x0112, 3, 1), struct.pack("<HHI", 0x0112, 8, 1)),
    "empty": b"",
    "noise": bytes(range(256)),
}

UNCLEAR_EXIF: dict[str, bytes] = {}
"""Files whose EXIF says nothing clear, so that the picture is taken as it is stored."""
for _name, _block in _UNCLEAR_BLOCKS.items():
    UNCLEAR_EXIF[f"jpeg, {_name}"] = jpeg_with_segments(JPEG, jpeg_segment(0xE1, b"Exif\0\0" + _block))
    UNCLEAR_EXIF[f"png, {_name}"] = png_of(PIXELS, before=[(b"eXIf", _block)])
    UNCLEAR_EXIF[f"webp, {_name}"] = webp_extended([LOSSY, (b"EXIF", _block)], (HEIGHT, WIDTH), 0x08)

NOT_EXIF = {
    "jpeg XMP": jpeg_with_segments(JPEG, jpeg_segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + XMP)),
    "jpeg, another segment": jpeg_with_segments(JPEG, jpeg_segment(0xE2, b"Exif\0\0" + exif_block(6))),
    "png XMP": png_of(PIXELS, before=[(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + XMP)]),
    "png text": png_of(PIXELS, before=[(b"tEXt", b"Raw profile type exif\0" + _RAW_PROFILE)]),
    "webp XMP": webp_extended([LOSSY, (b"XMP ", XMP)], (HEIGHT, WIDTH), 0x04),
    "webp EXIF without its flag": webp_extended([LOSSY, exif_chunk(6)], (HEIGHT, WIDTH), 0),
    "webp EXIF in a simple file": webp_file([LOSSY, exif_chunk(6)]),
    "tiff XMP": tiff(PIXELS, tags={700: (1, list(XMP))}),
}
"""Files with an orientation that is not in EXIF, or not where EXIF belongs."""
