"""Pictures for the tests: real photos, cards on which a shift by one pixel shows, and the files that hold them."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from image_files import bmp_of, encode, exif_block, jpeg_exif, jpeg_with_segments, png_interlaced, png_of, tiff
from PIL import Image, ImageFile, ImageOps

# Pillow's encoder buffer is too small for noise in one progressive scan.
ImageFile.MAXBLOCK = 1 << 24

Pixels = npt.NDArray[np.uint8]
ASSETS = Path(__file__).parent.parent / "assets"
PHOTOS = ("astronaut", "chelsea", "coffee", "rocket")


@lru_cache
def photo(name: str) -> Image.Image:
    """A real photo, RGB."""
    return Image.open(ASSETS / f"{name}.jpg").convert("RGB")


def half(name: str) -> Image.Image:
    """A photo of half the size, where a large one would show nothing more."""
    return photo(name).reduce(2)


def portrait(name: str) -> Image.Image:
    """A part of a photo with odd sides, upright."""
    return photo(name).crop((10, 3, 211, 298))


def card(height: int, width: int) -> Pixels:
    """An (h, w, 3) picture in which every pixel differs from its neighbours, and every edge from the others."""
    noise = np.random.default_rng(height * 65536 + width).integers(0, 256, (height, width, 3))
    rows, columns = np.mgrid[0:height, 0:width]
    noise[:, :, 0] = rows * 37 % 256
    noise[:, :, 1] = columns * 41 % 256
    return noise.astype(np.uint8)


def noise(height: int, width: int) -> Image.Image:
    """Random pixels: the hardest content for a resize."""
    return Image.fromarray(np.random.default_rng(1).integers(0, 256, (height, width, 3)).astype(np.uint8))


def edges(height: int, width: int) -> Image.Image:
    """Lines of one pixel, black and white and coloured."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[::2] = 255
    pixels[:, ::3, 0] = 255
    pixels[height // 2 :, width // 2] = (255, 0, 255)
    return Image.fromarray(pixels)


def _rgba(image: Image.Image) -> Image.Image:
    alpha = np.random.default_rng(2).integers(0, 256, (image.height, image.width)).astype(np.uint8)
    result = image.copy()
    result.putalpha(Image.fromarray(alpha))
    return result


def _with_alpha(image: Image.Image) -> Pixels:
    return np.asarray(_rgba(image))


def _deep(image: Image.Image, channels: int = 3) -> npt.NDArray[np.uint16]:
    low_bytes = np.random.default_rng(3).integers(0, 256, (image.height, image.width, 3))
    return (np.asarray(image).astype(np.uint16) * 256 + low_bytes).astype(np.uint16)[:, :, :channels]


def _cmyk(image: Image.Image, noise_share: float = 0.3) -> Image.Image:
    """A CMYK picture that uses its black channel."""
    ink = np.random.default_rng(4).integers(0, 256, (image.height, image.width, 4)).astype(np.uint8)
    return Image.blend(image.convert("CMYK"), Image.frombytes("CMYK", image.size, ink.tobytes()), noise_share)


def _palette(image: Image.Image, colors: int = 256) -> Image.Image:
    return image.convert("P", palette=Image.Palette.ADAPTIVE, colors=colors)


PLAIN: dict[str, Callable[[Image.Image], bytes]] = {
    "jpeg 4:4:4": lambda image: encode(image, "JPEG", quality=95, subsampling=0),
    "jpeg 4:2:2": lambda image: encode(image, "JPEG", quality=90, subsampling=1),
    "jpeg 4:2:0": lambda image: encode(image, "JPEG", quality=90, subsampling=2),
    "jpeg 4:1:1": lambda image: encode(image, "JPEG", quality=90, subsampling="4:1:1"),
    "jpeg progressive": lambda image: encode(image, "JPEG", quality=85, progressive=True),
    "jpeg restart markers": lambda image: encode(image, "JPEG", restart_marker_blocks=3),
    "jpeg gray": lambda image: encode(image.convert("L"), "JPEG", quality=90),
    "jpeg stored as RGB": lambda image: encode(image, "JPEG", keep_rgb=True),
    "jpeg EXIF 6": lambda image: jpeg_with_segments(encode(image, "JPEG", quality=90), jpeg_exif(6)),
    "png": lambda image: encode(image, "PNG"),
    "png gray": lambda image: encode(image.convert("L"), "PNG"),
    "png alpha": lambda image: encode(_rgba(image), "PNG"),
    "png gray alpha": lambda image: encode(_rgba(image).convert("LA"), "PNG"),
    "png palette": lambda image: encode(_palette(image), "PNG"),
    "png palette of 4": lambda image: encode(_palette(image, 4), "PNG", bits=2),
    "png palette, transparent": lambda image: encode(_palette(image), "PNG", transparency=bytes(range(256))),
    "png 1 bit": lambda image: encode(image.convert("1"), "PNG"),
    "png interlaced": lambda image: png_interlaced(np.asarray(image)),
    "png EXIF 8": lambda image: png_of(np.asarray(image), before=[(b"eXIf", exif_block(8, order=">"))]),
    "webp": lambda image: encode(image, "WEBP", quality=85),
    "webp lossless": lambda image: encode(image, "WEBP", lossless=True),
    "webp alpha": lambda image: encode(_rgba(image), "WEBP"),
    "webp EXIF 5": lambda image: encode(image, "WEBP", exif=_pillow_exif(5)),
    "tiff": lambda image: tiff(np.asarray(image)),
    "tiff big endian": lambda image: tiff(np.asarray(image), order=">", rows_per_strip=7),
    "tiff gray": lambda image: tiff(np.asarray(image)[:, :, :1]),
    "tiff alpha": lambda image: tiff(_with_alpha(image)),
    "tiff tiles": lambda image: tiff(np.asarray(image), tile=32, compression=8),
    "tiff deflate": lambda image: tiff(np.asarray(image), compression=8, predictor=True, rows_per_strip=16),
    "tiff LZW": lambda image: encode(image, "TIFF", compression="tiff_lzw"),
    "tiff JPEG": lambda image: encode(image, "TIFF", compression="jpeg"),
    "tiff orientation 7": lambda image: tiff(np.asarray(image), tags={274: (3, [7])}),
    "bmp": lambda image: bmp_of(np.asarray(image)),
    "bmp top down": lambda image: bmp_of(np.asarray(image), top_down=True),
    "bmp 32 bit": lambda image: bmp_of(_with_alpha(image)),
    "bmp palette": lambda image: encode(_palette(image), "BMP"),
    "bmp palette of 16": lambda image: encode(_palette(image, 16), "BMP"),
    "bmp OS/2": lambda image: bmp_of(np.asarray(image), header_bytes=12),
}
"""Files whose 8-bit gray or RGB every backend decodes to the same bits."""

CONVERTED: dict[str, Callable[[Image.Image], bytes]] = {
    "jpeg CMYK": lambda image: encode(_cmyk(image), "JPEG", quality=90),
    "jpeg CMYK, any ink": lambda image: encode(_cmyk(image, 1), "JPEG", quality=100),
    "png 16 bit": lambda image: png_of(_deep(image)),
    "png 16-bit gray": lambda image: png_of(_deep(image, 1)),
    "tiff 16 bit": lambda image: tiff(_deep(image)),
    "tiff 16-bit gray, big endian": lambda image: tiff(_deep(image, 1), order=">"),
    "tiff palette": lambda image: encode(_palette(image), "TIFF"),
}
"""Files that take arithmetic to become 8-bit RGB."""


def _pillow_exif(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def pillow_oriented(data: bytes) -> Image.Image:
    """What Pillow alone makes of a file, RGB."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = Image.open(io.BytesIO(data))
        image.load()
        return ImageOps.exif_transpose(image).convert("RGB")
