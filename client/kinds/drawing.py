"""Draws what was found in a picture on it: outlines, and a text beside each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from PIL import Image, ImageDraw, ImageFont, ImageOps

from onestream.wire.box_style import Color, color_of, ink_on

_Area = tuple[float, float, float, float]
_Corners = Sequence[Sequence[float]]

Drawn = tuple[_Corners, int, str]
"""Four corners, x and y in pixels, clockwise; the class, which gives the colour; the text beside them."""

Skeleton = tuple[Sequence[tuple[Sequence[float], Sequence[float]]], Sequence[Sequence[float]], int]
"""Pairs of points that a line joins, all points that are shown, each x, y and perhaps more, and the class."""

_FONT = "DejaVuSans.ttf"
"""Has the letters of most alphabets. Pillow's own font, which has English ones only, stands in where it is missing."""
_LONGEST_TEXT = 120
"""Characters. A longer one would take more room than pictures have."""


def draw_quads(picture: Image.Image, objects: Sequence[Drawn], *, spare_others: bool = False) -> None:
    """Draw ``objects`` over an upright picture in RGB, the first on top.

    Lines and letters grow with the picture. A text that would cover that of an object before it is left out; with
    ``spare_others`` it covers other objects only where it has no other place, also to the right of its own. Letters
    that the font lacks are drawn as it draws what it lacks.
    """
    pen = ImageDraw.Draw(picture)
    line = _line_width(picture)
    font = _font(max(12.0, min(picture.size) / 40))
    for corners, class_id, _ in reversed(objects):
        _outline(pen, corners, picture.size, color_of(class_id), line)
    # All texts are equally high, whatever their letters.
    _, top, _, bottom = pen.textbbox((0, 0), "Äg", font=font)
    high = bottom - top + line
    taken: list[_Area] = []
    areas = [_around(corners, picture.size) for corners, _, _ in objects]
    for index, (_, class_id, whole) in enumerate(objects):
        text = _drawable(whole, font)
        if not text:
            continue
        left, _, right, _ = pen.textbbox((0, 0), text, font=font)
        wide = right - left + 2 * line
        places = list(_places(areas[index], wide, high, picture.size))
        if spare_others:
            others = [*areas[:index], *areas[index + 1 :]]
            places += _beside(areas[index], wide, high, picture.size)
            places = [*(place for place in places if not _meets(place, others)), *places]
        area = next((place for place in places if not _meets(place, taken)), None)
        if area is None:
            continue
        taken.append(area)
        color = color_of(class_id)
        pen.rectangle((area[0], area[1], area[2] - 1, area[3] - 1), fill=color)
        pen.text((area[0] + line - left, area[1] + line / 2 - top), text, fill=ink_on(color), font=font)


def draw_skeletons(picture: Image.Image, objects: Sequence[Skeleton]) -> None:
    """Draw lines between points, and the points on them, over an upright picture in RGB."""
    pen = ImageDraw.Draw(picture)
    line = _line_width(picture)
    for pairs, points, class_id in reversed(objects):
        color = color_of(class_id)
        inside = ink_on(color)
        for (x0, y0, *_), (x1, y1, *_) in pairs:
            pen.line((x0, y0, x1, y1), fill=color, width=line)
        for x, y, *_ in points:
            pen.circle((x, y), line, fill=inside, outline=color)


def upright(image: Image.Image, image_size: tuple[int, int]) -> Image.Image:
    """A copy, upright and in RGB.

    Raises TypeError for what is no PIL image, ValueError where it is not of ``image_size``, (height, width).
    """
    if not isinstance(image, Image.Image):
        raise TypeError(f"draw takes a PIL image, got {type(image).__name__}")
    picture = ImageOps.exif_transpose(image)
    if picture.mode != "RGB":
        picture = picture.convert("RGB")
    if picture.size != image_size[::-1]:
        height, width = image_size
        raise ValueError(
            f"the picture has {picture.width}x{picture.height} pixels, the answer is for one of {width}x{height}"
        )
    return picture


def _line_width(picture: Image.Image) -> int:
    """In pixels, by the shorter side."""
    return max(3, round(min(picture.size) / 200))


def _font(size: float) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    try:
        return ImageFont.truetype(_FONT, size)
    except OSError:
        return ImageFont.load_default(size)


def _drawable(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    """One line of the text that this font can be asked for."""
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    if len(text) > _LONGEST_TEXT:
        text = text[: _LONGEST_TEXT - 1] + "…"
    # Pillow's font without FreeType has the letters of Latin 1, and refuses others.
    return text if isinstance(font, ImageFont.FreeTypeFont) else text.encode("latin-1", "replace").decode("latin-1")


def _around(corners: _Corners, size: tuple[int, int]) -> _Area:
    """The box around these corners, as far as it is in a picture of this width and height."""
    x0, y0, x1, y1 = (
        min(max(0.0, pick(corner[axis] for corner in corners)), size[axis]) for pick in (min, max) for axis in (0, 1)
    )
    return x0, y0, x1, y1


def _outline(pen: ImageDraw.ImageDraw, corners: _Corners, size: tuple[int, int], color: Color, line: int) -> None:
    """Lines along four corners. Thin second lines show them before things of their own colour."""
    (x0, y0), (x1, y1) = corners[0], corners[2]
    if [tuple(corner) for corner in corners] == [(x0, y0), (x1, y0), (x1, y1), (x0, y1)]:
        x0, y0, x1, y1 = _around(corners, size)
        _frame(pen, (x0, y0, x1, y1), color, line)
        _frame(pen, (x0 + line, y0 + line, x1 - line, y1 - line), ink_on(color), max(1, line // 3))
        return
    # Pillow takes a step for every pixel of a line, in the picture or not.
    beyond = max(size)
    path = [
        (min(max(-beyond, x), size[0] + beyond), min(max(-beyond, y), size[1] + beyond))
        for x, y in (*corners, *corners[:2])
    ]
    pen.line(path, fill=ink_on(color), width=line + 2 * max(1, line // 3), joint="curve")
    pen.line(path, fill=color, width=line, joint="curve")


def _frame(pen: ImageDraw.ImageDraw, box: _Area, color: Color, line: int) -> None:
    """Lines on the inner side of a box; none where there is no inside."""
    x0, y0, x1, y1 = box
    if x1 - x0 >= 1 and y1 - y0 >= 1:
        pen.rectangle((x0, y0, x1 - 1, y1 - 1), outline=color, width=line)


def _places(box: _Area, wide: float, high: float, size: tuple[int, int]) -> Iterator[_Area]:
    """Where the text of a box may stand within a picture of this width and height: above it, within, below."""
    width, height = size
    x = min(max(0.0, box[0]), max(0.0, width - wide))
    rows = [box[1] - high, box[3]]
    if box[3] - box[1] >= 2 * high:
        # Within a lower box it would hide the object.
        rows.insert(1, max(0.0, box[1]))
    for y in rows:
        if 0 <= y <= height - high:
            yield (x, y, x + wide, y + high)


def _beside(box: _Area, wide: float, high: float, size: tuple[int, int]) -> Iterator[_Area]:
    """Where the text of a box may stand to the right of it, within a picture of this width and height."""
    y = (box[1] + box[3] - high) / 2
    if box[2] + wide <= size[0] and 0 <= y <= size[1] - high:
        yield (box[2], y, box[2] + wide, y + high)


def _meets(place: _Area, others: Iterable[_Area]) -> bool:
    return any(_overlap(place, other) for other in others)


def _overlap(one: _Area, other: _Area) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
