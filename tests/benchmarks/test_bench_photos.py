"""The photo set is the same on every run."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.photos import SIZES, Size, photo_set


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


@pytest.mark.parametrize("size", SIZES)
def test_every_photo_is_another_jpeg_of_the_size(tmp_path: Path, sources: list[Path], size: Size) -> None:
    found = photo_set(size, folder=tmp_path / "set", sources=sources)
    assert len(found.photos) == len(set(found.contents)) == 4
    for photo, content in zip(found.photos, found.contents, strict=True):
        image = Image.open(io.BytesIO(content))
        assert (image.format, f"{image.width}x{image.height}") == ("JPEG", size)
        assert photo.bytes == len(content)


def test_it_is_made_anew_with_the_same_bytes(tmp_path: Path, sources: list[Path]) -> None:
    one = photo_set("1920x1080", folder=tmp_path / "one", sources=sources)
    assert photo_set("1920x1080", folder=tmp_path / "other", sources=sources).contents == one.contents


def test_a_changed_or_missing_file_is_made_again(tmp_path: Path, sources: list[Path]) -> None:
    folder = tmp_path / "set"
    expected = photo_set("500x375", folder=folder, sources=sources)
    (folder / "500x375" / expected.photos[0].name).write_bytes(b"damaged")
    (folder / "500x375" / expected.photos[1].name).unlink()
    assert photo_set("500x375", folder=folder, sources=sources) == expected


def test_perf_analyzer_is_given_every_photo_once(tmp_path: Path, sources: list[Path]) -> None:
    found = photo_set("500x375", folder=tmp_path / "set", sources=sources)
    data = json.loads(found.perf_analyzer_input.read_text())["data"]
    given = [base64.b64decode(entry["image"]["content"]["b64"]) for entry in data]
    assert given == list(found.contents)
    assert [entry["image"]["shape"] for entry in data] == [[len(content)] for content in found.contents]
