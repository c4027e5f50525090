"""Label files as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from onestream.postprocess.labels import read_labels


@pytest.mark.parametrize(
    ("content", "labels"),
    [
        ("tench\ngoldfish\n", ["tench", "goldfish"]),
        ("tench\ngoldfish", ["tench", "goldfish"]),
        ("tench\r\ngoldfish\r\n", ["tench", "goldfish"]),
        ("\ufefftench\n", ["tench"]),
        ("great white shark, white shark\nœuf\n鯉\n", ["great white shark, white shark", "œuf", "鯉"]),
        ("one\u2028line\nnext\n", ["one\u2028line", "next"]),
    ],
)
def test_one_name_a_line(tmp_path: Path, content: str, labels: list[str]) -> None:
    path = tmp_path / "labels.txt"
    path.write_bytes(content.encode())
    assert read_labels(path) == labels


@pytest.mark.parametrize(("content", "line"), [("a\n\nb\n", 2), ("a\n  \n", 2), ("", 1), ("a\n\n", 2)])
def test_a_class_without_a_name_is_refused(tmp_path: Path, content: str, line: int) -> None:
    path = tmp_path / "labels.txt"
    path.write_text(content)
    with pytest.raises(ValueError, match=rf"labels\.txt line {line} is empty"):
        read_labels(path)


def test_of_characters_a_space_is_one(tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    path.write_text("a\n\u3000\n \n", encoding="utf-8")
    assert read_labels(path, spaces=True) == ["a", "\u3000", " "]
    path.write_text("a\n\n \n")
    with pytest.raises(ValueError, match=r"line 2 is empty"):
        read_labels(path, spaces=True)


def test_another_encoding_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    path.write_bytes("œuf".encode("utf-16"))
    with pytest.raises(ValueError, match=r"labels\.txt is not UTF-8: byte 0"):
        read_labels(path)
