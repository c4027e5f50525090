"""Lines of text: two formats give one value, and what is wrong in a file is said in one line."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from image_sets import assert_one_bad
from text_sets import Page, pages, tilted, write_icdar, write_json_lines

from onestream.preprocess import BadDataset, BadSample, Limits
from onestream.preprocess.training import Characters, TextFiles, read_icdar, read_text_lines
from onestream.preprocess.training.text.characters import check_columns

PAGES = pages(7)
ONE = Page("a.png", (100, 200), ())


def test_both_formats_give_the_same_value(tmp_path: Path) -> None:
    texts, photos = write_icdar(tmp_path / "icdar", PAGES)
    for files in (read_text_lines(write_json_lines(tmp_path / "json", PAGES)), read_icdar(texts, images=photos)):
        files.refuse_bad()
        expected = [(page, corners, text) for page in PAGES for corners, text in page.lines]
        assert len(files) == len(expected)
        for line, (page, corners, text) in zip(files.samples, expected, strict=True):
            assert (line.path.name, line.size_hw, line.text) == (page.name, page.size_hw, text)
            assert line.quad.dtype == np.float32
            np.testing.assert_array_equal(line.quad, np.array(corners))


def listed(folder: Path, *lines: object, path: str = "a.png") -> TextFiles:
    """The lines of a picture of 200x100, as a list of JSON lines gives them."""
    ONE.save(folder)
    (folder / "lines.jsonl").write_text(json.dumps({"path": path, "lines": lines}), encoding="utf-8")
    return read_text_lines(folder / "lines.jsonl")


def quad(*numbers: Any, text: str = "x") -> dict[str, Any]:
    return {"quad": [[numbers[n], numbers[n + 1]] for n in range(0, 8, 2)], "text": text}


GOOD = quad(10, 10, 50, 10, 50, 20, 10, 20)


def test_a_box_is_the_quad_of_its_corners_and_what_lies_a_pixel_outside_is_moved_in(tmp_path: Path) -> None:
    lines = {"box": [10, 10, 50, 20], "text": "x", "language": "en"}, GOOD, quad(-1, -0.5, 201, 0, 200.5, 101, 0, 100)
    box, same, outside = listed(tmp_path, *lines).samples
    for line in (box, same):
        np.testing.assert_array_equal(line.quad, [[10, 10], [50, 10], [50, 20], [10, 20]])
    np.testing.assert_array_equal(outside.quad, [[0, 0], [200, 0], [200, 100], [0, 100]])


def test_a_text_may_hold_any_character_but_a_line_feed(tmp_path: Path) -> None:
    text = "a,b\u2028c\x0bd\u0085e 中"
    assert listed(tmp_path, {**GOOD, "text": text}).samples[0].text == text
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "gt_a.txt").write_text(f"10,10,50,10,50,20,10,20,{text}\n\n", encoding="utf-8")
    files = read_icdar(tmp_path / "texts", images=tmp_path)
    assert [line.text for line in files.samples] == [text]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({**GOOD, "text": ""}, "the text is empty; leave out a line whose text is not known"),
        ({**GOOD, "text": " "}, "the text is empty"),
        ({"text": "x"}, "expected either quad or box, got neither"),
        ({**GOOD, "box": [1, 2, 3, 4]}, "expected either quad or box, got both"),
        (quad(10, 10, 202, 10, 202, 20, 10, 20), r"10 10, 202 10, .* are outside the picture of 200x100; they may lie"),
        (quad(-2, 10, 50, 10, 50, 20, 10, 20), r"= -2 10, 50 10, .* are outside the picture of 200x100"),
        (quad(float("nan"), 10, 50, 10, 50, 20, 10, 20), r"= nan 10, .* are not finite; expected eight numbers in"),
        (quad(1e300, 10, 50, 10, 50, 20, 10, 20), r"are not finite"),
        (quad(50, 10, 10, 10, 10, 20, 50, 20), r"not those of a convex area, clockwise from the top left corner of"),
        (quad(10, 10, 50, 10, 10, 20, 50, 20), r"not those of a convex area"),
        (quad(10, 10, 50, 10, 50, 20, 49, 11), r"not those of a convex area"),
        (quad(10, 10, 10, 10, 50, 20, 10, 20), r"not those of a convex area"),
        (quad(-1, 10, 0, 10, 0, 20, -1, 20), r"not those of a convex area"),
    ],
)
def test_a_bad_line_is_one_line(tmp_path: Path, line: dict[str, Any], message: str) -> None:
    assert_one_bad(listed(tmp_path, GOOD, line), rf"a\.png: lines\.jsonl line 1, text 2: .*{message}")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("none.png", "there is no such picture"),
        ("../a.png", r"names the picture '\.\./a\.png'; expected a path within"),
        ("text.png", "got text"),
        ("empty.png", "got 0 bytes"),
    ],
)
def test_a_bad_picture_is_one_line(tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "text.png").write_text("no picture")
    (tmp_path / "empty.png").touch()
    assert_one_bad(listed(tmp_path, GOOD, path=path), message)


def test_limits_judge_the_headers(tmp_path: Path) -> None:
    write_json_lines(tmp_path, PAGES)
    files = read_text_lines(tmp_path / "lines.jsonl", limits=Limits(max_pixels=100))
    message = r"18 of 18 lines of text cannot be used:\n(.*at most 100 .*\n){10}  and 8 more"
    with pytest.raises(BadSample, match=message):
        files.refuse_bad()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"path": "a.png", "lines": []}\n{"path": 3}', r"lines\.jsonl line 2: path: Input should be a valid string"),
        ('{"path": "a.png"}', r"line 1: lines: Field required"),
        ('{"path": "a.png", "lines": [{"text": "x", "quad": [[1, 2], [3, 4]]}]}', r"line 1: lines\.0\.quad"),
        ("{", "line 1: Invalid JSON"),
        ("[]", "line 1: Input should be an object"),
        ("\xff", "line 1: Invalid JSON"),
        ("[" * 100_000, "line 1: Invalid JSON"),
        ("", "got no line of text"),
        ('{"path": "a.png", "lines": []}', "got no line of text"),
    ],
)
def test_a_malformed_list_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "lines.jsonl").write_text(content, encoding="latin-1")
    with pytest.raises(BadDataset, match=message) as raised:
        read_text_lines(tmp_path / "lines.jsonl")
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadDataset, match=r"none\.jsonl: none\.jsonl cannot be read: No such file"):
        read_text_lines(tmp_path / "none.jsonl")
    with pytest.raises(BadDataset, match=r"none is not a folder; expected that of the pictures of lines\.jsonl"):
        read_text_lines(tmp_path / "lines.jsonl", images=tmp_path / "none")
    with pytest.raises(BadDataset, match=r"none is not a folder; expected that of the text files"):
        read_icdar(tmp_path / "none", images=tmp_path)
    with pytest.raises(BadDataset, match=r"none is not a folder; expected that of the pictures"):
        read_icdar(tmp_path, images=tmp_path / "none")
    with pytest.raises(BadDataset, match=r"no text file in .*; expected gt_NAME\.txt for each picture NAME"):
        read_icdar(tmp_path, images=tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"10,10,50,10,50,20,10,20,caf\xe9\n", r": the file is not UTF-8: byte 27 is 0xe9; a file in Latin-1"),
        (b"10,10,50,10,50,20,10,x\n", r" line 1: expected x1,y1,x2,y2,x3,y3,x4,y4,text, got '10,10,50,10,50"),
        (b"###\n", r"line 1: expected x1,y1"),
        (b"10,10,50,10,50,20,10,twenty,x\n", r"line 1: expected x1,y1"),
        (b"\n10,10,50,10,50,20,10,20,\n", r"line 2: the text is empty"),
        (b"10,10,50,10,50,20,10,2000,x\n", r"line 1: the corners .* are outside the picture of 200x100"),
        (b"inf,10,50,10,50,20,10,20,x\n", r"line 1: the corners .* are not finite"),
    ],
)
def test_a_bad_file_of_icdar_is_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    ONE.save(tmp_path)
    (tmp_path / "gt_a.txt").write_bytes(content)
    assert_one_bad(read_icdar(tmp_path, images=tmp_path), rf"^.*a\.png: gt_a\.txt.*{message}")
    (tmp_path / "gt_a.txt").rename(tmp_path / "gt_img_7.txt")
    (tmp_path / "gt_img_7.txt").write_bytes(b"10,10,50,10,50,20,10,20,x\n")
    assert_one_bad(read_icdar(tmp_path, images=tmp_path), r"img_7: gt_img_7\.txt line 1: there is no such picture")


NUMBERS = st.floats(-5, 210) | st.integers(-2, 203) | st.floats()


def assert_sound(files: TextFiles) -> None:
    for line in files.samples:
        assert "\n" not in line.problem
        if not line.problem:
            assert line.text.strip()
            assert ((line.quad >= 0) & (line.quad <= [200, 100])).all()
            x, y = line.quad.astype(np.float64).T
            assert (x * np.roll(y, -1) - y * np.roll(x, -1)).sum() > 0


@given(st.lists(NUMBERS, min_size=8, max_size=8), st.floats(-180, 180), st.floats(2, 60), st.floats(2, 30))
def test_any_numbers_are_a_line_or_a_problem_and_any_angle_is_none(
    tmp_path_factory: Any, numbers: list[float], degrees: float, width: float, height: float
) -> None:
    turned = quad(*(value for corner in tilted(100, 50, width, height, degrees) for value in corner))
    files = listed(tmp_path_factory.getbasetemp() / "any_numbers", quad(*numbers), turned)
    assert_sound(files)
    assert files.samples[1].problem == ""


FIELDS = st.lists(NUMBERS.map(str) | st.text(max_size=3), max_size=12).map(",".join)


@given(st.binary(max_size=80) | st.lists(FIELDS).map(lambda lines: "\n".join(lines).encode("utf-8", "surrogatepass")))
def test_any_bytes_are_lines_or_problems(tmp_path_factory: Any, content: bytes) -> None:
    folder = tmp_path_factory.getbasetemp() / "any_bytes"
    ONE.save(folder)
    (folder / "gt_a.txt").write_bytes(content)
    with suppress(BadDataset):  # no line at all
        assert_sound(read_icdar(folder, images=folder))


def test_characters_are_numbered_after_the_blank(tmp_path: Path) -> None:
    path = tmp_path / "characters.txt"
    path.write_bytes("\ufeffa\r\n\u2028\r\n \r\né\r\n".encode())
    for source in (path, str(path), ["a", "\u2028", " ", "é"]):
        characters = Characters(source)
        assert len(characters) == 5
        assert characters.classes_of("é a\u2028") == [4, 3, 1, 2]
    with pytest.raises(BadSample, match=r"character 2 of the text 'ab' is 'b' \(U\+0062\), which is none of the 4 cha"):
        characters.classes_of("ab")
    with pytest.raises(BadDataset, match=r"none\.txt cannot be read as a list of characters: none\.txt cannot"):
        Characters(tmp_path / "none.txt")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\nbc\n", r"c\.txt: entry 2 is 'bc'; expected one character"),
        ("a\n\nb\n", r"c\.txt: entry 2 is ''; expected one character"),
        ("", r"c\.txt: entry 1 is ''"),
        ("a\nb\na\n", r"c\.txt: entries 1 and 3 are both 'a'"),
        ("\xe9", r"c\.txt cannot be read as a list of characters: .* can't decode byte 0xe9"),
    ],
)
def test_a_malformed_file_of_characters_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "c.txt").write_text(content, encoding="latin-1")
    with pytest.raises(BadDataset, match=message):
        Characters(tmp_path / "c.txt")


@pytest.mark.parametrize(
    ("text", "needed", "message"),
    [
        ("abc", 3, r"'abc' is too long: CTC needs 3 columns for its characters; the network gives 2 for this line"),
        ("aab", 4, r"'aab' is too long: CTC needs 3 columns for its characters and 1 for blanks between equal ones; "),
        ("aaaa", 7, "CTC needs 4 columns for its characters and 3 for blanks"),
        ("a" * 100, 199, rf"'{'a' * 40}…' is too long: CTC needs 100 columns"),
    ],
)
def test_a_text_must_fit_the_columns(text: str, needed: int, message: str) -> None:
    check_columns(text, needed)
    with pytest.raises(BadSample, match=message):
        check_columns(text, needed - 1)
