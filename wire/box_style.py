"""How boxes look wherever they are drawn, in the client or in the server: colours, lines, text."""

from __future__ import annotations

import colorsys

Color = tuple[int, int, int]
"""Red, green and blue, 0 to 255."""

NO_TRACK = -1
"""The track id of an object that belongs to no track."""

_GOLDEN = 0.618033988749895
"""Steps of this part of the circle give hues that stay apart, however many there are."""
_LONGEST_LABEL = 60


def color_of(class_id: int) -> Color:
    """The colour in which the boxes of a class are drawn."""
    red, green, blue = colorsys.hsv_to_rgb(class_id * _GOLDEN % 1, 0.85, 0.95)
    return round(255 * red), round(255 * green), round(255 * blue)


def ink_on(color: Color) -> Color:
    """Black or white, whichever is read more easily on a colour."""
    bright = sum(level * weight for level, weight in zip(color, (299, 587, 114), strict=True)) > 128_000
    return (0, 0, 0) if bright else (255, 255, 255)


def line_width(size_hw: tuple[int, int]) -> int:
    """Pixels of a box's line in a picture of (height, width)."""
    return max(2, round(min(size_hw) / 270))


def text_size(size_hw: tuple[int, int]) -> int:
    """Size of the font in pixels in a picture of (height, width)."""
    return max(12, round(min(size_hw) / 40))


def name_of(label: str, track_id: int = NO_TRACK) -> str:
    """What is written at a box before its score: the class, and of a tracked object its number."""
    name = " ".join(label.split())[:_LONGEST_LABEL]
    return name if track_id == NO_TRACK else f"{name} #{track_id}"
