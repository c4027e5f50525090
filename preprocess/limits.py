"""Refuses images before they are decoded: by byte count, format and declared size, and by what ``decode`` asks of them.

A few hundred bytes can declare 30000 x 30000 pixels, and decoding them takes gigabytes, so everything here reads the
header only. What memory decoding takes, of which decoders often do not say that it was too little, is here, too.
"""

from __future__ import annotations

import mmap
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BadImage, OutOfMemory, say_once
from onestream.preprocess.headers.reader import FORMATS, Checked, Encoded, Header, ImageFormat, byte_view, read_header
from onestream.preprocess.operations import Decode
from onestream.wire.limits import DEFAULT_MAX_BODY_BYTES
from onestream.wire.refusals import MAY_BE_SENT_AGAIN

PILLOW_MAX_PIXELS = 178_956_970
"""Above twice ``PIL.Image.MAX_IMAGE_PIXELS`` Pillow refuses by itself, so no larger limit could be kept."""
MAX_SIDE = 65_535
"""Longest side in pixels, as in JPEG: memory for resampling grows with a side, however small the other is."""


HEAVY_WORK = 12_500_000
"""Pixels of a baseline JPEG whose decoding, about 60 ms of one core, others in a batch can be made to wait for: as many
as most phones' photos have. A picture of more work is heavy; so is a PNG of more than 3 million pixels."""


class Limits(BaseModel):
    """Bounds on one encoded image, and on what comes with it.

    They are not numerics, so they are not part of a definition's digest.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_body_bytes: int = Field(default=DEFAULT_MAX_BODY_BYTES, ge=1, description="largest encoded file, in bytes")
    max_pixels: int = Field(
        default=25_000_000, ge=1, le=PILLOW_MAX_PIXELS, description="largest height x width, as stored and as resized"
    )
    max_regions: int = Field(
        default=1000,
        ge=1,
        le=100_000,
        description="most regions of one picture that a stage of a cascade takes; they are bounded in pixels, too",
    )
    max_lines: int = Field(
        default=200,
        ge=1,
        le=100_000,
        description="the same of lines of text, as *text_lines* finds them: a page of more is read as far as this",
    )
    max_input_values: int = Field(
        default=4096,
        ge=1,
        le=2**31,
        description="most values of one [input of a request](own-network.md#several-inputs) whose size varies in the "
        "network's file; a network that compares them all with each other computes their square",
    )
    formats: tuple[ImageFormat, ...] = Field(
        default=FORMATS,
        min_length=1,
        description="accepted file formats; Pillow decodes *GIF*, *AVIF* and *HEIC* for every backend, on the CPU",
    )

    @model_serializer(mode="wrap")
    def _state_newer_fields_where_they_matter(self, default: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A model's configuration stays as it was built before the field was there."""
        fields: dict[str, Any] = default(self)
        if self.max_input_values == type(self).model_fields["max_input_values"].default:
            del fields["max_input_values"]
        return fields

    def check(self, data: Encoded) -> Header:
        """Read the header of an encoded image and return it, or raise ``BadImage`` naming the bound it breaks.

        Of one that was checked it is returned as it is.
        """
        if isinstance(data, Checked):
            return data.header
        size = len(byte_view(data))
        if size == 0:
            raise BadImage("empty", f"got 0 bytes; expected an encoded image ({self._allowed()})")
        if size > self.max_body_bytes:
            raise BadImage("too_large", f"got {size} bytes; at most {self.max_body_bytes} are allowed")
        header = read_header(data, self.check_size, self.formats)
        if header.format not in self.formats:
            raise BadImage("unsupported_format", f"got {header.format}; allowed: {self._allowed()}")
        return header

    def checked(self, data: Encoded) -> Checked:
        """An encoded image to hand on with its header, which is read here, once. Raises as ``check``."""
        return data if isinstance(data, Checked) else Checked(data, self.check(data))

    def check_resized(self, size_hw: tuple[int, int]) -> None:
        """Raise ``BadImage`` where a resize would give more pixels than an image may have.

        A line of 65535x1 pixels is tiny, but with its shorter side scaled to 256 it is 4 gigapixels.
        """
        height, width = size_hw
        if height * width > self.max_pixels:
            raise BadImage(
                "too_many_pixels",
                f"resized by the definition it would have {width}x{height} = {width * height} pixels; "
                f"at most {self.max_pixels} are allowed (limits.max_pixels of the pipeline)",
            )

    def check_size(self, height: int, width: int) -> None:
        """Raise ``BadImage`` where an image of this size, by its header, would be too large."""
        if height * width > self.max_pixels:
            raise BadImage(
                "too_many_pixels",
                f"the header declares {width}x{height} = {height * width} pixels; "
                f"at most {self.max_pixels} are allowed (limits.max_pixels of the pipeline)",
            )
        if max(height, width) > MAX_SIDE:
            raise BadImage(
                "too_many_pixels",
                f"the header declares {width}x{height} pixels; at most {MAX_SIDE} a side are allowed",
            )

    def _allowed(self) -> str:
        return ", ".join(self.formats)


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


_PILLOW_EFFORT = 6.0
"""Of the conversion of a profile and of the copy for other backends, which take longest: 30 ns a pixel."""


def admit(data: Encoded, definition: Definition, limits: Limits) -> Header:
    """The header of an encoded image that may be decoded. What is passed over of it is said once.

    Raises ``BadImage`` naming the limit, or the field of ``decode``, that it breaks.
    """
    header, decode = limits.check(data), definition.source
    if not isinstance(decode, Decode):
        return header
    _check(header, decode)
    return replace(header, effort=header.effort + _PILLOW_EFFORT) if needs_pillow(header, decode) else header


def needs_pillow(header: Header, decode: Decode) -> bool:
    """Whether only Pillow does what ``decode`` asks of such a file."""
    return (decode.profile == "srgb" and header.profile is not None) or header.bits > decode.bits or header.by_pillow


def _check(header: Header, decode: Decode) -> None:
    if header.bits > decode.bits and not header.is_gray:
        raise BadImage(
            "unsupported_format",
            f"got a {header.format} in colour of {header.bits} bit; decode.bits {decode.bits} is for gray ones",
        )
    if header.has_more_frames:
        if decode.frame == "error":
            raise BadImage(
                "unsupported_format",
                f"got a {header.format} of several pages or frames; decode.frame is 'error', which allows one",
            )
        say_once(f"a {header.format} has several pages or frames, of which the first is used (decode.frame: first)")
    if header.profile == "other" and decode.profile == "ignore":
        say_once(
            f"a {header.format} carries an ICC profile, which is passed over as in training on PIL images "
            "(decode.profile: ignore)"
        )
    if header.bits > 8 and decode.bits == 16:
        say_once(
            f"a {header.format} has samples of {header.bits} bit, of which the high byte is used (decode.bits: 16); "
            "values of 12 bit would be near black"
        )
