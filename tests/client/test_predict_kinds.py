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
def _photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They lie where the command runs."""
    connect_to(monkeypatch, answer)
    monkeypatch.chdir(tmp_path)
    sizes = {"wide": SIZE, "other": SIZE, "large": (300, 200), "empty": (100, 100), "bad": (10, 10)}
    for name, size in sizes.items():
        photo(tmp_path / f"{name}.png", size)


def run(*arguments: object, pipeline: str = "detect") -> Result:
    return predict(*arguments, "--pipeline", pipeline)


def is_drawn(file: Path) -> bool:
    """Whether anything but the one colour of ``photo`` is in the file; JPEG is allowed two levels."""
    with Image.open(file) as image:
        return bool((np.abs(np.asarray(image.convert("RGB"), np.int16) - GRAY) > 2).any())


@pytest.mark.parametrize(
    ("pipeline", "one", "other", "nothing"),
    [
        ("detect", ("cat", "0.875"), ("[red]cup", "0.500"), "no objects"),
        ("sort", ("espresso (detect: cup 0.88)", "0.625"), ("café (detect: table 0.88)", "0.625"), "nothing"),
    ],
)
def test_objects_and_regions_are_a_table_with_what_each_stage_said(
    pipeline: str, one: tuple[str, str], other: tuple[str, str], nothing: str
) -> None:
    result = run("wide.png", "empty.png", pipeline=pipeline)
    assert result.exit_code == 0
    header, first, second, empty = cells(result.stdout)
    assert header == ["image", "label", "score", "box", "ms"]
    assert first[:4] == ["wide.png", *one, "10, 20, 110, 90"]
    assert second == ["", *other, "0, 0, 40, 30", ""]
    assert empty[:4] == ["empty.png", nothing, "", ""]


def test_regions_without_a_name_and_outputs_of_other_kinds_are_listed() -> None:
    shown = run("wide.png", pipeline="turned").stdout
    for text in ("region (turn: 90)", "10,20 110,20 110,90 10,90", "quad"):
        assert text in shown
    shown = run("wide.png", pipeline="raw").stdout
    for text in ("float32 [1, 2, 3], from 0 to 5", "object [1, 1]", "output"):
        assert text in shown
    fields = json.loads(run("wide.png", "--json", pipeline="raw").stdout)
    assert fields["path"] == "wide.png"
    assert fields["tensors"] == {"heat": [[[0, 1, 2], [3, 4, 5]]], "name": [["café"]]}


TEXT = "EXIT\u3000→\n?[31m[red]?Raum 7\n"
"""What could command the terminal is not printed."""
LEFT_OUT = (
    "more were found and left out: the regions of a picture are bounded in number, by the pipeline's "
    "limits.max_regions and max_lines, and in pixels"
)
BAD = "bad.png: bad image (corrupt): as ordered\n"


@pytest.mark.parametrize(
    ("images", "code", "out", "err"),
    [
        # Of one photo just its lines are printed, of several the path comes first.
        (["wide"], 0, TEXT, ""),
        (["wide", "empty", "other"], 0, f"wide.png\n{TEXT}\nempty.png\n\nother.png\n{TEXT}", "empty.png: no text\n"),
        (["wide", "bad"], 1, f"wide.png\n{TEXT}", f"{BAD}1 of 2 images failed"),
        (["bad", "wide"], 1, f"wide.png\n{TEXT}", f"{BAD}1 of 2 images failed"),
        (["empty"], 0, "", "empty.png: no text\n"),
        (["large"], 0, TEXT, f"large.png: 12 {LEFT_OUT}\n"),
    ],
)
def test_text_is_printed_as_it_is(images: list[str], code: int, out: str, err: str) -> None:
    result = run(*(f"{name}.png" for name in images), pipeline="read")
    assert (result.exit_code, result.stdout) == (code, out)
    assert result.stderr.startswith(err) if code else result.stderr == err


def test_regions_that_were_left_out_are_counted() -> None:
    assert run("large.png", pipeline="sort").stderr == f"large.png: 7 {LEFT_OUT}\n"


def test_drawn_pictures_have_the_names_of_the_images_below_their_folder(tmp_path: Path) -> None:
    names = ["a/photo.jpg", "b/photo.jpg", "b/scan.bmp", "c.webp", "d.dat"]
    for name in names[:-1]:
        photo(tmp_path / "in" / name)
    photo(tmp_path / "in" / "d.dat", format="PNG")
    photo(tmp_path / "in" / "empty.png", (100, 100))
    before = {path: path.read_bytes() for path in (tmp_path / "in").rglob("*.*")}
    result = run("in", "--all", "--draw", "out")
    assert result.exit_code == 0, result.stderr
    drawn = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.*"))
    assert drawn == [*names[:-1], "d.dat.png", "empty.png"]
    assert [name for name in drawn if not is_drawn(tmp_path / "out" / name)] == ["empty.png"]
    assert {path: path.read_bytes() for path in before} == before
    assert "cat" in result.stdout, "the table is there, too"


@pytest.mark.parametrize("pipeline", ["read", "sort", "turned"])
def test_text_and_regions_are_drawn(tmp_path: Path, pipeline: str) -> None:
    result = run("wide.png", "empty.png", "--draw", "out", pipeline=pipeline)
    assert result.exit_code == 0
    with Image.open(tmp_path / "out" / "wide.png") as drawn:
        assert drawn.size == SIZE
    assert is_drawn(tmp_path / "out" / "wide.png")
    with Image.open(tmp_path / "out" / "empty.png") as drawn:
        assert drawn.getcolors() == [(100 * 100, (GRAY, GRAY, GRAY))]


def test_what_cannot_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No image is written over, a folder may be a file, a network may find nothing with a place, and files change."""
    before = (tmp_path / "wide.png").read_bytes()
    (tmp_path / "link").symlink_to(tmp_path)
    for folder, pipeline, said in (
        *((folder, "detect", "would write over") for folder in (".", tmp_path, "link")),
        ("other.png", "detect", "wide.png cannot be written: "),
        ("out", "raw", "'raw' finds none"),
    ):
        result = run("wide.png", "--draw", folder, pipeline=pipeline)
        assert result.exit_code == 2
        assert said in result.stderr
    assert (tmp_path / "wide.png").read_bytes() == before

    def refused(*_: object, **__: object) -> None:
        raise ValueError("cut off")

    monkeypatch.setattr("onestream.client.kinds.drawing.draw_quads", refused)
    result = run("wide.png", "empty.png", "--draw", "out")
    assert result.exit_code == 1
    assert result.stderr.count("cannot be drawn on: cut off") == 2
    assert "2 of 2 images failed" in result.stderr
