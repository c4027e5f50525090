"""``onestream predict`` before pipelines that find objects, or of other kinds: tables, JSON, drawn files."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from client_fakes import classification, detections
from PIL import Image, ImageOps
from predict_runs import GRAY, cells, connect_to, photo, predict
from typer.testing import Result

from onestream.client._transports.base import Tensors

CAT, CUP = ("cat", 17, 0.875, (10, 20, 110, 90)), ("[red]cup", 47, 0.5, (0, 0, 40.25, 30.5))


def answer(model: str, data: bytes) -> Tensors:
    if model == "classify":
        return classification(("espresso", 967, 0.9))
    if model == "raw":
        return {"heat": np.arange(6, dtype=np.float32).reshape(1, 2, 3), "name": np.array([[b"caf\xc3\xa9"]], object)}
    with Image.open(io.BytesIO(data)) as image:
        width, height = ImageOps.exif_transpose(image).size
    objects = () if width == height else (CAT, CUP)
    return detections(*objects, size_hw=(height, width))


@pytest.fixture(autouse=True)
def _transport(monkeypatch: pytest.MonkeyPatch) -> None:
    connect_to(monkeypatch, answer)


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    return photo(tmp_path / "in" / "wide.png")


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """The fake server finds nothing in a square."""
    return photo(tmp_path / "in" / "empty.png", (100, 100))


def run(*arguments: object, pipeline: str = "detect") -> Result:
    return predict(*arguments, "--pipeline", pipeline)


def is_drawn(file: Path) -> bool:
    """Whether anything but the one colour of ``photo`` is in the file; JPEG is allowed two levels."""
    with Image.open(file) as image:
        return bool((np.abs(np.asarray(image.convert("RGB"), np.int16) - GRAY) > 2).any())


def test_a_table_of_objects(wide: Path, empty: Path) -> None:
    result = run(wide, empty)
    assert result.exit_code == 0
    header, cat, cup, nothing = cells(result.stdout)
    assert header == ["image", "label", "score", "box", "ms"]
    assert cat[:4] == [str(wide), "cat", "0.875", "10, 20, 110, 90"]
    assert cup == ["", "[red]cup", "0.500", "0, 0, 40, 30", ""]
    assert nothing[:4] == [str(empty), "no objects", "", ""]


def test_outputs_of_other_kinds_are_listed(wide: Path) -> None:
    table = run(wide, "--draw", wide.parent.parent / "out", pipeline="raw")
    assert (table.exit_code, table.stdout) == (2, "")
    assert "'raw' finds none" in table.stderr
    table = run(wide, pipeline="raw")
    assert "float32 [1, 2, 3], from 0 to 5" in table.stdout
    assert "object [1, 1]" in table.stdout
    assert "output" in table.stdout
    fields = json.loads(run(wide, "--json", pipeline="raw").stdout)
    assert fields["path"] == str(wide)
    assert fields["tensors"] == {"heat": [[[0, 1, 2], [3, 4, 5]]], "name": [["café"]]}


def test_drawn_pictures_have_the_names_of_the_images_below_their_folder(tmp_path: Path, empty: Path) -> None:
    names = ["a/photo.jpg", "b/photo.jpg", "b/scan.bmp", "c.webp", "d.dat"]
    for name in names[:-1]:
        photo(tmp_path / "in" / name)
    photo(tmp_path / "in" / "d.dat", format="PNG")
    before = {path: path.read_bytes() for path in (tmp_path / "in").rglob("*.*")}
    result = run(tmp_path / "in", "--all", "--draw", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    drawn = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.*"))
    assert drawn == [*names[:-1], "d.dat.png", empty.name]
    assert [name for name in drawn if not is_drawn(tmp_path / "out" / name)] == [empty.name]
    assert {path: path.read_bytes() for path in before} == before
    assert "cat" in result.stdout, "the table is there, too"


def test_a_picture_is_drawn_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    run(photo(tmp_path / "turned.jpg", (100, 200), exif=exif), "--draw", tmp_path / "out")
    with Image.open(tmp_path / "out" / "turned.jpg") as image:
        assert image.size == (200, 100)
        assert 0x0112 not in image.getexif()
    assert is_drawn(tmp_path / "out" / "turned.jpg")


def test_classes_are_not_drawn(wide: Path, tmp_path: Path) -> None:
    result = run(wide, "--draw", tmp_path / "out", "--json", pipeline="classify")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--draw draws the objects or the text of a picture, and 'classify' finds none" in result.stderr
    assert list((tmp_path / "out").rglob("*")) == []


def test_no_image_is_written_over(wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = wide.read_bytes()
    (tmp_path / "link").symlink_to(wide.parent)
    monkeypatch.chdir(wide.parent)
    for folder in (".", wide.parent, tmp_path / "link"):
        result = run(wide.name, "--draw", folder)
        assert result.exit_code == 2
        assert "would write over" in result.stderr
    assert wide.read_bytes() == before


def test_a_picture_that_cannot_be_opened_again_is_an_error_of_its_own(
    wide: Path, empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise ValueError("cut off")

    monkeypatch.setattr("onestream.client.drawing.draw_quads", refused)
    result = run(wide, empty, "--draw", tmp_path / "out")
    assert result.exit_code == 1
    assert result.stdout.count("cannot be drawn on: cut off") == 2
    assert "2 of 2 images failed" in result.stderr


def test_a_folder_that_cannot_be_written_ends_the_command(wide: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    result = run(wide, "--draw", tmp_path / "out")
    assert result.exit_code == 2
    assert "wide.png cannot be written: " in result.stderr
