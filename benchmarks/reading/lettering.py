"""Rendered text: three fonts, texts that anybody could meet, and signs with lines of it, whose truth is known.

Everything is drawn from a generator, so that the same seed, Pillow and fonts give the same pixels.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from benchmarks.photos import packaged
from benchmarks.result_files import ROOT

FontName = Literal["DejaVu Sans", "STIX General", "Aileron"]
FONTS: tuple[FontName, ...] = get_args(FontName)
"""A wide sans serif and a narrow serif that matplotlib carries (licences of DejaVu and STIX), and what Pillow has
inside (CC0), which resembles the commonest of all."""

_IN_MATPLOTLIB: dict[FontName, str] = {"DejaVu Sans": "DejaVuSans.ttf", "STIX General": "STIXGeneral.ttf"}
_FEWEST_LETTERS, _MOST_LETTERS = 3, 12
_CONTRAST_LEVELS = 75
"""How far from black a dark colour may be, and a light one from white."""
_SPACING = 1.35
"""From one line of a sign to the next, in heights of a line."""
_MARGIN = 0.8
"""Around the lines of a sign, in heights of a line."""


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """A line of text as it was rendered: ``quad`` (4, 2) round its ink, x y in pixels, from its top left corner on."""

    text: str
    quad: npt.NDArray[np.float64]


@cache
def font(name: FontName, height_px: int) -> ImageFont.FreeTypeFont:
    """The largest size whose line, from ascent to descent, is at most ``height_px`` high.

    Raises ``PhotosMissing`` naming the command that installs the package with the font.
    """
    for size in range(height_px, 0, -1):
        found = _font(name, size)
        if sum(found.getmetrics()) <= height_px:
            return found
    raise ValueError(f"a line of {height_px} px is too low for any size of {name}")


def _font(name: FontName, size: int) -> ImageFont.FreeTypeFont:
    if name == "Aileron":
        found = ImageFont.load_default(size)
        assert isinstance(found, ImageFont.FreeTypeFont), "Pillow was built without FreeType"
        return found
    file = packaged("matplotlib/mpl-data/fonts/ttf", _IN_MATPLOTLIB[name])
    # The basic layout, which Aileron has too: Raqm is not in every Pillow, and kerns in another way.
    return ImageFont.truetype(str(file), size, layout_engine=ImageFont.Layout.BASIC)


@cache
def _words() -> tuple[str, ...]:
    """Words of ASCII letters from the names of ImageNet's classes."""
    names = (ROOT / "serving" / "data" / "imagenet_labels.txt").read_text(encoding="utf-8")
    words = set(re.findall(r"(?<![\w'’-])[A-Za-z]+(?![\w'’-])", names))
    return tuple(sorted(word for word in words if _FEWEST_LETTERS <= len(word) <= _MOST_LETTERS))


def text(rng: np.random.Generator, *, most_characters: int) -> str:
    """One to four words, some in capitals, or words beside a number, a price, a date or a time."""
    while True:
        words = " ".join(rng.choice(_words(), int(rng.integers(1, 5))))
        kinds = (
            words,
            words.upper(),
            words.capitalize(),
            f"{words} No. {rng.integers(2, 1000)}",
            f"{words} {rng.integers(1, 100)}.{rng.integers(100):02} EUR",
            f"{words}, {rng.integers(1950, 2050)}-{rng.integers(1, 13):02}-{rng.integers(1, 29):02}",
            f"{words} ({rng.integers(6, 24):02}:{rng.integers(60):02})",
        )
        drawn = str(kinds[rng.integers(len(kinds))])
        if len(drawn) <= most_characters:
            return drawn


def sign(
    texts: Sequence[str], lettering: ImageFont.FreeTypeFont, rng: np.random.Generator, photos: Sequence[Image.Image]
) -> tuple[Image.Image, list[Written]]:
    """An RGB picture with these lines, dark on light or light on dark, with blur and noise that leave them legible.

    Its background has one colour, goes from one to another, or is a faded part of a photo.
    """
    line_px = sum(lettering.getmetrics())
    margin = round(_MARGIN * line_px)
    widths = [lettering.getbbox(one)[2] for one in texts]
    width = int(max(widths)) + 2 * margin
    height = round(line_px * (1 + _SPACING * (len(texts) - 1))) + 2 * margin
    light = bool(rng.integers(2))
    picture = _background(width, height, rng, photos, light=light)
    draw, ink, written = ImageDraw.Draw(picture), _colour(rng, light=not light), []
    for index, one in enumerate(texts):
        at = (margin, margin + round(index * _SPACING * line_px))
        draw.text(at, one, fill=ink, font=lettering)
        x0, y0, x1, y1 = draw.textbbox(at, one, font=lettering)
        written.append(Written(one, np.array([(x0, y0), (x1, y0), (x1, y1), (x0, y1)], np.float64)))
    return picture, written


def turned(
    picture: Image.Image, written: Sequence[Written], degrees: float
) -> tuple[Image.Image, Image.Image, list[Written]]:
    """A picture turned counterclockwise about its middle, in one that holds it; where it is (255); its lines."""
    after = picture.rotate(degrees, Image.Resampling.BICUBIC, expand=True)
    where = Image.new("L", picture.size, 255).rotate(degrees, Image.Resampling.BICUBIC, expand=True)
    cos, sin = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    turn = np.array([[cos, -sin], [sin, cos]])
    middle, new_middle = np.array(picture.size) / 2, np.array(after.size) / 2
    return after, where, [Written(one.text, (one.quad - middle) @ turn + new_middle) for one in written]


def moved(written: Sequence[Written], x: float, y: float) -> list[Written]:
    """The same lines further right and down, in pixels."""
    return [Written(one.text, one.quad + np.array([x, y])) for one in written]


def part_of(photo: Image.Image, width: int, height: int, rng: np.random.Generator) -> Image.Image:
    """A random part of a photo, at least half as large as the largest of this shape, resized to it."""
    scale = min(photo.width / width, photo.height / height) * rng.uniform(0.5, 1)
    wide, high = width * scale, height * scale
    left, top = rng.uniform(0, photo.width - wide), rng.uniform(0, photo.height - high)
    box = (left, top, min(left + wide, photo.width), min(top + high, photo.height))
    return photo.resize((width, height), Image.Resampling.LANCZOS, box=box)


def _colour(rng: np.random.Generator, *, light: bool) -> tuple[int, int, int]:
    red, green, blue = (int(level) for level in rng.integers(0, _CONTRAST_LEVELS, 3))
    return (255 - red, 255 - green, 255 - blue) if light else (red, green, blue)


def _background(
    width: int, height: int, rng: np.random.Generator, photos: Sequence[Image.Image], *, light: bool
) -> Image.Image:
    one = Image.new("RGB", (width, height), _colour(rng, light=light))
    kind = rng.integers(3)
    if kind == 0:
        return one
    if kind == 1:
        other = Image.new("RGB", (width, height), _colour(rng, light=light))
        mask = Image.linear_gradient("L").rotate(90).resize((width, height))
        return Image.composite(one, other, mask)
    photo = part_of(photos[rng.integers(len(photos))], width, height, rng)
    return Image.blend(photo, one, float(rng.uniform(0.75, 0.9)))
