"""Names, errors and what was measured, as commands print them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from onestream.cli.bench.command import streams_table
from onestream.cli.messages import short_path, without_name
from onestream.client import BadImage, UnreadableInput
from onestream.client.video import source_of


def test_a_path_loses_whole_folders_from_its_beginning() -> None:
    for path, shown in (
        ("photos/cat.jpg", "photos/cat.jpg"),
        ("/data/holidays/2024/beach/cat.jpg", "…/2024/beach/cat.jpg"),
        ("/data/a-name-that-is-longer-than-that.jpg", "…/a-name-that-is-longer-than-that.jpg"),
    ):
        assert short_path(path, Console(file=io.StringIO(), width=40)).plain == shown


@given(st.lists(st.text("abc/é漢", min_size=1, max_size=12), min_size=1, max_size=8).map("/".join))
def test_the_end_of_a_path_stays(path: str) -> None:
    shown = short_path(path, Console(file=io.StringIO(), width=40)).plain
    assert path.endswith(shown.removeprefix("…/"))
    assert cell_len(shown) <= max(20, cell_len("…/" + path.rpartition("/")[2]))


def test_a_name_stands_once(tmp_path: Path) -> None:
    assert without_name(BadImage("empty", "no bytes")) == "bad image (empty): no bytes"
    reason = "the image cannot be read: No such file or directory"
    assert without_name(UnreadableInput(reason, name="cat.jpg")) == reason
    with pytest.raises(UnreadableInput) as failed:
        source_of(str(tmp_path / "none.mp4")).connect()
    assert without_name(failed.value) == "the video cannot be opened: No such file or directory"
    assert str(failed.value) == f"{tmp_path}/none.mp4: {without_name(failed.value)}"


MEASURED = Path(__file__).parents[2] / "benchmarks" / "results" / "amd-epyc-2-cores" / "streams.json"


@pytest.mark.parametrize(
    ("precision", "beside"), [("float32", "OpenCV in the client"), ("int8", "OpenCV in the client, network in float32")]
)
def test_the_precision_of_each_network_is_named(precision: str, beside: str) -> None:
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))["cases"]["classify, every 1"]
    shown = io.StringIO()
    Console(file=shown, width=160).print(streams_table(measured | {"precision": precision}))
    lines = [line.strip() for line in shown.getvalue().splitlines()]
    assert lines[0].startswith(f"{measured['pipeline']} in {precision}, 1920x1080 ")
    (opencv,) = [line for line in lines if line.startswith("OpenCV")]
    assert opencv.startswith(f"{beside}  ")
