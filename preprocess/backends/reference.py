"""The specification in code: Pillow and NumPy, one image at a time, one operation after the other."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from preprocess.backends.base import Compiled, Sample, network_layout
from preprocess.definition import Color, Geometric, Pad, Resize
from preprocess.errors import BadImage
from preprocess.filters import PILLOW_FILTERS
from preprocess.geometry import crop_window, resized_size
from preprocess.header import FORMATS, Encoded, byte_view


class Reference(Compiled):
    """Executes a definition literally. Slow, and right by definition."""

    def run(self, images: Sequence[Encoded]) -> list[Sample | BadImage]:
        """See ``Compiled.run``."""
        return [self._one(image) for image in images]

    def _one(self, data: Encoded) -> Sample | BadImage:
        try:
            self.limits.check(data)
            image = decode(data, self.definition.decode.color)
        except BadImage as error:
            return error
        for operation in self.definition.geometry:
            image = move_pixels(operation, image)
        pixels = np.asarray(image)
        return network_layout(self.definition, pixels if pixels.ndim == 3 else pixels[:, :, None])


def decode(data: Encoded, color: Color) -> Image.Image:
    """Decode to a PIL image in mode RGB or L, oriented and without alpha. Raises ``BadImage`` (corrupt).

    Check ``Limits`` first: this function decodes whatever the header declares.
    """
    try:
        with warnings.catch_warnings():
            # Pillow warns about palette transparency and about sizes; limits have judged the size already.
            warnings.simplefilter("ignore")
            image: Image.Image = Image.open(io.BytesIO(bytes(byte_view(data))), formats=[f.upper() for f in FORMATS])
            image.load()
            image = ImageOps.exif_transpose(image)
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise BadImage("corrupt", f"the image cannot be decoded: {_without_object(error)}") from None
    if image.mode.startswith("I;16"):
        # Pillow keeps the high byte of 16-bit RGB but clips 16-bit gray; the high byte is taken of both.
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return image.convert("RGB" if color == "rgb" else "L")


def move_pixels(operation: Geometric, image: Image.Image) -> Image.Image:
    """Execute one resize, crop or pad."""
    size_hw = (image.height, image.width)
    if isinstance(operation, Resize):
        height, width = resized_size(operation, size_hw)
        return image.resize((width, height), PILLOW_FILTERS[operation.filter])
    window = crop_window(operation, size_hw)
    fill = operation.value if isinstance(operation, Pad) else 0
    canvas = Image.new(image.mode, (window.width, window.height), (fill,) * len(image.getbands()))
    canvas.paste(image, (-window.left, -window.top))
    return canvas


def oriented_pixels(data: Encoded) -> npt.NDArray[np.uint8]:
    """Decode to uint8 RGB, (height, width, 3)."""
    return np.asarray(decode(data, "rgb"))


def _without_object(error: Exception) -> str:
    """Pillow's message without the ``<_io.BytesIO object at 0x…>`` that it sometimes carries."""
    text = str(error).partition("<_io")[0].strip()
    return text or type(error).__name__
