"""The colours of boxes, wherever they are drawn: in the client, or in the server into video."""

from __future__ import annotations

import colorsys

Color = tuple[int, int, int]
"""Red, green and blue, 0 to 255."""

_GOLDEN = 0.618033988749895
"""Steps of this part of the circle give hues that stay apart, however many there are."""
_LUMA = (0.299, 0.587, 0.114)
"""How bright red, green and blue are to the eye: ITU-R BT.601."""


def color_of(class_id: int) -> Color:
    """The colour in which the boxes of a class are drawn."""
    red, green, blue = colorsys.hsv_to_rgb(class_id * _GOLDEN % 1, 0.85, 0.95)
    return round(255 * red), round(255 * green), round(255 * blue)


def ink_on(color: Color) -> Color:
    """Black or white, whichever is easier to see on a colour."""
    bright = sum(level * share for level, share in zip(color, _LUMA, strict=True)) > 128
    return (0, 0, 0) if bright else (255, 255, 255)
