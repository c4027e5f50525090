"""How well readers read: with fake ones, of which it is known what they get wrong."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.competitors import READ
from benchmarks.reading import __main__ as command
from benchmarks.reading import readers
from benchmarks.reading.lettering import Written
from benchmarks.reading.pictures import TextPicture
from benchmarks.report.others import character_error_rate
from benchmarks.result_files import read
from benchmarks.results import READING, LineRead, ReadingResults
from onestream.postprocess.same_lines import Line
from onestream.preprocess import Resize
from onestream.serving.cascade import Cascade

CORNERS = np.array([[0, 0], [100, 0], [100, 20], [0, 20]], float)


def found(*texts: str, first_x: float = 0) -> list[Line]:
    return [Line(CORNERS + np.array([first_x, 30 * place]), text, 0.9) for place, text in enumerate(texts)]


def picture(name: str, *, rendered: bool = False) -> TextPicture:
    return TextPicture(name, "made up", name.encode(), [Written("x", CORNERS)] if rendered else [])


def test_the_error_rate_counts_characters_of_all_lines_together() -> None:
    said = (("abcd efgh", "abcdefgh"), ("ab", "ax"), ("x", "x"))
    lines = [LineRead(text=text, font="Aileron", height_px=30, read={"one": got}) for text, got in said]
    assert character_error_rate(lines, "one") == 2 / 12
    assert character_error_rate(lines, "one", spaces=False) == 1 / 11
    assert character_error_rate([], "one") is None


def test_lines_are_equal_where_both_find_the_same_text_at_the_same_place() -> None:
    theirs = {"a": found("one", "two", "three"), "b": found("four"), "c": []}
    ours = {"a": found("one", "tvo"), "b": found("four", first_x=70), "c": found("five")}
    fakes = {"ours": lambda content: ours[content.decode()], "theirs": lambda content: theirs[content.decode()]}
    pictures = [picture(name, rendered=name == "a") for name in theirs]
    pairs = [("ours", "theirs"), ("theirs", "theirs")]
    one, same = command.compared(fakes, pictures, pairs, progress=lambda _line: None)
    assert (one.pictures, one.lines, one.equal) == (3, 4, 1)
    assert (one.rendered, one.rendered_equal) == (3, 1)
    # "three" and "four" are where ours has nothing; "four" of ours and "five" where theirs has nothing.
    assert (one.only_one, one.only_other) == (2, 2)
    assert [(d.picture, d.one, d.other) for d in one.differences] == [("a", "tvo", "two")]
    assert (same.lines, same.equal, same.differences) == (4, 4, [])


def test_rapidocr_is_set_up_as_our_pipeline() -> None:
    cascade = Cascade.from_file(READ.pipeline_file)
    assert [stage.network for stage in cascade.stages.values()] == list(readers.NETWORKS.values())
    find, turn, text = cascade.stages.values()
    (resize,) = (one for one in find.preprocess.operations if isinstance(one, Resize))
    longest = readers.SETTINGS["Det.limit_side_len"]
    assert (resize.mode, resize.size, resize.multiple_of, resize.enlarge) == ("longer", longest, 32, False)
    lines = find.postprocess
    names = ("thresh", "box_thresh", "unclip_ratio", "use_dilation", "max_candidates")
    ours = (lines.threshold, lines.box_threshold, lines.unclip_ratio, lines.dilation, lines.max_lines)
    assert ours == tuple(readers.SETTINGS[f"Det.{name}"] for name in names)
    assert turn.postprocess.min_score == readers.SETTINGS["Cls.cls_thresh"]
    assert text.postprocess.min_score == readers.SETTINGS["Global.text_score"]


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a build nor a server nor rapidocr; ours reads the last line otherwise."""

    @contextmanager
    def server(*_arguments: object, **_options: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(grpc_address="127.0.0.1:1")

    monkeypatch.setattr(command, "build", lambda *_arguments, **_options: None)
    monkeypatch.setattr(command, "Server", server)
    monkeypatch.setattr(command, "rapid_ocr", lambda **_options: lambda _content: found("one", "two"))
    monkeypatch.setattr(command, "served", lambda _model, *, grpc_address: lambda _content: found("one", "tvo"))  # noqa: ARG005


@pytest.mark.usefixtures("fakes")
def test_a_run_compares_both_forms_with_both_ways_of_rapidocr_and_readers_with_themselves(tmp_path: Path) -> None:
    assert command.main(["--lines", "3", "--pictures", "2", "--out", str(tmp_path)]) == 0
    (results,) = read(tmp_path, READING, ReadingResults)
    theirs, ours = ("rapidocr", "rapidocr, line by line"), ("read", "read_fused")
    assert [list(line.read) for line in results.lines] == [[*theirs, *ours]] * 3
    assert {(one.one, one.other): (one.equal, one.lines) for one in results.compared} == {
        **dict.fromkeys(itertools.product(ours, theirs), (2, 4)),
        ("rapidocr, line by line", "rapidocr"): (4, 4),
        ("rapidocr, line by line, a pixel less", "rapidocr, line by line"): (4, 4),
        ("read_fused, a pixel less", "read_fused"): (4, 4),
    }
