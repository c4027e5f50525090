"""Which photos a report is made on."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from onestream.measure.parity.subject import Photo
from onestream.preprocess.headers.reader import Encoded, byte_view
from onestream.preprocess.tolerances import Source
from onestream.serving.photos import bundled_photos

_TIFF_BITS_PER_SAMPLE = 258


def bundled() -> list[Photo]:
    """The photos that come with the package."""
    return [Photo(name, data, source_of(data)) for name, data in bundled_photos().items()]


def read(paths: Sequence[Path]) -> tuple[list[Photo], dict[str, str]]:
    """The photos in files, and why the others cannot be read."""
    photos: list[Photo] = []
    unreadable: dict[str, str] = {}
    for path in paths:
        try:
            data = path.read_bytes()
        except OSError as error:
            unreadable[str(path)] = error.strerror or str(error)
        else:
            photos.append(Photo(str(path), data, source_of(data)))
    return photos, unreadable


def source_of(data: Encoded) -> Source:
    """How an image is stored, as the tolerances table tells apart; *plain* for what is no image."""
    file = bytes(byte_view(data))
    try:
        with Image.open(io.BytesIO(file)) as image:
            kind, mode = image.format, image.mode
            # Pillow opens 16-bit RGB as 8-bit RGB, so the depth is read from the header.
            bits = max(image.tag_v2.get(_TIFF_BITS_PER_SAMPLE, (8,))) if kind == "TIFF" else 8
    except Exception:  # whatever is wrong with it, the reference says it better
        return "plain"
    if kind == "PNG":
        bits = file[24]
    return "converted" if mode == "CMYK" or bits > 8 or (kind == "TIFF" and mode in ("P", "PA")) else "plain"
