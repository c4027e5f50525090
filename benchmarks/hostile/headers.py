"""Files built or mutated to keep the header readers busy, and the longest that any of them does."""

from __future__ import annotations

import io
import random
import struct
import time
import zlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from PIL import Image

from onestream.preprocess.errors import BadImage
from onestream.preprocess.headers.reader import FORMATS, read_header

SIZE = 1_000_000
"""Bytes of a built file."""
_BUILT_IN = 50
"""One of so many mutations is of a built file; these take a hundred times as long as the others."""
_PROGRESS_EVERY = 100_000

Values = tuple[str, Sequence[int]]
"""A struct code, H or I, and the values of a TIFF's tag."""

_FRAME = b"\xff\xc0\0\x0b\x08\0\x08\0\x08\1\1\x11\0"
_PROGRESSIVE_FRAME = b"\xff\xc2" + _FRAME[2:]
_SCAN = b"\xff\xda\0\x08\1\1\0\0\x3f\0"
_END = b"\xff\xd9"
_EXIF_HEAD = b"II*\0\x08\0\0\0\xff\xff"


def _jpeg(middle: bytes = b"", *, frame: bytes = _FRAME, rest: bytes = _END) -> bytes:
    """A JPEG header of 8x8 gray pixels with ``middle`` before its scan and ``rest`` after it."""
    return b"\xff\xd8" + frame + middle + _SCAN + rest


def _segments(part: bytes) -> Callable[[int], bytes]:
    return lambda size: _jpeg(part * (size // len(part)))


def _exif_segment(size: int) -> bytes:
    payload = (b"Exif\0\0" + _EXIF_HEAD).ljust(size - 4, b"\0")
    return b"\xff\xe1" + struct.pack(">H", len(payload) + 2) + payload


def _jpeg_of_exif(size: int) -> bytes:
    return _jpeg(_exif_segment(min(size, 65_000)) * max(1, size // 65_000))


def _png(*chunks: tuple[bytes, bytes], bits: int = 8) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in ((b"IHDR", struct.pack(">IIBBBBB", 8, 8, bits, 2, 0, 0, 0)), *chunks, (b"IEND", b""))
    )


def _chunks(kind: bytes) -> Callable[[int], bytes]:
    return lambda size: _png(*[(kind, b"")] * (size // 12))


def _webp(chunks: bytes, *, flags: int = 0) -> bytes:
    body = b"WEBPVP8X\x0a\0\0\0" + bytes([flags, 0, 0, 0, 7, 0, 0, 7, 0, 0]) + chunks
    return b"RIFF" + struct.pack("<I", len(body)) + body


def tiff(blob: bytes, tags: Mapping[int, Values]) -> bytes:
    """A TIFF of these tags whose ``blob``, which begins at byte 8, holds the pixels."""
    directory, values = 8 + len(blob), b""
    values_at, entries = directory + 2 + 12 * len(tags) + 4, b""
    for tag, (code, numbers) in sorted(tags.items()):
        packed = struct.pack(f"<{len(numbers)}{code}", *numbers)
        entries += struct.pack("<HHI", tag, 3 if code == "H" else 4, len(numbers))
        if len(packed) <= 4:
            entries += packed.ljust(4, b"\0")
        else:
            entries += struct.pack("<I", values_at + len(values))
            values += packed
    return b"II*\0" + struct.pack("<I", directory) + blob + struct.pack("<H", len(tags)) + entries + bytes(4) + values


def _strips(blob: bytes, offsets: Sequence[int], length: int, *, compression: int) -> bytes:
    count = len(offsets)
    return tiff(
        blob,
        {
            256: ("I", [8]),
            257: ("I", [8 * count]),
            258: ("H", [8]),
            259: ("H", [compression]),
            262: ("H", [1]),
            273: ("I", offsets),
            277: ("H", [1]),
            278: ("I", [8]),
            279: ("I", [length] * count),
        },
    )


def _strips_of(block: bytes, size: int, *, compression: int = 7) -> bytes:
    count = max(1, size // (len(block) + 8))
    return _strips(
        block * count, [8 + len(block) * index for index in range(count)], len(block), compression=compression
    )


def _strips_that_share(size: int) -> bytes:
    block = _jpeg(b"\xff\xe2\0\2" * (size // 8))
    return _strips(block, [8] * (size // 16), len(block), compression=7)


def _tags_that_share(size: int) -> bytes:
    """Every tag's values are the whole file."""
    tags = (256, 257, 258, 259, 262, 266, 273, 274, 277, 278, 279, 284, 317, 320, 322, 323, 324, 325, 338, 339)
    entries = b"".join(struct.pack("<HHII", tag, 3, size // 2, 0) for tag in tags)
    head = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4)
    return head.ljust(size, b"\1")


def _long_tag(tag: int) -> Callable[[int], bytes]:
    """One tag with as many values as the file has room for, in a picture that is otherwise good."""

    def build(size: int) -> bytes:
        good = {256: ("I", [8]), 257: ("I", [8]), 258: ("H", [8]), 262: ("H", [1]), 273: ("I", [8]), 277: ("H", [1])}
        return tiff(bytes(64), good | {279: ("I", [64])} | {tag: ("H", [1] * (size // 2))})

    return build


def _directory(size: int) -> bytes:
    count = min(size // 12, 65_535)
    return b"II*\0" + struct.pack("<IH", 8, count) + struct.pack("<HHII", 9999, 3, 1, 1) * count + bytes(4)


def _bmp(bits: int) -> Callable[[int], bytes]:
    def build(size: int) -> bytes:
        colors = 1 << bits
        begin = 54 + 4 * colors
        width, height = size // 8 * 8 // bits, 8
        pixels = bytes((width * bits + 31) // 32 * 4 * height)
        head = b"BM" + struct.pack("<IHHI", begin + len(pixels), 0, 0, begin)
        info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, 0, 0, 0, 0, colors, 0)
        return head + info + bytes(4 * colors) + pixels

    return build


BUILT: dict[str, Callable[[int], bytes]] = {
    "JPEG: empty segments": _segments(b"\xff\xe2\0\2"),
    "JPEG: empty segments to be left out": _segments(b"\xff\xe1\0\2"),
    "JPEG: fill bytes before every marker": _segments(b"\xff" * 8 + b"\xff\xe1\0\2"),
    "JPEG: fill bytes to the end": lambda size: b"\xff\xd8" + b"\xff" * size,
    "JPEG: EXIF directories": _jpeg_of_exif,
    "JPEG: one EXIF directory": lambda size: _jpeg(_exif_segment(min(size, 65_000))),
    "JPEG: scans": lambda size: _jpeg(frame=_PROGRESSIVE_FRAME, rest=_SCAN * (size // len(_SCAN))),
    "JPEG: half a marker everywhere": lambda size: _jpeg(frame=_PROGRESSIVE_FRAME, rest=b"\xff" * size),
    "JPEG: other markers everywhere": lambda size: _jpeg(frame=_PROGRESSIVE_FRAME, rest=b"\xff\xd8" * (size // 2)),
    "PNG: empty text": _chunks(b"tEXt"),
    "PNG: empty data": _chunks(b"IDAT"),
    "PNG: one EXIF directory": lambda size: _png((b"eXIf", _EXIF_HEAD.ljust(size, b"\0")), (b"IDAT", b"")),
    "WebP: empty chunks": lambda size: _webp(b"ABCD\0\0\0\0" * (size // 8)),
    "WebP: EXIF chunks": lambda size: _webp((b"EXIF\x0a\0\0\0" + _EXIF_HEAD) * (size // 18), flags=8),
    "WebP: pictures": lambda size: _webp(b"VP8 \x0a\0\0\0\0\0\0\x9d\x01\x2a\x08\0\x08\0" * (size // 18)),
    "TIFF: directory": _directory,
    "TIFF: tags that share the file": _tags_that_share,
    **{f"TIFF: values of tag {tag}": _long_tag(tag) for tag in (256, 258, 259, 320, 338, 339)},
    "TIFF: strips that share a JPEG": _strips_that_share,
    "TIFF: small JPEG strips": lambda size: _strips_of(_jpeg(), size),
    "TIFF: JPEG strips of segments": lambda size: _strips_of(_jpeg(b"\xff\xe2\0\2" * 8), size),
    "TIFF: JPEG strips with fill bytes": lambda size: _strips_of(_jpeg(b"\xff" * 100), size),
    "TIFF: JPEG strips with EXIF": lambda size: _strips_of(_jpeg(_exif_segment(1200)), size),
    "TIFF: JPEG strips without an end": lambda size: _strips_of(_jpeg(rest=b"\xff" * 100 + _END + b"\0"), size),
    "TIFF: strips of a byte": lambda size: _strips_of(b"\0", size, compression=8),
    **{f"BMP: {bits} bit": _bmp(bits) for bits in (1, 4, 8)},
}
"""Builders of files of about so many bytes, by format and what they are made of."""


def mutated(file: bytes, choose: random.Random) -> bytes:
    """The file after one to four changes, mostly of its first 400 bytes."""
    changed = bytearray(file)
    for _ in range(choose.randint(1, 4)):
        at = choose.randrange(min(len(changed), 400) if choose.random() < 0.8 else len(changed))
        match choose.randrange(5):
            case 0:
                changed[at] = choose.randrange(256)
            case 1:
                value = choose.choice((0, 1, 2, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, choose.randrange(1 << 20)))
                changed[at : at + 4] = struct.pack(choose.choice("<>") + "I", value)
            case 2:
                del changed[at : at + choose.randint(1, 12)]
            case 3:
                changed[at:at] = choose.randbytes(choose.randint(1, 12))
            case _:
                source = choose.randrange(len(changed))
                changed[at : at + 12] = changed[source : source + 12]
        if len(changed) < 8:
            return file
    return bytes(changed)


def measure(*, mutations: int, seed: int, progress: Callable[[str], None]) -> dict[str, object]:
    """The longest times of the header readers, in milliseconds of this thread's CPU: each the least of three readings.

    ``mutations`` of small good files of every form and of the built ones (``BUILT``), which are read as they are, too.
    """
    choose = random.Random(seed)
    worst: dict[str, tuple[float, str]] = dict.fromkeys(FORMATS, (0.0, ""))
    built = {name: build(SIZE) for name, build in BUILT.items()}
    small = _small_files()
    outcomes = {"read": 0, "refused": 0, "other errors": 0}

    def read(name: str, file: bytes) -> None:
        elapsed_ms, outcome = _timed(file)
        outcomes[outcome] += 1
        file_format = name.partition(":")[0]
        if elapsed_ms > worst[file_format][0]:
            least_ms = min(elapsed_ms, _timed(file)[0], _timed(file)[0])
            worst[file_format] = max(worst[file_format], (least_ms, name))

    for name, file in built.items():
        read(name, file)
    built_ms = {name: round(min(_timed(file)[0] for _ in range(3)), 2) for name, file in built.items()}
    for number in range(mutations):
        name, file = choose.choice(list((small if number % _BUILT_IN else built).items()))
        read(f"{name}, mutated", mutated(file, choose))
        if (number + 1) % _PROGRESS_EVERY == 0:
            progress(f"headers: {number + 1} mutations, worst {max(worst.values())[0]:.1f} ms")
    return {
        "mutations": mutations,
        "built_bytes": SIZE,
        "outcomes": outcomes,
        "worst_ms": round(max(worst.values())[0], 2),
        "worst_by_format": {
            file_format: {"ms": round(elapsed_ms, 2), "input": name}
            for file_format, (elapsed_ms, name) in worst.items()
        },
        "built_ms": built_ms,
    }


def _timed(file: bytes) -> tuple[float, str]:
    began = time.thread_time()
    try:
        read_header(file)
        outcome = "read"
    except BadImage:
        outcome = "refused"
    except Exception:  # counted: a reader may raise nothing else
        outcome = "other errors"
    return 1000 * (time.thread_time() - began), outcome


def _small_files() -> dict[str, bytes]:
    """A good file of about every form that is read."""
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    picture, exif = Image.fromarray(pixels), Image.Exif()
    exif[0x0112] = 6
    forms: dict[str, tuple[str, dict[str, object], str]] = {
        "JPEG: baseline": ("JPEG", {"exif": exif}, "RGB"),
        "JPEG: progressive": ("JPEG", {"progressive": True}, "RGB"),
        "JPEG: gray": ("JPEG", {}, "L"),
        "JPEG: CMYK": ("JPEG", {}, "CMYK"),
        "PNG: RGB": ("PNG", {"exif": exif}, "RGB"),
        "PNG: palette": ("PNG", {}, "P"),
        "WebP: lossy": ("WEBP", {"exif": exif}, "RGB"),
        "WebP: lossless": ("WEBP", {"lossless": True}, "RGBA"),
        "TIFF: plain": ("TIFF", {}, "RGB"),
        "TIFF: LZW": ("TIFF", {"compression": "tiff_lzw"}, "RGB"),
        "TIFF: JPEG": ("TIFF", {"compression": "jpeg"}, "RGB"),
        "TIFF: palette": ("TIFF", {}, "P"),
        "BMP: RGB": ("BMP", {}, "RGB"),
        "BMP: palette": ("BMP", {}, "P"),
    }
    files = {}
    for name, (file_format, options, mode) in forms.items():
        buffer = io.BytesIO()
        picture.convert(mode).save(buffer, file_format, **options)
        files[name] = buffer.getvalue()
    return files
