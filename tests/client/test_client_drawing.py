"""What is drawn on a picture of the objects, the text and the regions that were found in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from client_fakes import detections, kind_of, reading, sorted_objects
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFont

from onestream.client import Tensors, kinds
from onestream.client.kinds.drawing import color_of

GRAY = (90, 90, 90)
SIZE = (200, 100)
SIGN = ((20, 10), (120, 30), (115, 50), (15, 30))
CAT = color_of(17)

Box = tuple[float, float, float, float]


def draw(tensors: Tensors, picture: Any) -> Image.Image:
    return kinds.read(kind_of(tensors), "m", tensors, "", 1).draw(picture)


def drawn(tensors: Tensors) -> np.ndarray[Any, Any]:
    """The pixels of a gray picture of the answer's size with the answer drawn on a copy."""
    height, width = tensors["image_size"][0].tolist()
    picture = Image.new("RGB", (width, height), GRAY)
    seen = np.asarray(draw(tensors, picture))
    assert picture.getcolors() == [(width * height, GRAY)]
    assert seen.shape == (height, width, 3)
    return seen


def cat(box: Box, size: tuple[int, int]) -> Tensors:
    return detections(("cat", 17, 0.9, box), size_hw=size[::-1])


def text(*lines: tuple[str, float, Sequence[Sequence[float]]], size: tuple[int, int] = SIZE) -> Tensors:
    return reading(*lines, size_hw=size[::-1])


@pytest.mark.parametrize("size", [(300, 200), (1600, 1200)])
def test_a_box_is_drawn_within_its_edges(size: tuple[int, int]) -> None:
    width, height = size
    box = (width * 0.5, height * 0.5, width * 0.75, height * 0.9)
    seen = drawn(cat(box, size))
    x0, y0, x1, y1 = map(round, box)
    line = max(3, min(size) // 200)
    for part in (
        seen[y0 : y0 + line, x0:x1],
        seen[y1 - line : y1, x0:x1],
        seen[y0:y1, x0 : x0 + line],
        seen[y0:y1, x1 - line : x1],
    ):
        assert (part == CAT).all()
    assert (seen[y1:] == GRAY).all()
    assert (seen[:, x1:] == GRAY).all()
    assert (seen[:, :x0] == GRAY).all()
    middle = seen[y0 + 3 * line : y1 - 3 * line, x0 + 3 * line : x1 - 3 * line]
    assert (middle == GRAY).all(), "the object stays visible"
    name = seen[:y0]
    rows = np.flatnonzero((name == CAT).all(axis=2).any(axis=1))
    # High enough to be read on a screen that shows the whole picture: a fiftieth of it, or 12 pixels.
    assert max(12, height / 50) <= len(rows) <= height / 10
    assert (name == (0, 0, 0)).all(axis=2).any() or (name == (255, 255, 255)).all(axis=2).any()


@pytest.mark.parametrize(
    "box",
    [
        (0, 0, 300, 200),
        (0, 0, 40, 8),
        (290, 190, 300, 200),
        (5, 5, 5, 5),
        (0, 195, 300, 200),
        (-5, -5, 400, 400),
        (-1e30, -1e30, 1e30, 1e30),
    ],
)
def test_a_name_stays_within_the_picture(box: Box) -> None:
    named = (drawn(cat(box, (300, 200))) == CAT).all(axis=2)
    # Of a filled area: no line is as thick.
    assert (named[:, :-8] & named[:, 8:]).any()


def test_names_do_not_cover_one_another() -> None:
    """Three names of the same box find room; the fourth, of the worst object, is left out, and its box is not."""
    box = (100, 80, 200, 180)
    found = [(name, class_id, 0.9 - class_id / 10, box) for class_id, name in enumerate("abcd")]
    seen = drawn(detections(*found, size_hw=(260, 300)))

    def area(class_id: int) -> int:
        named = (seen == color_of(class_id)).all(axis=2)
        return int((named[:, :-8] & named[:, 8:] & np.roll(named, 4, axis=0)[:, 8:]).sum())

    assert [area(class_id) > 50 for class_id in range(4)] == [True, True, True, False]


def test_a_picture_too_small_for_a_name_has_boxes_only() -> None:
    seen = drawn(cat((0, 0, 10, 10), (10, 10)))
    assert (seen[0] == CAT).all()
    assert (seen[4:6, 4:6] == GRAY).all()


def test_regions_are_drawn_as_boxes_with_names_and_in_the_colour_of_their_class() -> None:
    seen = drawn(sorted_objects(("cup", "espresso", (10, 20, 110, 90))))
    assert (seen[20, 10:110] == color_of(5)).all()
    assert (seen[20:90, 10] == color_of(5)).all()


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1"])
def test_a_picture_of_any_mode_is_drawn_on_in_rgb(mode: str) -> None:
    seen = draw(cat((10, 40, 90, 80), (100, 100)), Image.new(mode, (100, 100)))
    assert (seen.mode, seen.getpixel((50, 40))) == ("RGB", CAT)


def test_a_turned_picture_is_drawn_upright() -> None:
    """Stored lying; its EXIF orientation says that it stands, and boxes are of the standing picture."""
    picture = Image.new("RGB", (200, 100), GRAY)
    picture.getexif()[0x0112] = 6
    seen = draw(cat((10, 60, 90, 180), (100, 200)), picture)
    assert (seen.size, seen.getexif().get(0x0112, 1), seen.getpixel((50, 179))) == ((100, 200), 1, CAT)


def test_what_is_not_drawn_on() -> None:
    for tensors in (text(), cat((10, 20, 30, 40), SIZE)):
        with pytest.raises(ValueError, match="the picture has 100x200 pixels, the answer is for one of 200x100"):
            draw(tensors, Image.new("RGB", (100, 200)))
        with pytest.raises(TypeError, match="draw takes a PIL image, got str"):
            draw(tensors, "photo.jpg")


@given(st.integers(0, 10_000))
def test_neighbouring_classes_have_colours_that_differ(class_id: int) -> None:
    one, other = color_of(class_id), color_of(class_id + 1)
    assert all(0 <= level <= 255 for level in one)
    assert math.dist(one, other) > 100


def test_a_quad_is_drawn_along_its_edges() -> None:
    quad = ((100, 200), (400, 250), (390, 320), (90, 270))
    seen = drawn(text(("word", 0.9, quad), size=(600, 400)))
    for (x0, y0), (x1, y1) in zip(quad, (*quad[1:], quad[0]), strict=True):
        assert tuple(seen[round((y0 + y1) / 2), round((x0 + x1) / 2)]) != GRAY
    assert tuple(seen[262, 245]) == GRAY, "the text itself stays visible"
    assert tuple(seen[395, 595]) == GRAY


@pytest.mark.parametrize("said", ["EXIT", "出口", "\x1b[31m\n", "😀 عربي", "a" * 5000, "", "\u202eabc", "\x00"])
@pytest.mark.parametrize("has_free_type", [True, False])
def test_text_that_a_font_lacks_is_drawn_as_it_can(
    monkeypatch: pytest.MonkeyPatch, said: str, has_free_type: bool
) -> None:
    if not has_free_type:
        bitmap = ImageFont.load_default_imagefont()
        monkeypatch.setattr("onestream.client.kinds.drawing._font", lambda _size: bitmap)
    labelled, outlined = (drawn(text((one, 0.9, SIGN))) for one in (said, ""))
    changed = (labelled != outlined).any(axis=2)
    assert (changed.sum() > 100) == bool(said), "a text has a place, where there is one"


def test_a_text_covers_no_other_line_where_it_has_room() -> None:
    """There is none above or below the middle line, so its text stands to the right."""
    rows = [(f"line {n}", 0.9, ((20, y), (300, y), (300, y + 20), (20, y + 20))) for n, y in enumerate((60, 81, 102))]
    seen = drawn(text(*rows, size=(600, 200)))
    for _, _, ((x0, y0), _, (x1, y1), _) in rows:
        assert (seen[y0 + 6 : y1 - 6, x0 + 6 : x1 - 6] == GRAY).all()
    labelled = (seen[86:97, 305:340] == color_of(0)).all(axis=2)
    assert labelled.mean() > 0.5


CORNER = st.tuples(st.floats(-200, 400, width=32), st.floats(-200, 300, width=32)) | st.sampled_from([(9, 9), (50, 9)])


@given(st.lists(st.tuples(st.text(max_size=20), st.tuples(*[CORNER] * 4)), max_size=4))
def test_any_quads_are_drawn(found: list[tuple[str, Any]]) -> None:
    drawn(text(*((said.encode(errors="replace").decode(), 0.5, quad) for said, quad in found)))
