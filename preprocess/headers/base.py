"""Shared by the readers: the header they return, and the orientation in an EXIF block (EXIF 2.3, section 4.6)."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import numpy.typing as npt

from onestream.preprocess.errors import BadImage

Profile = Literal["sRGB", "other"]
ImageFormat = Literal["JPEG", "PNG", "WebP", "TIFF", "BMP", "GIF", "AVIF", "HEIC"]
FORMATS: tuple[ImageFormat, ...] = ("JPEG", "PNG", "WebP", "TIFF", "BMP")
"""Accepted where nothing else is said."""

MAX_PARTS = 16_000
"""Segments, chunks and inner pictures of one file, each of which costs a reader 1 to 2 µs. The largest file allowed by
default, 32 MiB, has 4,096 chunks as libpng writes them; a TIFF of 25 million pixels in tiles of 128x128 has 1,536."""

_SRGB = re.compile(rb"s\x00?R\x00?G\x00?B")
_ORIENTATION_TAG, _SHORT, _LONG = 0x0112, 3, 4

SizeCheck = Callable[[int, int], None]
"""Takes height and width in pixels, as stored; raises ``BadImage`` where they cannot be accepted."""

Span = tuple[int, int]
"""A byte range, [first, end)."""


@dataclass(frozen=True, slots=True)
class Header:
    """The header of an encoded image. Sizes are as stored, before the EXIF orientation is applied."""

    format: ImageFormat
    height: int
    width: int
    orientation: int = 1
    """EXIF orientation, 1 to 8."""
    kept: tuple[Span, ...] = ()
    """Where the pixels are, if the file also holds metadata that decoders read differently (``reader.for_decoders``);
    the first span is the file's beginning. Empty where the file is decoded as it is."""
    gray_or_ycc: bool = False
    """Whether it is a JPEG of gray or YCbCr pixels by libjpeg's rules. Decoders on GPUs assume that of every JPEG."""
    effort: float = 1.0
    """About how long a pixel takes to decode on a CPU, as a multiple of a baseline JPEG's (4 to 6 ns)."""
    profile: Profile | None = None
    """Whether the file carries an ICC profile, and whether it calls itself sRGB."""
    bits: int = 8
    """Bits of a sample: 16, or 8 for all that have up to 8."""
    is_gray: bool = False
    """Whether a pixel of 16 bit has one sample and nothing else."""
    has_more_frames: bool = False
    """Whether further pages or frames follow the first."""
    by_pillow: bool = False
    """Whether Pillow decodes it for every backend."""

    @property
    def decoding_work(self) -> float:
        """About how long decoding takes, in pixels of a baseline JPEG."""
        return self.height * self.width * self.effort

    @property
    def oriented_hw(self) -> tuple[int, int]:
        """(height, width) in pixels after the EXIF orientation is applied."""
        return (self.width, self.height) if self.orientation >= 5 else (self.height, self.width)


@dataclass(frozen=True, slots=True)
class Checked:
    """An encoded image whose header was read and passed the limits: it is handed on, and not read again."""

    data: bytes | bytearray | memoryview | npt.NDArray[np.uint8]
    header: Header


Encoded = bytes | bytearray | memoryview | npt.NDArray[np.uint8] | Checked
"""The bytes of an image file."""


def byte_view(data: Encoded) -> memoryview:
    """The bytes of an encoded image, without a copy."""
    if isinstance(data, Checked):
        data = data.data
    # NumPy declares the buffer protocol to type checkers from Python 3.12 on only.
    return memoryview(cast(bytes, data)).cast("B")


def accept_size(height: int, width: int) -> None:
    """The ``SizeCheck`` that accepts every size."""


def parts_of_a_file() -> Iterator[int]:
    """A counter of which a reader takes one for each part that it visits; when it is used up, the file has too many.

    The pictures inside one file share it, so that the work follows the file's size and not their number times it.
    """
    return iter(range(MAX_PARTS))


def search(pattern: re.Pattern[bytes], view: memoryview, first: int) -> re.Match[bytes] | None:
    """The first match at or after byte ``first``, found without a copy. Readers look for nothing in another way."""
    return pattern.search(view, first)


def profile_in(part: memoryview) -> Profile:
    """How a profile calls itself: in ASCII, or as later versions in UTF-16."""
    return "sRGB" if search(_SRGB, part, 0) else "other"


def corrupt(reason: str) -> BadImage:
    """The error for a file that breaks its format."""
    return BadImage("corrupt", reason)


def unsupported(seen: str, allowed: str) -> BadImage:
    """The error for a valid file of a form that is not decoded."""
    return BadImage("unsupported_format", f"got {seen}; allowed: {allowed}")


def exif_orientation(exif: memoryview) -> int:
    """The orientation in a TIFF-structured EXIF block: one SHORT or LONG from 1 to 8 in its first directory.

    1 where it is absent or anything else.
    """
    order = {b"II*\x00": "<", b"MM\x00*": ">"}.get(bytes(exif[:4]))
    if order is None or len(exif) < 8:
        return 1
    (offset,) = struct.unpack_from(order + "I", exif, 4)
    if offset + 2 > len(exif):
        return 1
    (count,) = struct.unpack_from(order + "H", exif, offset)
    complete = min(count, (len(exif) - offset - 2) // 12)
    entries = exif[offset + 2 : offset + 2 + 12 * complete]
    for tag, kind, values, value in struct.iter_unpack(order + "HHI4s", entries):
        if tag == _ORIENTATION_TAG:
            if values != 1 or kind not in (_SHORT, _LONG):
                return 1
            (orientation,) = struct.unpack_from(order + ("H" if kind == _SHORT else "I"), value)
            return orientation if 1 <= orientation <= 8 else 1
    return 1


def kept_around(dropped: list[Span], *, beginning: int, end: int) -> tuple[Span, ...]:
    """The spans of a file of ``end`` bytes that remain when others are cut out; the first ends at ``beginning``."""
    if not dropped:
        return ()
    kept, position = [(0, beginning)], beginning
    for first, last in dropped:
        if first > position:
            kept.append((position, first))
        position = last
    if position < end:
        kept.append((position, end))
    return tuple(kept)
