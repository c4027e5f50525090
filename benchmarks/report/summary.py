"""One row a comparison, of all results of one machine: docs/results.md has all rows, README.md the headlines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.competitors import CLASSIFY, CONTESTS, DETECT, READ, Contest
from benchmarks.photos import PHONE, Size, title
from benchmarks.plan import MAIN_LOAD, ONE_AT_A_TIME
from benchmarks.report.others import scale_out_rates
from benchmarks.result_files import Raw, read
from benchmarks.results import (
    AUGMENTATION,
    BULK,
    FILE_NAME,
    IN_PROCESS,
    ON_RAY,
    OVERLOAD,
    SCALE_OUT,
    STREAMS,
    TRAINING,
    VARIANTS,
    VIDEO,
    Competitor,
    LoaderResults,
    OverloadResults,
    Results,
    Served,
    TrainingResults,
    Where,
)
from onestream.measure.capacity.streams import OPENCV, OURS
from onestream.measure.spread import Spread, ratio

_FILES = (
    *(contest.file(FILE_NAME) for contest in CONTESTS.values()),
    TRAINING,
    AUGMENTATION,
    VIDEO,
    STREAMS,
    OVERLOAD,
    SCALE_OUT,
)
_SMALL: Size = "500x375"
_LARGE: Size = "1920x1080"
_Rounds = dict[int, float]


@dataclass(frozen=True, slots=True)
class Row:
    """A quantity of ours by round, beside that of ``other``.

    ``better`` is the direction in which it should differ; README.md shows the rows that are headlines.
    """

    quantity: str
    ours: _Rounds
    other: str
    theirs: _Rounds
    digits: int
    better: Literal["higher", "lower"] = "higher"
    is_headline: bool = False

    def __str__(self) -> str:
        against = ratio(self.ours, self.theirs)
        if against is None:
            return f"| {self.quantity} | not measured | {self.other} | not measured | – | – |\n"
        cells = [
            self.quantity,
            _figures(self.ours, self.digits),
            self.other,
            _figures(self.theirs, self.digits),
            against.text(2),
            self._verdict(against),
        ]
        return "| " + " | ".join(cells) + " |\n"

    def _verdict(self, against: Spread) -> str:
        """*better* or *worse* where both quartiles say so, else *even*."""
        if against.low <= 1 <= against.high:
            return "even"
        return "better" if (against.low > 1) == (self.better == "higher") else "worse"


def headlines(folder: Path) -> str:
    """The headlines of ``table``."""
    return table(folder, only_headlines=True)


def table(folder: Path, *, only_headlines: bool = False) -> str:
    """The table of one machine's results: the one on which most was measured.

    Raises ``ValueError`` where as much was measured on another.
    """
    machines = Counter(path.parent for name in _FILES for path in folder.glob(f"*/{name}"))
    most = [machine for machine in sorted(machines) if machines[machine] == max(machines.values())]
    if len(most) > 1:
        raise ValueError(f"the table is of one machine; as much was measured on {', '.join(one.name for one in most)}")
    folder = most[0] if most else folder
    about = [f"{one.machine.cpu}, {one.machine.cores} cores, no GPU. " for one in read(folder, FILE_NAME, Results)]
    rows = [
        *_photos(folder, CLASSIFY, ""),
        *_photos(folder, DETECT, "boxes found: "),
        *_text(folder),
        *_training(folder),
        *_augmented(folder),
        *_video(folder),
        *_overload(folder),
        *_scale_out(folder),
    ]
    head = "| quantity | onestream | compared with | its | ratio | |\n| --- | --- | --- | --- | --- | --- |\n"
    shown = [str(row) for row in rows if row.is_headline or not only_headlines]
    return f"{''.join(about)}Median (quartiles) over rounds.\n\n{head}{''.join(shown)}"


def _photos(folder: Path, contest: Contest, beginning: str) -> Iterator[Row]:
    usual = "the usual ensemble, at its best setting"
    for one in read(folder, contest.file(FILE_NAME), Results):
        fused_and_plain = (one.fused, "plain")
        for size in (_SMALL, _LARGE):
            ours, plain = (_rate(one, competitor, size) for competitor in fused_and_plain)
            is_headline = contest is CLASSIFY or size == _SMALL
            yield Row(f"{beginning}images/s, photos of {title(size)}", ours, usual, plain, 0, is_headline=is_headline)
        for change in contest.changes:
            beside = f"the same {change.against.label if change.against else 'as generated, in float32'}"
            for size in contest.sizes:
                if changed := _rate(one, change.fused(contest.name), size):
                    quantity = f"{beginning}images/s {change.label}, photos of {title(size)}"
                    yield Row(quantity, changed, beside, _rate(one, change.baseline(contest.name), size), 0)
        where = Where(_LARGE, ONE_AT_A_TIME)
        ours, plain = (one.rounds_of(_p50_ms, competitor, where) for competitor in fused_and_plain)
        quantity = f"{beginning}p50 of one photo of {title(_LARGE)} at a time, ms"
        yield Row(quantity, ours, usual, plain, 1, better="lower")
        ours, limit = _rate(one, one.fused, _SMALL), one.limit(_SMALL)
        quantity = f"{beginning}images/s, photos of {title(_SMALL)}"
        is_headline = contest is CLASSIFY
        yield Row(quantity, ours, "the same code without a server", limit, 0, is_headline=is_headline)


def _text(folder: Path) -> Iterator[Row]:
    for one in read(folder, READ.file(FILE_NAME), Results):
        (size,) = READ.sizes
        ours, plain = (_rate(one, competitor, size) for competitor in (one.fused, "plain"))
        quantity = f"text read: images/s, ten lines on {title(size)}"
        yield Row(quantity, ours, "rapidocr in Triton, at its best setting", plain, 1)


def _training(folder: Path) -> Iterator[Row]:
    in_pytorch = {name: f"{name} in a `DataLoader`" for name in ("Pillow", "Pillow with draft", "OpenCV")}
    cases: tuple[tuple[str, Size, str], ...] = (
        ("normalize", _LARGE, "Pillow"),
        ("no crop", _SMALL, "OpenCV"),
        ("dct_scaling", PHONE, "whole decoding"),
        ("dct_scaling", PHONE, "Pillow with draft"),
    )
    for one in read(folder, TRAINING, TrainingResults):
        for part, size, other in cases:
            for case in one.cases:
                if case.size == size and case.name.endswith(part):
                    ours, theirs = (dict(enumerate(case.images_per_s[name])) for name in ("ours", other))
                    quantity = f"images/s for training, {title(size)}, {case.name}"
                    yield Row(quantity, ours, in_pytorch.get(other, other), theirs, 0, is_headline=size == _LARGE)


def _augmented(folder: Path) -> Iterator[Row]:
    for one in read(folder, AUGMENTATION, LoaderResults):
        for case in one.cases:
            ours, theirs = (dict(enumerate(case.images_per_s[name])) for name in ("ours", "torchvision"))
            quantity = f"images/s for training, {title(case.size)}, {case.name}"
            yield Row(quantity, ours, "torchvision in a `DataLoader`", theirs, 0)


def _video(folder: Path) -> Iterator[Row]:
    for clips in read(folder, VIDEO, Raw):
        ours, theirs = (
            {number: float(one["clips_per_s"]) for number, one in enumerate(clips["rounds"][name])}
            for name in ("ours", "decord")
        )
        yield Row("clips/s for training, 1080p H.264", ours, "decord", theirs, 2)
    for streams in read(folder, STREAMS, Raw):
        rounds = [one["held"] for one in streams["cases"]["classify, every 1"]["rounds"]]
        ours, theirs = ({number: float(one[name]) for number, one in enumerate(rounds)} for name in (OURS, OPENCV))
        yield Row("1080p streams held in real time", ours, "OpenCV in the client", theirs, 2, is_headline=True)


def _overload(folder: Path) -> Iterator[Row]:
    for one in read(folder, OVERLOAD, OverloadResults):
        bounded, unbounded = (
            {point.round: point.goodput_per_s for point in one.of("classify", variant, 2)} for variant in VARIANTS
        )
        yield Row("images/s answered in time, at twice the capacity", bounded, "queues without bounds", unbounded, 0)


def _scale_out(folder: Path) -> Iterator[Row]:
    for one in read(folder, SCALE_OUT, Raw):
        rates = scale_out_rates(one)
        quantity = f"images/s of `bulk --ray`, photos of {title(one['size'])}"
        yield Row(quantity, rates[ON_RAY], "`bulk` and a server", rates[BULK], 0)
        alone = rates[IN_PROCESS]
        yield Row(quantity, rates[ON_RAY], "the same code without Ray", alone, 0)


def _rate(results: Results, competitor: Competitor, size: Size) -> _Rounds:
    return results.rounds_of(lambda one: one.export.inferences_per_s, competitor, Where(size, MAIN_LOAD))


def _p50_ms(one: Served) -> float:
    return one.export.p50_ms


def _figures(rounds: _Rounds, digits: int) -> str:
    return Spread.of(list(rounds.values())).text(digits)
