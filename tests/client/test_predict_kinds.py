"""``onestream predict`` before pipelines of other kinds than classification: tables, texts, JSON, drawn files."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from client_fakes import classification, detections, reading, sorted_objects
from PIL import Image, ImageOps
from predict_runs import GRAY, SIZE, cells, connect_to, photo, predict
from typer.testing import Result

from onestream.client import BadImage, Tensors

CAT, CUP = ("cat", 17, 0.875, (10, 20, 110, 90)), ("[red]cup", 47, 0.5, (0, 0, 40.25, 30.5))
SIGN = ((20, 30), (120, 50), (115, 70), (15, 50))
LINES = ("EXIT\u3000→", 0.875, SIGN), ("\x1b[31m[red]\nRaum 7", 0.5, ((0, 0), (9, 0), (9, 9.5), (0, 9.5)))
SORTED = ("cup", "espresso", (10, 20, 110, 90)), ("table", "café", (0, 0, 40.25, 30.5))


def answer(model: str, data: bytes) -> Tensors:
    """Of two objects or lines in a wide picture, and of none in a square."""
    if model == "classify":
        return classification(("espresso", 967, 0.9))
    if model == "raw":
        return {"heat": np.arange(6, dtype=np.float32).reshape(1, 2, 3), "name": np.array([[b"caf\xc3\xa9"]], object)}
    with Image.open(io.BytesIO(data)) as image:
        width, height = ImageOps.exif_transpose(image).size
    if width < 50:
        raise BadImage("corrupt", "as ordered")
    size_hw, count = (height, width), 2 if width > height else 0
    if model == "detect":
        return detections(*(CAT, CUP)[:count], size_hw=size_hw)
    if model == "read":
        return reading(*LINES[:count], size_hw=size_hw, left_out=12 if height > 100 else 0)
    found = sorted_objects(*SORTED[:count], size_hw=size_hw, left_out=7)
    if model == "sort":
        return found
    corners = found.pop("boxes")[:, :, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(1, -1, 4, 2)
    last = {name: found[name] for name in ("image_size", "left_out")}
    return {**last, "quads": corners, "turn_degrees": np.full(corners.shape[:2], 90, np.int32)}


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


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    return photo(tmp_path / "in" / "bad.png", (10, 10))


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

    monkeypatch.setattr("onestream.client.kinds.drawing.draw_quads", refused)
    result = run(wide, empty, "--draw", tmp_path / "out")
    assert result.exit_code == 1
    assert result.stderr.count("cannot be drawn on: cut off") == 2
    assert "2 of 2 images failed" in result.stderr


def test_a_folder_that_cannot_be_written_ends_the_command(wide: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    result = run(wide, "--draw", tmp_path / "out")
    assert result.exit_code == 2
    assert "wide.png cannot be written: " in result.stderr


# ---- text and regions ------------------------------------------------------------------------------------------------

TEXT = "EXIT\u3000→\n?[31m[red]?Raum 7\n"
"""What could command the terminal is not printed."""


def test_of_one_photo_just_its_lines_are_printed(wide: Path) -> None:
    result = run(wide, pipeline="read")
    assert (result.exit_code, result.stdout, result.stderr) == (0, TEXT, "")


def test_of_several_photos_the_path_comes_first(wide: Path, empty: Path, bad: Path) -> None:
    other = photo(wide.with_name("other.png"))
    result = run(wide, bad, empty, other, pipeline="read")
    assert result.exit_code == 1
    assert result.stdout == f"{wide}\n{TEXT}\n{empty}\n\n{other}\n{TEXT}"
    failed, nothing, summary = result.stderr.splitlines()
    assert failed == f"{bad}: bad image (corrupt): as ordered"
    assert nothing == f"{empty}: no text"
    assert "1 of 4 images failed" in summary


def test_a_photo_that_fails_before_the_first_text(wide: Path, bad: Path) -> None:
    result = run(bad, wide, pipeline="read")
    assert result.exit_code == 1
    assert result.stdout == f"{wide}\n{TEXT}"
    assert f"{bad}: bad image" in result.stderr


def test_a_photo_without_text_prints_none(empty: Path) -> None:
    result = run(empty, pipeline="read")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"{empty}: no text\n")


def test_what_was_left_out_is_said(tmp_path: Path) -> None:
    large = photo(tmp_path / "large.png", (300, 200))
    said = (
        "more were found and left out: the regions of a picture are bounded in number, by the pipeline's "
        "limits.max_regions and max_lines, and in pixels"
    )
    result = run(large, pipeline="read")
    assert (result.stdout, result.stderr) == (TEXT, f"{large}: 12 {said}\n")
    assert run(large, pipeline="sort").stderr == f"{large}: 7 {said}\n"


def test_regions_are_a_table_with_what_each_stage_said(wide: Path, empty: Path) -> None:
    result = run(wide, empty, pipeline="sort")
    assert result.exit_code == 0
    header, cup, table, nothing = cells(result.stdout)
    assert header == ["image", "label", "score", "box", "ms"]
    assert cup[:4] == [str(wide), "espresso (detect: cup 0.88)", "0.625", "10, 20, 110, 90"]
    assert table == ["", "café (detect: table 0.88)", "0.625", "0, 0, 40, 30", ""]
    assert nothing[:4] == [str(empty), "nothing", "", ""]


def test_regions_without_a_name_are_listed(wide: Path) -> None:
    result = run(wide, pipeline="turned")
    assert "region (turn: 90)" in result.stdout
    assert "10,20 110,20 110,90 10,90" in result.stdout
    assert "quad" in result.stdout


@pytest.mark.parametrize("pipeline", ["read", "sort", "turned"])
def test_text_and_regions_are_drawn(wide: Path, empty: Path, tmp_path: Path, pipeline: str) -> None:
    result = run(wide, empty, "--draw", tmp_path / "out", pipeline=pipeline)
    assert result.exit_code == 0
    with Image.open(tmp_path / "out" / "wide.png") as drawn:
        assert drawn.size == SIZE
        assert len(drawn.getcolors(1 << 16) or ()) > 1
    with Image.open(tmp_path / "out" / "empty.png") as drawn:
        assert drawn.getcolors() == [(100 * 100, (GRAY, GRAY, GRAY))]
