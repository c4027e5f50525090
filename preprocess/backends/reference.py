"""The specification in code: Pillow and NumPy, one image at a time, one operation after the other."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageCms, ImageOps
from PIL.ExifTags import Base

from onestream.preprocess.backends.base import Compiled, FromPicture, Pixels, Sample, network_layout
from onestream.preprocess.changes import AnyChange, changed
from onestream.preprocess.cpu.rectify_weights import DIGITS, STEPS, step_weights
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BadImage
from onestream.preprocess.geometry import Size, reduced
from onestream.preprocess.headers.by_pillow import open_image
from onestream.preprocess.headers.reader import Encoded, Header, byte_view, for_decoders
from onestream.preprocess.limits import admit, undecodable
from onestream.preprocess.operations import Color, Decode
from onestream.preprocess.plan import Plan
from onestream.preprocess.variation import Vary, resize_of

_Taken = TypeVar("_Taken")


class Reference(Compiled):
    """Executes a definition literally. Slow, and right by definition."""

    def run(self, images: Sequence[Encoded], varies: Sequence[Vary] | None = None) -> list[Sample | BadImage]:
        """See ``Compiled.run``."""
        return [self._one(image, vary) for image, vary in zip(images, varies or repeat(None, len(images)), strict=True)]

    def _one(self, data: Encoded, vary: Vary | None) -> Sample | BadImage:
        try:
            header = admit(data, self.definition, self.limits)
        except BadImage as error:
            return error.as_result()
        try:
            assert isinstance(self.definition.source, Decode)
            plan = self._planner(header.oriented_hw, vary, is_jpeg=header.format == "JPEG")
            image = decode(data, header, self.definition.source, factor=plan.factor)
            return network_layout(self.definition, planned_pixels(self.definition, image, plan))
        except BadImage as error:
            return error.as_result()
        except MemoryError as error:
            return undecodable(header, "", error)


class ReferenceFromPicture(FromPicture):
    """Executes a definition literally on decoded pictures and their regions."""

    def _sample(self, pixels: Pixels, vary: Vary | None = None) -> Sample:
        image = in_color(Image.fromarray(pixels), self.definition.color)
        plan = self._planner((image.height, image.width), vary)
        return network_layout(self.definition, planned_pixels(self.definition, image, plan))

    def _rectified(self, *given: Any, **options: Any) -> Pixels:
        return rectified(*given, **options)


def changed_sample(definition: Definition, canvas: npt.NDArray[np.uint8], changes: Sequence[AnyChange]) -> Sample:
    """The network's input of a canvas, (height, width, channels) uint8, with changes made to it."""
    return network_layout(definition, changed(canvas, changes, color=definition.color))


def decode(data: Encoded, header: Header, source: Decode, *, factor: int = 1) -> Image.Image:
    """Decode to a PIL image as ``to_8_bit`` gives it. Raises ``BadImage`` (corrupt, out_of_memory).

    ``header`` is the one of ``admit``: this function decodes whatever it declares. With a ``factor`` of 2, 4 or 8 a
    JPEG is decoded at that fraction of its size (``moves.reduced``), by libjpeg's scaled inverse DCT.
    """
    has_profile = source.profile == "srgb" and header.profile is not None

    def take(image: Image.Image) -> Image.Image:
        # Decoders get to see no profile of a PNG or WebP.
        profile = open_image(bytes(byte_view(data)), header.format).info.get("icc_profile") if has_profile else None
        if factor > 1:
            # Pillow takes the largest factor that leaves this size or more.
            image.draft(None, (image.width // factor, image.height // factor))
        image = to_8_bit(image, source, profile)
        if (image.height, image.width) != reduced(header.oriented_hw, factor):
            raise ValueError("its orientation is told in two ways")
        return image

    return _decoded(data, header, take)


def decode_levels(data: Encoded, header: Header) -> npt.NDArray[np.uint8]:
    """The levels that a file of one channel of 8 bit holds, (height, width), oriented; of a palette its indices.

    ``header`` and what is raised are as of ``decode``.
    """
    return _decoded(data, header, lambda image: np.asarray(_oriented(image)))


def _decoded(data: Encoded, header: Header, take: Callable[[Image.Image], _Taken]) -> _Taken:
    """What ``take`` makes of an image that was opened and not yet loaded."""
    file = bytes(for_decoders(data, header))
    try:
        if header.format == "PNG":
            _check_png_data(file)
        with warnings.catch_warnings():
            # Pillow warns about palette transparency and about sizes; limits have judged the size already.
            warnings.simplefilter("ignore")
            return take(open_image(file, header.format))
    except Exception as error:  # Pillow raises errors of any kind on damaged files
        failure = undecodable(header, f"the image cannot be decoded: {_without_object(error)}", error)
    # Raised here, it does not keep Pillow's error, which keeps the pixels.
    raise failure


def to_8_bit(image: Image.Image, source: Decode, profile: bytes | None) -> Image.Image:
    """A PIL image as it was opened, then oriented, without alpha, in sRGB where asked, and as ``in_color`` gives it.

    ``profile`` is the file's own. Raises ``ValueError`` for one that cannot be used.
    """
    image = _oriented(image)
    if image.mode.startswith("I;16"):
        # Pillow keeps the high byte of 16-bit RGB but clips 16-bit gray; the high byte is taken of both.
        levels = np.minimum(np.asarray(image), (1 << source.bits) - 1) >> source.bits - 8
        image = Image.fromarray(levels.astype(np.uint8))
    if source.profile == "srgb" and profile:
        image = _in_srgb(image, profile)
    return in_color(image, source.color)


def _in_srgb(image: Image.Image, profile: bytes) -> Image.Image:
    if len(profile) > _MAX_PROFILE_BYTES:
        raise ValueError(f"its ICC profile has {len(profile)} bytes; at most {_MAX_PROFILE_BYTES} are allowed")
    try:
        described = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        mode = _PROFILE_MODES.get(described.profile.xcolor_space.strip(), "none")
        if image.mode != mode and "CMYK" not in (image.mode, mode):
            # A palette, what is left of alpha, and gray of which the profile is one of RGB.
            image = image.convert(mode)
        srgb = ImageCms.createProfile("sRGB")
        converted = ImageCms.profileToProfile(image, described, srgb, outputMode="RGB")
    except (ImageCms.PyCMSError, OSError, ValueError) as error:
        raise ValueError(f"its ICC profile cannot be used: {error}") from None
    assert converted is not None
    return converted


_PROFILE_MODES = {"RGB": "RGB", "GRAY": "L", "CMYK": "CMYK"}
_MAX_PROFILE_BYTES = 4 << 20
"""Profiles of RGB have kilobytes, of CMYK up to two megabytes."""


def _oriented(image: Image.Image) -> Image.Image:
    # Pillow also takes an orientation from XMP, which is not EXIF; it reads it when a TIFF is loaded.
    image.info.pop("xmp", None)
    image.load()
    # Pillow would copy what is upright.
    return ImageOps.exif_transpose(image) if image.getexif().get(Base.Orientation, 1) != 1 else image


def in_color(image: Image.Image, color: Color) -> Image.Image:
    """A PIL image of 8 bit in mode RGB or L: itself where it is. Of *bgr* the mode is RGB, the first band blue."""
    mode = "L" if color == "gray" else "RGB"
    if image.mode != mode:
        image = image.convert(mode)
    return image if color != "bgr" else Image.merge("RGB", image.split()[::-1])


def picture(pixels: npt.NDArray[np.uint8], color: Color) -> Image.Image:
    """Pixels of a definition, (height, width, channels), as a PIL image to look at: in RGB, or L."""
    if color == "gray":
        return Image.fromarray(pixels[:, :, 0])
    return Image.fromarray(pixels if color == "rgb" else np.ascontiguousarray(pixels[:, :, ::-1]))


def _check_png_data(file: bytes) -> None:
    """Raise ``ValueError`` where checksums or the amount of pixel data are wrong, which Pillow lets pass."""
    width, height, bits, color, interlaced = *struct.unpack_from(">IIBB", file, 16), file[28]
    position, kind, parts = 8, b"", []
    while kind != b"IEND":
        length, kind = struct.unpack_from(">I4s", file, position)
        content = file[position + 8 : position + 8 + length]
        if kind == b"IDAT":
            parts.append(content)
        (checksum,) = struct.unpack_from(">I", file, position + 8 + length)
        if kind != b"IEND" and zlib.crc32(kind + content) != checksum:
            raise ValueError(f"wrong checksum of the PNG chunk at byte {position}")
        position += 12 + length
    bits_per_pixel = bits * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[color]
    expected = 0
    for top, left, down, right in _ADAM7 if interlaced else ((0, 0, 1, 1),):
        rows, columns = -(-(height - top) // down), -(-(width - left) // right)
        if rows > 0 and columns > 0:
            expected += rows * (1 + (columns * bits_per_pixel + 7) // 8)
    # Raw deflate after the two bytes of the zlib header: libpng does not insist on the checksum at the end.
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    data_bytes = len(inflate.decompress(b"".join(parts)[2:], expected + _PNG_EXCESS_BYTES))
    if data_bytes < expected or (data_bytes < expected + _PNG_EXCESS_BYTES and not inflate.eof):
        raise ValueError(f"the PNG holds {data_bytes} bytes of pixels of {expected}, or no end of them")


_PNG_EXCESS_BYTES = 1 << 15
"""Beyond this much more than the picture needs, the rest of a PNG's data does not matter."""

_ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
"""(top, left, step down, step right) of the seven passes of an interlaced PNG."""


def planned_pixels(definition: Definition, image: Image.Image, plan: Plan) -> npt.NDArray[np.uint8]:
    """What becomes of an image, as ``in_color`` gives it, by a definition's geometry or the variation of its plan."""
    variation, cut = plan.variation, plan.cut
    if variation is None:
        geometry = definition.geometry
        if plan.factor > 1 and definition.resize is not None:
            image = definition.resize.apply_reduced(image, plan.source_hw, plan.factor)
            geometry = geometry[1:]
        for operation in geometry:
            image = operation.apply(image)
        return _array(image)
    image = image.crop((cut.left, cut.top, cut.left + cut.width, cut.top + cut.height))
    if plan.transform is None:
        upside_down, flip = plan.mirrored
        pixels = _array(resize_of(definition, plan.canvas_hw).apply(image))[:: -1 if upside_down else 1]
        pixels = pixels[:, :: -1 if flip else 1]
    else:
        # A gray picture is sampled as three equal channels.
        shrunk = np.asarray(image.resize(plan.resized_hw[::-1], Image.Resampling.BILINEAR).convert("RGB"))
        pixels = rectified(shrunk, plan.transform, plan.canvas_hw, fill=variation.fill, moved=plan.moved)
        pixels = pixels[:, :, :1] if definition.color == "gray" else pixels
    return changed(pixels, variation.changes, color=definition.color)


def _array(image: Image.Image) -> npt.NDArray[np.uint8]:
    pixels = np.asarray(image)
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def _without_object(error: Exception) -> str:
    """Pillow's message without the ``<_io.BytesIO object at 0x…>`` that it sometimes carries."""
    text = str(error).partition("<_io")[0].strip()
    return text or type(error).__name__


def rectified(
    picture: Pixels,
    transform: npt.NDArray[np.float64],
    size_hw: Size,
    *,
    fill: int | None = None,
    moved: npt.NDArray[np.float64] | None = None,
) -> Pixels:
    """The rectangle of ``size_hw`` that a perspective transform (``projection.homographies``) takes from a picture.

    Each pixel's centre is mapped to the picture in float64 and rounded to 1/256 of a pixel there. The level is that of
    Keys's cubic with a = -0.5 (Pillow's *bicubic* without antialiasing) over the four by four pixels around it, whose
    weights along each axis are multiples of 2^-11 (``cpu.rectify.step_weights``). The border is repeated outwards, a
    half of a level is rounded up, and levels are clipped to 8 bit. With ``fill`` pixels whose centres lie beyond the
    picture have that level. ``moved``, (2, height, width), is added to x and y of each centre before it is mapped.
    """
    out = np.empty((*size_hw, 3), np.uint8)
    across, down = np.meshgrid(np.arange(size_hw[1]) + 0.5, np.arange(size_hw[0]) + 0.5)
    if moved is not None:
        across, down = across + moved[0], down + moved[1]
    for line in range(size_hw[0]):
        divisor, x, y = ((one * across[line] + two * down[line]) + three for one, two, three in transform[[2, 0, 1]])
        columns, along_rows, beside = _neighbours(x / divisor - 0.5, picture.shape[1])
        rows, down_columns, above_or_below = _neighbours(y / divisor - 0.5, picture.shape[0])
        # (pixels, rows, columns, channels)
        levels = picture[rows[:, :, None], columns[:, None, :]].astype(np.int32)
        weights = down_columns[:, :, None] * along_rows[:, None, :]
        total = (weights[..., None] * levels).sum(axis=(1, 2), dtype=np.int32) + (1 << (2 * DIGITS - 1))
        out[line] = np.clip(total >> (2 * DIGITS), 0, 255)
        if fill is not None:
            out[line, beside | above_or_below] = fill
    return out


def _neighbours(
    places: npt.NDArray[np.float64], side: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
    """The four pixels around places on a line of ``side`` pixels, and their weights, (places, 4) each.

    Also which places lie beyond the line, half a pixel or more from the centres of its ends, (places,).
    """
    steps = np.floor(np.clip(places, -2, side + 1) * STEPS + 0.5).astype(np.int64)
    taps = steps[:, None] // STEPS + np.arange(-1, 3)
    beyond = (steps < -(STEPS // 2)) | (steps > side * STEPS - STEPS // 2)
    return np.clip(taps, 0, side - 1), step_weights()[steps % STEPS], beyond
