"""Names and errors as commands print them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from onestream.cli.messages import short_path, without_name
from onestream.client import BadImage, UnreadableInput
from onestream.client.video import source_of


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("photos/cat.jpg", "photos/cat.jpg"),
        ("/data/holidays/2024/beach/cat.jpg", "…/2024/beach/cat.jpg"),
        ("/data/a-name-that-is-longer-than-that.jpg", "…/a-name-that-is-longer-than-that.jpg"),
    ],
)
def test_a_path_loses_whole_folders_from_its_beginning(path: str, shown: str) -> None:
    assert short_path(path, Console(file=io.StringIO(), width=40)).plain == shown


@given(st.lists(st.text("abc/é漢", min_size=1, max_size=12), min_size=1, max_size=8).map("/".join))
def test_the_end_of_a_path_stays(path: str) -> None:
    shown = short_path(path, Console(file=io.StringIO(), width=40)).plain
    assert path.endswith(shown.removeprefix("…/"))
    assert cell_len(shown) <= max(20, cell_len("…/" + path.rpartition("/")[2]))


def test_a_name_stands_once() -> None:
    error = UnreadableInput("the image cannot be read: No such file or directory", name="cat.jpg")
    assert f"cat.jpg: {without_name(error)}" == str(error)
    assert without_name(BadImage("empty", "no bytes")) == "bad image (empty): no bytes"


def test_a_video_s_name_stands_once_too(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.mp4")
    with pytest.raises(UnreadableInput) as failed:
        source_of(missing).connect()
    assert str(failed.value) == f"{missing}: the video cannot be opened: No such file or directory"
    assert without_name(failed.value) == "the video cannot be opened: No such file or directory"
