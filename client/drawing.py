"""Draws detected objects on a picture."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont, ImageOps

from onestream.wire.box_style import color_of, ink_on

Drawn = tuple[tuple[float, float, float, float], int, str]
"""A box, x0, y0, x1, y1 in pixels; its class, which gives the colour; the text beside it."""


def draw_boxes(image: Image.Image, objects: Sequence[Drawn], *, image_size: tuple[int, int]) -> Image.Image:
    """A copy of ``image``, upright and in RGB, with ``objects``, the first on top.

    Raises ValueError where the picture is not of ``image_size``, (height, width).
    """
    picture = ImageOps.exif_transpose(image).convert("RGB")
    if picture.size != image_size[::-1]:
        height, width = image_size
        raise ValueError(
            f"the picture has {picture.width}x{picture.height} pixels, the boxes are of one of {width}x{height}"
        )
    pen = ImageDraw.Draw(picture)
    line = max(2, round(min(picture.size) / 200))
    font = ImageFont.load_default(size=max(12, min(picture.size) / 32))
    for (x0, y0, x1, y1), class_id, text in reversed(objects):
        color = color_of(class_id)
        pen.rectangle((x0, y0, max(x0, x1 - 1), max(y0, y1 - 1)), outline=color, width=line)
        left, top, right, bottom = pen.textbbox((0, 0), text, font=font)
        tall, wide = bottom - top + 2 * line, right - left + 2 * line
        # Above the box, or inside where there is no room; always within the picture.
        at_y = y0 - tall if y0 >= tall else y0
        at_x = min(max(0.0, x0), max(0, picture.width - wide))
        pen.rectangle((at_x, at_y, at_x + wide, at_y + tall), fill=color)
        pen.text((at_x + line - left, at_y + line - top), text, fill=ink_on(color), font=font)
    return picture
