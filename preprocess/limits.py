"""Refuses images before they are decoded: by byte count, by format and by declared size.

A few hundred bytes can declare 30000 x 30000 pixels, and decoding them takes gigabytes, so everything here reads the
header only.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from onestream.preprocess.errors import BadImage
from onestream.preprocess.headers.reader import FORMATS, Encoded, Header, ImageFormat, byte_view, read_header
from onestream.wire.limits import DEFAULT_MAX_BODY_BYTES

PILLOW_MAX_PIXELS = 178_956_970
"""Above twice ``PIL.Image.MAX_IMAGE_PIXELS`` Pillow refuses by itself, so no larger limit could be kept."""
MAX_SIDE = 65_535
"""Longest side in pixels, as in JPEG: memory for resampling grows with a side, however small the other is."""


HEAVY_WORK = 12_500_000
"""Pixels of a baseline JPEG whose decoding, about 60 ms of one core, others in a batch can be made to wait for: as many
as most phones' photos have. A picture of more work is heavy; so is a PNG of more than 3 million pixels."""


class Limits(BaseModel):
    """Bounds on one encoded image. They are not numerics, so they are not part of a definition's digest."""

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
    formats: tuple[ImageFormat, ...] = Field(
        default=FORMATS,
        min_length=1,
        description="accepted file formats; Pillow decodes *GIF*, *AVIF* and *HEIC* for every backend, on the CPU",
    )

    def check(self, data: Encoded) -> Header:
        """Read the header of an encoded image and return it, or raise ``BadImage`` naming the bound it breaks."""
        size = len(byte_view(data))
        if size == 0:
            raise BadImage("empty", f"got 0 bytes; expected an encoded image ({self._allowed()})")
        if size > self.max_body_bytes:
            raise BadImage("too_large", f"got {size} bytes; at most {self.max_body_bytes} are allowed")
        header = read_header(data, self.check_size, self.formats)
        if header.format not in self.formats:
            raise BadImage("unsupported_format", f"got {header.format}; allowed: {self._allowed()}")
        return header

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
