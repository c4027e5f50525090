"""``onestream predict`` before cascades: the text of photos, tables of regions, JSON, drawn files."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from client_fakes import reading, sorted_objects
from PIL import Image
from predict_runs import GRAY, SIZE, cells, connect_to, photo, predict
from typer.testing import Result

from onestream.client import BadImage
from onestream.client._transports.base import Tensors

SIGN = ((20, 30), (120, 50), (115, 70), (15, 50))
LINES = ("EXIT\u3000→", 0.875, SIGN), ("\x1b[31m[red]\nRaum 7", 0.5, ((0, 0), (9, 0), (9, 9.5), (0, 9.5)))


def answer(model: str, data: bytes) -> Tensors:
    with Image.open(io.BytesIO(data)) as image:
        width, height = image.size
    if width < 50:
        raise BadImage("corrupt", "as ordered")
    size_hw = height, width
    lines = LINES if width > height else ()
    if model == "read":
        return reading(*lines, size_hw=size_hw, left_out=12 if height > 100 else 0)
    objects = [("cup", "espresso", (10, 20, 110, 90)), ("table", "café", (0, 0, 40.25, 30.5))]
    found = sorted_objects(*objects[: len(lines)], size_hw=size_hw, left_out=7)
    if model == "sort":
        return found
    corners = found.pop("boxes")[:, :, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(1, -1, 4, 2)
    last = {name: found[name] for name in ("image_size", "left_out")}
    return {**last, "quads": corners, "turn_degrees": np.full(corners.shape[:2], 90, np.int32)}


@pytest.fixture(autouse=True)
def _transport(monkeypatch: pytest.MonkeyPatch) -> None:
    connect_to(monkeypatch, answer)


@pytest.fixture
def sign(tmp_path: Path) -> Path:
    return photo(tmp_path / "sign.png")


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """The fake server finds nothing in a square."""
    return photo(tmp_path / "empty.png", (100, 100))


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    return photo(tmp_path / "bad.png", (10, 10))


def run(*arguments: object, pipeline: str = "read") -> Result:
    return predict(*arguments, "--pipeline", pipeline)


TEXT = "EXIT\u3000→\n?[31m[red]?Raum 7\n"
"""What could command the terminal is not printed."""


def test_of_one_photo_just_its_lines_are_printed(sign: Path) -> None:
    result = run(sign)
    assert (result.exit_code, result.stdout, result.stderr) == (0, TEXT, "")


def test_of_several_photos_the_path_comes_first(sign: Path, empty: Path, bad: Path) -> None:
    other = photo(sign.with_name("other.png"))
    result = run(sign, bad, empty, other)
    assert result.exit_code == 1
    assert result.stdout == f"{sign}\n{TEXT}\n{empty}\n\n{other}\n{TEXT}"
    failed, nothing, summary = result.stderr.splitlines()
    assert failed == f"{bad}: bad image (corrupt): as ordered"
    assert nothing == f"{empty}: no text"
    assert "1 of 4 images failed" in summary


def test_a_photo_that_fails_before_the_first_text(sign: Path, bad: Path) -> None:
    result = run(bad, sign)
    assert result.exit_code == 1
    assert result.stdout == f"{sign}\n{TEXT}"
    assert f"{bad}: bad image" in result.stderr


def test_a_photo_without_text_prints_none(empty: Path) -> None:
    result = run(empty)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"{empty}: no text\n")


def test_what_was_left_out_is_said(tmp_path: Path) -> None:
    large = photo(tmp_path / "large.png", (300, 200))
    said = (
        "more were found and left out: the regions of a picture are bounded in number, by the pipeline's "
        "limits.max_regions, and in pixels"
    )
    result = run(large)
    assert (result.stdout, result.stderr) == (TEXT, f"{large}: 12 {said}\n")
    assert run(large, pipeline="sort").stderr == f"{large}: 7 {said}\n"


def test_regions_are_a_table_with_what_each_stage_said(sign: Path, empty: Path) -> None:
    result = run(sign, empty, pipeline="sort")
    assert result.exit_code == 0
    header, cup, table, nothing = cells(result.stdout)
    assert header == ["image", "label", "score", "box", "ms"]
    assert cup[:4] == [str(sign), "espresso (detect: cup 0.88)", "0.625", "10, 20, 110, 90"]
    assert table == ["", "café (detect: table 0.88)", "0.625", "0, 0, 40, 30", ""]
    assert nothing[:4] == [str(empty), "nothing", "", ""]


def test_regions_without_a_name_are_listed(sign: Path) -> None:
    result = run(sign, pipeline="turned")
    assert "region (turn: 90)" in result.stdout
    assert "10,20 110,20 110,90 10,90" in result.stdout
    assert "quad" in result.stdout


@pytest.mark.parametrize("pipeline", ["read", "sort", "turned"])
def test_text_and_regions_are_drawn(sign: Path, empty: Path, tmp_path: Path, pipeline: str) -> None:
    result = run(sign, empty, "--draw", tmp_path / "out", pipeline=pipeline)
    assert result.exit_code == 0
    with Image.open(tmp_path / "out" / "sign.png") as drawn:
        assert drawn.size == SIZE
        assert len(drawn.getcolors(1 << 16) or ()) > 1
    with Image.open(tmp_path / "out" / "empty.png") as drawn:
        assert drawn.getcolors() == [(100 * 100, (GRAY, GRAY, GRAY))]
