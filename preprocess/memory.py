"""Memory that decoding takes, and whether there was too little of it, of which decoders often say nothing."""

from __future__ import annotations

import mmap

from onestream.preprocess.errors import BadImage, OutOfMemory
from onestream.preprocess.headers.reader import Header
from onestream.preprocess.limits import HEAVY_WORK, Limits
from onestream.wire.refusals import MAY_BE_SENT_AGAIN

BYTES_PER_PIXEL = 24
"""At most taken while one picture is decoded, by pixels as stored. Measured with DALI on a CPU at 12.5 and 25 million:
PNG of 16 bit with alpha 19, WebP 13, BMP 13, PNG of 8 bit 10, progressive JPEG 8, baseline JPEG and TIFF 5."""

_LIGHT_BYTES_PER_WORK = 9
"""The same for each pixel of ``HEAVY_WORK``: forms that take more memory also take longer, BMP least so."""
_DECODED_BYTES_PER_PIXEL = 3


def decoding_bytes(limits: Limits, *, max_batch_size: int) -> int:
    """The most memory that one serving process on a CPU takes for pictures at once: a heavy one and a light batch.

    The light ones of a batch are decoded one after the other and kept as RGB until all are.
    """
    light = (_LIGHT_BYTES_PER_WORK + _DECODED_BYTES_PER_PIXEL * max_batch_size) * HEAVY_WORK
    return limits.max_pixels * BYTES_PER_PIXEL + light


def undecodable(header: Header, reason: str, cause: Exception | None = None) -> BadImage:
    """Why an image was not decoded: ``OutOfMemory`` where memory for it is short now, else ``BadImage`` (corrupt)."""
    pixels = header.height * header.width
    if isinstance(cause, MemoryError) or "bad_alloc" in str(cause) or not _to_be_had(pixels * BYTES_PER_PIXEL):
        return OutOfMemory(
            f"too little memory is free to decode {header.width}x{header.height} = {pixels} pixels ({header.format})"
            f"{MAY_BE_SENT_AGAIN}"
        )
    return BadImage("corrupt", reason)


def _to_be_had(size: int) -> bool:
    """Whether the system would grant so many bytes; none of them is touched."""
    try:
        mmap.mmap(-1, size).close()
    except (OSError, MemoryError):
        return False
    return True
