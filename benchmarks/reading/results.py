"""What a run of ``benchmarks.reading`` writes down, and its tables."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel

from benchmarks.reading.lettering import FONTS, FontName
from benchmarks.reading.pictures import HEIGHTS_PX
from benchmarks.result_files import FROZEN, Machine, short_commit
from onestream.measure.tables import NOT_MEASURED, markdown
from onestream.postprocess.same_lines import edit_distance

FILE_NAME = "reading.json"
_LOW_PX = 30


class LineRead(BaseModel):
    """A rendered line, and what each reader says that it is."""

    model_config = FROZEN

    text: str
    font: FontName
    height_px: int
    read: dict[str, str]


class Difference(BaseModel):
    """A line that two readers find at the same place and read in two ways."""

    model_config = FROZEN

    picture: str
    one: str
    other: str


class Compared(BaseModel):
    """Two readers on the same pictures. ``lines`` are the other's, of which ``equal`` have the same text in the first.

    ``rendered`` and ``rendered_equal`` are the same of pictures with rendered text, where lines that are found in the
    photo beside it count too. ``only_one`` and ``only_other`` count lines for which the other reader has none at that
    place.
    """

    model_config = FROZEN

    one: str
    other: str
    pictures: int
    lines: int
    equal: int
    rendered: int
    rendered_equal: int
    only_one: int
    only_other: int
    differences: list[Difference]


class ReadingResults(BaseModel):
    """Everything of one run. ``settings`` are what rapidocr was told."""

    model_config = FROZEN

    started_utc: str
    commit: str
    machine: Machine
    versions: dict[str, str]
    seed: int
    settings: dict[str, str | int | float | bool]
    lines: list[LineRead]
    compared: list[Compared]


def character_error_rate(lines: Sequence[LineRead], reader: str, *, spaces: bool = True) -> float | None:
    """Edits that make the lines of what was read, divided by their characters; None without lines.

    Without ``spaces`` they are left out of both.
    """

    def counted(text: str) -> str:
        return text if spaces else text.replace(" ", "")

    edits = sum(edit_distance(counted(line.read[reader]), counted(line.text)) for line in lines)
    characters = sum(len(counted(line.text)) for line in lines)
    return edits / characters if characters else None


def table(results: ReadingResults) -> str:
    """The tables of one run in docs/results.md."""
    lowest, highest = HEIGHTS_PX
    about = (
        f"Text on {results.machine.cpu}; {results.started_utc[:10]}, commit {short_commit(results.commit)}. "
        f"{len(results.lines)} rendered lines, {lowest} to {highest} px high. Character error rate: edits that make "
        "the text of what was read, divided by its characters."
    )
    low = [line for line in results.lines if line.height_px < _LOW_PX]
    head = ["read by", "character error rate", "without spaces", "lines without an error"]
    rows = []
    for reader in results.lines[0].read if results.lines else ():
        whole = sum(line.read[reader] == line.text for line in results.lines)
        of_fonts = [[line for line in results.lines if line.font == font] for font in FONTS]
        rows.append(
            [
                reader,
                _percent(character_error_rate(results.lines, reader)),
                _percent(character_error_rate(results.lines, reader, spaces=False)),
                f"{whole} of {len(results.lines)}",
                *(_percent(character_error_rate(lines, reader)) for lines in (*of_fonts, low)),
            ]
        )
    errors = markdown([*head, *FONTS, f"below {_LOW_PX} px"], rows)
    pairs = [
        [
            one.one,
            one.other,
            _share(one.equal, one.lines),
            _share(one.rendered_equal, one.rendered),
            _share(one.equal - one.rendered_equal, one.lines - one.rendered),
            str(len(one.differences)),
            str(one.only_one),
            str(one.only_other),
        ]
        for one in results.compared
    ]
    head = ["read by", "compared with", "lines equal", "of rendered text", "of real text"]
    head += ["read otherwise", "found by the first only", "by the other only"]
    counts = sorted({one.pictures for one in results.compared})
    pictures = f"The same on {' to '.join(map(str, counts))} pictures of text that is turned by up to 30°:"
    return f"{about}\n\n{errors}\n{pictures}\n\n{markdown(head, pairs)}"


def _share(equal: int, lines: int) -> str:
    return f"{equal} of {lines} ({equal / lines:.1%})" if lines else NOT_MEASURED


def _percent(rate: float | None) -> str:
    return NOT_MEASURED if rate is None else f"{rate:.2%}"
