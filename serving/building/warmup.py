"""The picture that every instance of a model decodes before it is ready."""

from __future__ import annotations

import io
from importlib import resources

from PIL import Image

from onestream.preprocess import BadImage, Limits
from onestream.preprocess.headers.base import ImageFormat
from onestream.serving.errors import BadPipeline

_SIDES = (128, 32, 8, 1)
"""Of the picture where limits refuse the whole photo."""


def warmup_within(limits: Limits) -> tuple[str, bytes]:
    """Name and content of a small real picture that the limits let in: a model that refuses it would not load.

    Raises ``BadPipeline`` where they let in none.
    """
    photo = warmup_photo()
    picture = Image.open(io.BytesIO(photo)).convert("RGB")
    reason = ""
    for side in (None, *_SIDES):
        for image_format in limits.formats:
            content = photo if (side, image_format) == (None, "JPEG") else _encoded(picture, side, image_format)
            try:
                limits.check(content)
            except BadImage as error:
                reason = str(error)
            else:
                return f"photo.{'jpg' if image_format == 'JPEG' else image_format.lower()}", content
    raise BadPipeline(f"limits: they let in no picture with which a model could be warmed up: {reason}")


def _encoded(picture: Image.Image, side: int | None, image_format: ImageFormat) -> bytes:
    file = io.BytesIO()
    if image_format == "HEIC":
        import pillow_heif

        pillow_heif.register_heif_opener()
    resized = picture if side is None else picture.resize((side, side))
    resized.save(file, "HEIF" if image_format == "HEIC" else image_format)
    return file.getvalue()


def warmup_photo() -> bytes:
    """A small real JPEG that every instance decodes before it is ready."""
    return (resources.files("onestream.serving") / "data" / "warmup.jpg").read_bytes()
