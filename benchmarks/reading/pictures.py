"""The pictures that are read: rendered lines, turned text on photos and of real print, and ten lines on a photo.

All are JPEGs of quality 90, made on the spot from packages and from the photos in ``examples/photos``; the same seed,
Pillow and NumPy give the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import PIL
from PIL import Image, ImageFilter

from benchmarks.photos import Drawn, PhotoSet, Size, jpeg, kept, packaged
from benchmarks.reading.lettering import FONTS, FontName, Written, font, moved, part_of, sign, text, turned
from benchmarks.result_files import ROOT

LINES = 200
HEIGHTS_PX = (20, 60)
"""The lowest and the highest rendered line, from ascent to descent."""
TURNED = 40
MOST_DEGREES = 30.0
TEN_LINES: Size = "640x480"
"""The size of the pictures with ten lines each."""
TEN_LINES_PICTURES = 20
SEED = 17

_RECIPE = 1
_TEN = 10
_PRINTED = {"page.png": 8, "text.png": 2}
"""Real print and handwriting that scikit-image carries, with how often each is turned. ``page.png`` shows its own
documentation (BSD-3-Clause), ``text.png`` is in the public domain."""
_PRINT_SCALE = 2
"""The letters of both pictures are 10 to 20 pixels high."""
_TURNED_SIZE = (960, 720)
_NOISE_LEVELS, _BLUR_PX = 6.0, 0.6
_TRIES = 200


class TextPicture(NamedTuple):
    """An encoded picture and what was written on it, which is nothing where the text is real."""

    name: str
    source: str
    content: bytes
    written: list[Written]


@dataclass(frozen=True, slots=True)
class RenderedLine:
    """A picture with one line. ``height_px`` is that of the line, from ascent to descent."""

    picture: TextPicture
    text: str
    font: FontName
    height_px: int


def rendered_lines(count: int = LINES) -> list[RenderedLine]:
    """One line each, the fonts in turn, of random heights; the line has a margin around it.

    Raises ``PhotosMissing`` where a package with a font is not installed.
    """
    made = []
    for index in range(count):
        rng = np.random.default_rng((SEED, 0, index))
        name, height_px = FONTS[index % len(FONTS)], int(rng.integers(HEIGHTS_PX[0], HEIGHTS_PX[1] + 1))
        words = text(rng, most_characters=28)
        picture, written = sign([words], font(name, height_px), rng, _photos())
        content = jpeg(_photographed(picture, rng))
        made.append(RenderedLine(TextPicture(f"line-{index:03}.jpg", name, content, written), words, name, height_px))
    return made


def turned_pictures(count: int = TURNED) -> list[TextPicture]:
    """Real print, and signs with one to four lines on photos, each turned by up to 30 degrees to either side.

    Raises ``PhotosMissing`` where a package with a picture or a font is not installed.
    """
    printed = [name for name, times in _PRINTED.items() for _ in range(times)]
    return [
        _printed(name, index) if index < len(printed) else _signs(index)
        for index, name in enumerate([*printed, *[""] * count][:count])
    ]


def ten_lines(size: Size, folder: Path) -> PhotoSet:
    """Photos of ``size`` with two signs of five lines each, kept in ``folder``; see ``photos.kept``."""
    photos = [file.name for file in _photo_files()]
    made_by = {
        "recipe": _RECIPE,
        "pictures": TEN_LINES_PICTURES,
        "sources": photos,
        "pillow": PIL.__version__,
        "numpy": np.__version__,
    }
    every = range(TEN_LINES_PICTURES)
    return kept(size, folder / f"ten-lines-{size}", made_by, lambda: [_ten_lines(size, index) for index in every])


def _ten_lines(size: Size, index: int) -> Drawn:
    width, height = (int(side) for side in size.split("x"))
    rng = np.random.default_rng((SEED, 2, index))
    source, photo = _photo_files()[index % len(_photo_files())], _photos()[index % len(_photos())]
    picture = part_of(photo, width, height, rng)
    _put_signs(picture, rng, lines=(_TEN // 2, _TEN // 2), heights_px=(20, 26), most_characters=22, most_degrees=4)
    return Drawn(f"{source.stem}-{index:02}.jpg", source.name, jpeg(_photographed(picture, rng)))


def _printed(name: str, index: int) -> TextPicture:
    rng = np.random.default_rng((SEED, 1, index))
    page = Image.open(packaged("skimage/data", name)).convert("RGB")
    page = page.resize((page.width * _PRINT_SCALE, page.height * _PRINT_SCALE), Image.Resampling.LANCZOS)
    picture, where, _ = turned(page, [], rng.uniform(-MOST_DEGREES, MOST_DEGREES))
    paper = Image.new("RGB", picture.size, tuple(int(level) for level in np.median(np.asarray(page), axis=(0, 1))))
    return TextPicture(f"{Path(name).stem}-{index:02}.jpg", name, jpeg(Image.composite(picture, paper, where)), [])


def _signs(index: int) -> TextPicture:
    rng = np.random.default_rng((SEED, 1, index))
    source, photo = _photo_files()[index % len(_photo_files())], _photos()[index % len(_photos())]
    picture = part_of(photo, *_TURNED_SIZE, rng)
    lines = [int(count) for count in rng.integers(1, 5, int(rng.integers(1, 3)))]
    written = _put_signs(picture, rng, lines=lines, heights_px=(20, 44), most_characters=24, most_degrees=MOST_DEGREES)
    name = f"{source.stem}-{index:02}.jpg"
    return TextPicture(name, source.name, jpeg(_photographed(picture, rng)), written)


def _put_signs(
    picture: Image.Image,
    rng: np.random.Generator,
    *,
    lines: Sequence[int],
    heights_px: tuple[int, int],
    most_characters: int,
    most_degrees: float,
) -> list[Written]:
    """Put a sign with so many lines on each of as many equal bands of a picture, one below the other."""
    band_px, found = picture.height // len(lines), []
    for place, count in enumerate(lines):
        for _ in range(_TRIES):
            name = FONTS[rng.integers(len(FONTS))]
            lettering = font(name, int(rng.integers(heights_px[0], heights_px[1] + 1)))
            texts = [text(rng, most_characters=most_characters) for _ in range(count)]
            one, written = sign(texts, lettering, rng, _photos())
            one, where, written = turned(one, written, rng.uniform(-most_degrees, most_degrees))
            if one.width <= picture.width and one.height <= band_px:
                break
        else:
            raise ValueError(f"no sign of {count} lines fits {picture.width}×{band_px} px in {_TRIES} tries")
        x = int(rng.integers(picture.width - one.width + 1))
        y = place * band_px + int(rng.integers(band_px - one.height + 1))
        picture.paste(one, (x, y), where)
        found += moved(written, x, y)
    return found


def _photographed(picture: Image.Image, rng: np.random.Generator) -> Image.Image:
    """As a camera would see it: a little blurred, with noise."""
    soft = picture.filter(ImageFilter.GaussianBlur(float(rng.uniform(0, _BLUR_PX))))
    noise = rng.normal(0, rng.uniform(0, _NOISE_LEVELS), (picture.height, picture.width, 1))
    return Image.fromarray(np.clip(np.rint(np.asarray(soft) + noise), 0, 255).astype(np.uint8))


@cache
def _photo_files() -> tuple[Path, ...]:
    """Those of the checkout; examples/README.md states authors and licences."""
    return tuple(sorted((ROOT / "examples" / "photos").glob("*.jpg")))


@cache
def _photos() -> tuple[Image.Image, ...]:
    return tuple(Image.open(file).convert("RGB") for file in _photo_files())
