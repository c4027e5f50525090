"""The pictures that are sent and read are the same on every run."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.photos import make_photos, photo_set
from benchmarks.reading import pictures
from benchmarks.reading.pictures import HEIGHTS_PX, TextPicture, rendered_lines, turned_pictures


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    """Two small pictures with detail."""
    rng = np.random.default_rng(0)
    paths = []
    for name, (width, height) in (("wide.png", (320, 200)), ("tall.png", (200, 300))):
        coarse = Image.fromarray(rng.integers(0, 256, (height // 10, width // 10, 3), dtype=np.uint8))
        coarse.resize((width, height)).save(tmp_path / name)
        paths.append(tmp_path / name)
    return paths


def test_a_changed_or_missing_file_is_made_again(tmp_path: Path, sources: list[Path]) -> None:
    folder = tmp_path / "set"
    expected = photo_set("500x375", folder=folder, sources=sources)
    (folder / "500x375" / expected.photos[0].name).write_bytes(b"damaged")
    (folder / "500x375" / expected.photos[1].name).unlink()
    assert photo_set("500x375", folder=folder, sources=sources) == expected


def test_many_photos_are_different_and_always_the_same(sources: list[Path]) -> None:
    made = make_photos("500x375", 7, sources=sources, seed=1, threads=2)
    assert len(set(made)) == 7
    assert {Image.open(io.BytesIO(one)).size for one in made} == {(500, 375)}
    assert make_photos("500x375", 7, sources=sources, seed=1, threads=1) == made
    assert not set(make_photos("500x375", 7, sources=sources, seed=2, threads=2)) & set(made)


def test_text_is_always_the_same_and_lies_where_its_truth_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "_PRINTED", {})
    lines = rendered_lines(3)
    signs = turned_pictures(1)
    again: list[TextPicture] = [*(line.picture for line in rendered_lines(3)), *turned_pictures(1)]
    every = [*(line.picture for line in lines), *signs]
    assert [one.content for one in every] == [one.content for one in again]
    assert all(HEIGHTS_PX[0] <= line.height_px <= HEIGHTS_PX[1] for line in lines)
    assert [line.picture.written[0].text for line in lines] == [line.text for line in lines]
    for one in every:
        # Half a pixel, since a turned picture is as large as whole pixels hold.
        limit = np.array(Image.open(io.BytesIO(one.content)).size) + 0.5
        assert one.written
        assert all((line.quad >= -0.5).all() and (line.quad <= limit).all() for line in one.written)
