"""The pictures that are read: always the same, with lines where their truth says."""

from __future__ import annotations

import importlib.util
import io
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.photos import PhotosMissing
from benchmarks.reading import pictures
from benchmarks.reading.lettering import FONTS, Written, font, sign, text, turned
from benchmarks.reading.pictures import HEIGHTS_PX, MOST_DEGREES, TEN_LINES, rendered_lines


def opened(content: bytes) -> Image.Image:
    return Image.open(io.BytesIO(content))


def angle(line: Written) -> float:
    x, y = line.quad[1] - line.quad[0]
    return math.degrees(math.atan2(y, x))


def assert_within(written: Sequence[Written], size: tuple[int, int]) -> None:
    for line in written:
        # Half a pixel, since a turned picture is as large as whole pixels hold.
        assert (line.quad >= -0.5).all()
        assert (line.quad <= np.array(size) + 0.5).all()


@pytest.mark.parametrize("name", FONTS)
@pytest.mark.parametrize("height_px", [20, 37, 60])
def test_a_font_is_as_large_as_its_line_allows(name: str, height_px: int) -> None:
    found = font(name, height_px)
    assert height_px - 2 <= sum(found.getmetrics()) <= height_px
    assert found.getname()[0].replace("STIXGeneral", "STIX General") == name


def test_a_missing_font_is_named_with_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    font.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda _package: None)
    with pytest.raises(PhotosMissing, match=r"DejaVuSans\.ttf comes with the package matplotlib; run: pip install"):
        font("DejaVu Sans", 30)
    font("Aileron", 30)


def test_texts_have_only_characters_that_are_in_every_font() -> None:
    rng = np.random.default_rng(0)
    texts = [text(rng, most_characters=28) for _ in range(300)]
    assert len(set(texts)) > 280
    assert all(one.isascii() and one == one.strip() and 3 <= len(one) <= 28 for one in texts)
    assert any(one.isupper() for one in texts)
    assert any("EUR" in one for one in texts)


def test_every_line_has_its_font_height_and_place() -> None:
    lines = rendered_lines(12)
    assert lines[5].picture.content == rendered_lines(12)[5].picture.content
    assert len({line.picture.content for line in lines}) == 12
    assert [line.font for line in lines[:4]] == [*FONTS, FONTS[0]]
    for line in lines:
        assert HEIGHTS_PX[0] <= line.height_px <= HEIGHTS_PX[1]
        (written,) = line.picture.written
        assert written.text == line.text
        picture = opened(line.picture.content)
        assert_within([written], picture.size)
        pixels = np.asarray(picture.convert("L"), np.float64)
        x0, y0 = written.quad[0].astype(int)
        x1, y1 = written.quad[2].astype(int)
        # Letters and their ground lie at least 105 levels apart; noise and fading leave half of that at least.
        inside = pixels[y0:y1, x0:x1]
        assert np.ptp(np.percentile(inside, [2, 98])) > 50
        assert y1 - y0 <= line.height_px + 1


def test_the_lines_of_a_turned_sign_are_where_their_ink_is() -> None:
    """A sign of one colour with black ink: what is dark after the turn lies in the turned quadrilateral."""
    ink = np.zeros((60, 200), np.uint8)
    ink[20:40, 30:170] = 255
    quad = np.array([[30, 20], [170, 20], [170, 40], [30, 40]], float)
    after, where, (line,) = turned(Image.fromarray(ink).convert("RGB"), [Written("x", quad)], 25.0)
    assert angle(line) == pytest.approx(-25.0)
    ys, xs = np.nonzero(np.asarray(after.convert("L")) > 128)
    middle = np.array([xs.mean(), ys.mean()]) + 0.5
    np.testing.assert_allclose(middle, line.quad.mean(axis=0), atol=0.6)
    assert (xs.min(), xs.max()) == pytest.approx((line.quad[:, 0].min(), line.quad[:, 0].max()), abs=2)
    assert (ys.min(), ys.max()) == pytest.approx((line.quad[:, 1].min(), line.quad[:, 1].max()), abs=2)
    assert where.size == after.size


def test_real_and_rendered_text_is_turned_by_at_most_30_degrees() -> None:
    found = pictures.turned_pictures()
    assert len(found) == len({one.name for one in found}) == 40
    assert [one.content for one in found[9:12]] == [one.content for one in pictures.turned_pictures(12)[9:]]
    real = [one for one in found if not one.written]
    assert {one.source for one in real} == {"page.png", "text.png"}
    assert len(real) == 10
    rendered = [one for one in found if one.written]
    assert len(rendered) == 30
    for one in rendered:
        assert_within(one.written, opened(one.content).size)
        assert all(abs(angle(line)) <= MOST_DEGREES for line in one.written)
    assert len({round(angle(line), 3) for one in rendered for line in one.written}) >= 30


def test_ten_lines_are_kept_like_other_photos(tmp_path: Path) -> None:
    found = pictures.ten_lines(TEN_LINES, tmp_path)
    assert len(set(found.contents)) == 20
    assert all(opened(content).size == (640, 480) for content in found.contents)
    assert {photo.size for photo in found.photos} == {TEN_LINES}
    assert pictures.ten_lines(TEN_LINES, tmp_path) == found


def test_a_sign_that_fits_nowhere_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "_TRIES", 2)
    with pytest.raises(ValueError, match="no sign of 9 lines fits 640×240 px"):
        pictures._put_signs(
            Image.new("RGB", (640, 480)), np.random.default_rng(0), lines=(9, 9), heights_px=(40, 44),
            most_characters=20, most_degrees=4,
        )  # fmt: skip


def test_a_sign_has_a_line_for_each_text() -> None:
    rng = np.random.default_rng(3)
    picture, written = sign(["one", "two", "three"], font("Aileron", 30), rng, [Image.new("RGB", (64, 48))])
    assert [line.text for line in written] == ["one", "two", "three"]
    assert_within(written, picture.size)
    tops = [line.quad[0, 1] for line in written]
    assert tops == sorted(tops)
