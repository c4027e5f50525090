"""How well readers read: with fake ones, of which it is known what they get wrong."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks.competitors import READ
from benchmarks.photos import PhotosMissing
from benchmarks.reading import __main__ as command
from benchmarks.reading import measure, readers
from benchmarks.reading.lettering import Written
from benchmarks.reading.pictures import RenderedLine, TextPicture
from benchmarks.reading.results import (
    FILE_NAME,
    LineRead,
    ReadingResults,
    character_error_rate,
    table,
)
from benchmarks.result_files import Machine, read
from onestream.measure import rapid_ocr
from onestream.postprocess.same_lines import Line
from onestream.preprocess import Resize
from onestream.serving.cascade import Cascade

CORNERS = np.array([[0, 0], [100, 0], [100, 20], [0, 20]], float)


def found(*texts: str, first_x: float = 0) -> list[Line]:
    """Lines below each other."""
    return [Line(CORNERS + np.array([first_x, 30 * place]), text, 0.9) for place, text in enumerate(texts)]


def picture(name: str, *, rendered: bool = False) -> TextPicture:
    return TextPicture(name, "made up", name.encode(), [Written("x", CORNERS)] if rendered else [])


def rendered(text: str, *, font: Any = "Aileron", height_px: int = 40) -> RenderedLine:
    return RenderedLine(picture(text), text, font, height_px)


def quiet(_line: str) -> None:
    pass


def test_all_that_is_found_on_a_line_s_picture_is_what_was_read() -> None:
    lines = [rendered("red fox", font="STIX General", height_px=24), rendered("No. 7")]
    fakes = {"right": lambda content: found(*content.decode().split()), "blind": lambda _content: []}
    read = measure.lines_read(fakes, lines, progress=quiet)
    assert [one.read for one in read] == [{"right": "red fox", "blind": ""}, {"right": "No. 7", "blind": ""}]
    assert (read[0].text, read[0].font, read[0].height_px) == ("red fox", "STIX General", 24)


def test_the_error_rate_counts_characters_of_all_lines_together() -> None:
    said = (("abcd efgh", "abcdefgh"), ("ab", "ax"), ("x", "x"))
    lines = [LineRead(text=text, font="Aileron", height_px=30, read={"one": got}) for text, got in said]
    assert character_error_rate(lines, "one") == 2 / 12
    assert character_error_rate(lines, "one", spaces=False) == 1 / 11
    assert character_error_rate([], "one") is None


def test_lines_are_equal_where_both_find_the_same_text_at_the_same_place() -> None:
    theirs = {"a": found("one", "two", "three"), "b": found("four"), "c": []}
    ours = {"a": found("one", "tvo"), "b": found("four", first_x=70), "c": found("five")}
    fakes = {
        "ours": lambda content: ours[content.decode()],
        "theirs": lambda content: theirs[content.decode()],
    }
    pictures = [picture(name, rendered=name == "a") for name in theirs]
    one, same = measure.compared(fakes, pictures, [("ours", "theirs"), ("theirs", "theirs")], progress=quiet)
    assert (one.pictures, one.lines, one.equal) == (3, 4, 1)
    assert (one.rendered, one.rendered_equal) == (3, 1)
    # "three" and "four" are where ours has nothing; "four" of ours and "five" where theirs has nothing.
    assert (one.only_one, one.only_other) == (2, 2)
    assert [(d.picture, d.one, d.other) for d in one.differences] == [("a", "tvo", "two")]
    assert (same.lines, same.equal, same.differences) == (4, 4, [])


def made_up() -> ReadingResults:
    lines = [
        LineRead(text="abcd", font="Aileron", height_px=20, read={"rapidocr": "abcd", "read": "abcx"}),
        LineRead(text="a bcde", font="DejaVu Sans", height_px=50, read={"rapidocr": "abcde", "read": "a bcde"}),
    ]
    fakes = {"read": lambda _content: found("one", "two"), "rapidocr": lambda _content: found("one", "too", "three")}
    return ReadingResults(
        started_utc="2030-01-02T03:04:05+00:00",
        commit="0123456789abcdef",
        machine=Machine(cpu="Some CPU", cores=2, memory_gib=8, kernel="Linux 6", system="Debian"),
        versions={"rapidocr": "3.10.0"},
        seed=1,
        settings={"Det.limit_side_len": 960},
        lines=lines,
        compared=measure.compared(fakes, [picture("a"), picture("b")], [("read", "rapidocr")], progress=quiet),
    )


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_both_tables_show_every_reader_wins_and_losses_alike() -> None:
    text = table(made_up())
    assert "commit 0123456789ab. 2 rendered lines, 20 to 60 px high" in text
    head, _, rapid, ours, _, _, pair = rows(text)
    assert head[4:] == ["DejaVu Sans", "STIX General", "Aileron", "below 30 px"]
    # One space of ten characters; one letter of ten; nobody read STIX.
    assert rapid == ["rapidocr", "10.00%", "0.00%", "1 of 2", "16.67%", "–", "0.00%", "0.00%"]
    assert ours == ["read", "10.00%", "11.11%", "1 of 2", "0.00%", "–", "25.00%", "25.00%"]
    assert pair == ["read", "rapidocr", "2 of 6 (33.3%)", "–", "2 of 6 (33.3%)", "2", "0", "2"]


def test_results_survive_their_file(tmp_path: Path) -> None:
    (tmp_path / "machine").mkdir()
    (tmp_path / "machine" / FILE_NAME).write_text(made_up().model_dump_json())
    assert read(tmp_path, FILE_NAME, ReadingResults) == [made_up()]


class FakeRapidOcr:
    def __init__(self, *, params: dict[str, Any]) -> None:
        self.params = params

    def __call__(self, content: bytes) -> SimpleNamespace:
        texts = tuple(content.decode().split())
        if not texts:
            return SimpleNamespace(boxes=None, txts=None, scores=None)
        boxes = np.array([line.quad for line in found(*texts)], np.int32)
        return SimpleNamespace(boxes=boxes, txts=texts, scores=(0.5,) * len(texts), params=self.params)


def test_rapidocr_is_told_every_setting_and_its_answer_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, Any]] = []

    def opened(*, params: dict[str, Any]) -> FakeRapidOcr:
        told.append(params)
        return FakeRapidOcr(params=params)

    monkeypatch.setitem(sys.modules, "rapidocr", SimpleNamespace(RapidOCR=opened))
    monkeypatch.setattr(rapid_ocr, "fetch_network", lambda name: Path("cache", name))
    reader = readers.rapid_ocr(lines_in_a_batch=1)
    first, second = reader(b"red fox")
    assert (first.text, second.text, second.score) == ("red", "fox", 0.5)
    assert second.quad.tolist() == (CORNERS + np.array([0, 30])).tolist()
    assert reader(b"") == []
    assert told[0].items() >= readers.SETTINGS.items()
    assert told[0]["Rec.model_path"] == "cache/ppocr-v6-rec"
    assert told[0]["Rec.rec_batch_num"] == told[0]["Cls.cls_batch_num"] == 1
    readers.rapid_ocr()
    assert told[1]["Rec.rec_batch_num"] == readers.LINES_IN_A_BATCH


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


def test_a_pixel_less_is_the_same_picture_without_its_first_row_and_column() -> None:
    levels = np.random.default_rng(1).integers(0, 256, (30, 120, 3)).astype(np.uint8)
    whole, seen = io.BytesIO(), []
    Image.fromarray(levels).save(whole, "PNG")

    def reader(content: bytes) -> list[Line]:
        seen.append(np.asarray(Image.open(io.BytesIO(content))))
        return found("one")

    (line,) = readers.on_a_pixel_less(reader)(whole.getvalue())
    np.testing.assert_array_equal(seen[0], levels[1:, 1:])
    assert (line.text, line.score) == ("one", 0.9)
    assert line.quad.tolist() == (CORNERS + 1).tolist()


def test_without_rapidocr_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rapidocr", None)
    with pytest.raises(PhotosMissing, match=r"rapidocr cannot be imported .*; run: pip install '\.\[bench\]'"):
        readers.rapid_ocr()


def test_a_served_pipeline_is_asked_for_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def ask(model: str, photos: list[bytes], *, grpc_address: str) -> list[dict[str, np.ndarray]]:
        asked.append((model, photos, grpc_address))
        texts = np.array([["Größe".encode()]], object)
        return [{"quads": CORNERS[None, None], "texts": texts, "scores": np.ones((1, 1))}]

    monkeypatch.setattr(readers, "ask", ask)
    (line,) = readers.served("read_fused", grpc_address="127.0.0.1:1")(b"picture")
    assert (line.text, line.score) == ("Größe", 1.0)
    assert asked == [("read_fused", [b"picture"], "127.0.0.1:1")]


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
def test_a_run_compares_both_forms_with_both_ways_of_rapidocr_and_readers_with_themselves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--lines", "3", "--pictures", "2", "--out", str(tmp_path)]) == 0
    (results,) = read(tmp_path, FILE_NAME, ReadingResults)
    assert [list(line.read) for line in results.lines] == [
        ["rapidocr", "rapidocr, line by line", "read", "read_fused"]
    ] * 3
    assert {(one.one, one.other): (one.equal, one.lines) for one in results.compared} == {
        ("read", "rapidocr"): (2, 4),
        ("read", "rapidocr, line by line"): (2, 4),
        ("read_fused", "rapidocr"): (2, 4),
        ("read_fused", "rapidocr, line by line"): (2, 4),
        ("rapidocr, line by line", "rapidocr"): (4, 4),
        ("rapidocr, line by line, a pixel less", "rapidocr, line by line"): (4, 4),
        ("read_fused, a pixel less", "read_fused"): (4, 4),
    }
    said = capsys.readouterr().out
    assert table(results) in said


@pytest.mark.usefixtures("fakes")
def test_a_smaller_run_does_not_replace_what_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "CACHE", tmp_path)
    assert command.main(["--lines", "1", "--pictures", "1"]) == 0
    assert len(list(tmp_path.glob(f"*/{FILE_NAME}"))) == 1


@pytest.mark.usefixtures("fakes")
def test_what_is_missing_is_said_without_a_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(**_options: object) -> None:
        raise PhotosMissing("rapidocr cannot be imported")

    monkeypatch.setattr(command, "rapid_ocr", missing)
    assert command.main(["--lines", "1", "--pictures", "1"]) == 1
    assert capsys.readouterr().err == "benchmarks.reading: rapidocr cannot be imported\n"
