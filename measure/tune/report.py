"""What a run of ``onestream bench tune`` found, as one value."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict

from onestream.measure.spread import Spread
from onestream.measure.tune.decide import Judgement, Measurement, needed_gain, ratios
from onestream.measure.tune.images import Images
from onestream.measure.tune.knobs import Device, Knob, Value, settings, text
from onestream.measure.tune.search import Outcome, Trial
from onestream.postprocess.agreement import Agreement
from onestream.preprocess.headers.reader import read_header
from onestream.serving.pipeline import ServingOptions

_STRICT = ConfigDict(frozen=True, extra="forbid")
_MUCH_NOISE = 0.05


class Quartiles(BaseModel):
    """A median and its quartiles."""

    model_config = _STRICT

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, spread: Spread, *, times: float = 1.0) -> Quartiles:
        """The same numbers, each multiplied."""
        return cls(median=spread.median * times, low=spread.low * times, high=spread.high * times)

    def text(self, digits: int) -> str:
        """Such as ``1.02 (0.99–1.04)``."""
        return f"{self.median:.{digits}f} ({self.low:.{digits}f}–{self.high:.{digits}f})"


class ImagesUsed(BaseModel):
    """The images that were sent: how many of how many found, their file sizes, and their sizes in pixels, as stored."""

    model_config = _STRICT

    used: int
    found: int
    smallest_bytes: int
    median_bytes: int
    largest_bytes: int
    smallest_pixels: tuple[int, int]
    largest_pixels: tuple[int, int]
    left_out: dict[str, str]

    @classmethod
    def of(cls, images: Images) -> ImagesUsed:
        """Describe images that a server took; sizes in pixels are (width, height)."""
        sizes = sorted(len(data) for data in images.contents.values())
        headers = [read_header(data) for data in images.contents.values()]
        pixels = sorted(((header.width, header.height) for header in headers), key=lambda size: size[0] * size[1])
        return cls(
            used=len(sizes),
            found=images.found,
            smallest_bytes=sizes[0],
            median_bytes=round(statistics.median(sizes)),
            largest_bytes=sizes[-1],
            smallest_pixels=pixels[0],
            largest_pixels=pixels[-1],
            left_out=images.left_out,
        )


class Row(BaseModel):
    """One setting: what was measured, and its ratios in images/s to the best setting before it and to the defaults.

    ``needed_gain`` is what the median of the ratios had to exceed 1 by.
    """

    model_config = _STRICT

    settings: dict[str, Value]
    samples: list[Measurement]
    images_per_s: Quartiles | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    to_best_before: Quartiles | None = None
    to_defaults: Quartiles | None = None
    needed_gain: float | None = None
    better: bool = False
    reason: str = ""


class Again(BaseModel):
    """The winner of the search measured a second time, side by side with the start and the defaults: ``rows``.

    ``to_start`` and ``to_defaults`` are ratios in images/s of what was chosen; None where it is that setting itself, or
    where the defaults cannot be served.
    """

    model_config = _STRICT

    winner: dict[str, Value]
    confirmed: bool
    reason: str
    to_start: Quartiles | None
    to_defaults: Quartiles | None
    rows: list[Row]


class Report(BaseModel):
    """Everything about one run. ``start`` is what the file says, ``rows`` begin with it, ``chosen`` is the outcome.

    ``agreements`` are those of networks in int8 or bf16 with float32, by the pipeline or its stages.
    """

    model_config = _STRICT

    pipeline_file: str
    model: str
    device: Device
    cores: int
    images: ImagesUsed
    tool: str
    concurrency: int
    p99_limit_ms: float | None
    rounds: int
    measurement_s: float
    minutes: float
    least_minutes: int
    start: dict[str, Value]
    defaults: dict[str, Value]
    chosen: dict[str, Value]
    rows: list[Row]
    again: Again | None
    out_of_time: bool
    keeps_limit: bool | None
    agreements: dict[str, Agreement] = {}

    @property
    def changes(self) -> dict[str, Value]:
        """What to write: the fields whose value is another one than in the file."""
        return changed(self.chosen, self.start)


def changed(values: Mapping[str, Value], before: Mapping[str, Value]) -> dict[str, Value]:
    """The values that differ."""
    return {field: value for field, value in values.items() if value != before[field]}


def rows_of(outcome: Outcome, knobs: tuple[Knob, ...], first: Measurement) -> list[Row]:
    """The start and then every trial. ``first`` stands for the start where nothing was compared with it."""
    beside = [sample for trial in outcome.trials if trial.against == outcome.start for sample in trial.against_samples]
    to_start = {trial.options: trial.to_start for trial in outcome.trials} | {outcome.start: 1.0}
    defaults = to_start.get(outcome.defaults)

    def relative(spread: Spread, base: float | None) -> Quartiles | None:
        return Quartiles.of(spread, times=base / defaults) if base and defaults else None

    def row(trial: Trial) -> Row:
        judged = trial.judgement
        if judged is None:
            return Row(settings=settings(trial.options, knobs), samples=[], reason=trial.failure)
        return _measured(settings(trial.options, knobs), trial.samples).model_copy(
            update={
                "to_best_before": Quartiles.of(judged.ratio),
                "to_defaults": relative(judged.ratio, to_start[trial.against]),
                "needed_gain": needed_gain(judged.ratio),
                "better": judged.better,
                "reason": judged.reason,
            }
        )

    start = _measured(settings(outcome.start, knobs), beside or [first])
    one = Spread(1.0, 1.0, 1.0, 1)
    return [start.model_copy(update={"to_defaults": relative(one, 1.0)}), *(row(trial) for trial in outcome.trials)]


def again_of(outcome: Outcome, knobs: tuple[Knob, ...]) -> Again | None:
    """The second measurement of the winner."""
    found = outcome.confirmation
    if found is None:
        return None

    def quartiles(judgement: Judgement | None) -> Quartiles | None:
        return None if judgement is None else Quartiles.of(judgement.ratio)

    def row(options: ServingOptions, samples: list[Measurement]) -> Row:
        base = found.samples.get(outcome.defaults)
        ratio = None if base is None else Quartiles.of(ratios(samples, base))
        return _measured(settings(options, knobs), samples).model_copy(update={"to_defaults": ratio})

    return Again(
        winner=settings(found.winner, knobs),
        confirmed=outcome.best == found.winner,
        reason=found.winner_judgement.reason,
        to_start=quartiles(found.to_start),
        to_defaults=quartiles(found.to_defaults),
        rows=[row(options, samples) for options, samples in found.samples.items()],
    )


def decision(report: Report) -> str:
    """What was decided and why, in sentences."""
    tried, again = report.rows[1:], report.again
    said: list[str] = []
    if again is not None and again.to_start is not None:
        was = {field: report.start[field] for field in report.changes}
        gain = f"{again.to_start.text(2)} times the images/s of what the file says now"
        if again.to_defaults is not None and report.start != report.defaults:
            gain += f", {again.to_defaults.text(2)} times those of the defaults"
        said.append(f"Chosen: {text(report.changes)} (now: {text(was)}). Measured again side by side: {gain}.")
    elif again is None and not tried:
        said.append(
            f"Kept as it is: no time was left to try another; --minutes {report.least_minutes} or more is needed."
        )
    elif again is None:
        number = f"of {len(tried)} settings tried, none was" if len(tried) > 1 else "the one setting tried was not"
        said.append(f"Kept as it is: {number} better by more than the noise.")
    else:
        said.append("Kept as it is.")
    if (precision := report.chosen.get("precision", "float32")) != "float32":
        said.append(f"What {precision} answers as float32 does, by its certificate: {_each(report.agreements)}.")
    if again is not None and not again.confirmed:
        winner = text(changed(again.winner, report.start))
        said.append(f"{winner} seemed best, but not when it was measured again ({again.reason}).")
    needed = [row.needed_gain for row in tried if row.needed_gain is not None]
    if needed and statistics.median(needed) > _MUCH_NOISE:
        said.append(
            f"Speeds varied much: only gains above {statistics.median(needed):.0%} could be told from noise. A machine "
            "that does nothing else, or more --minutes, shows smaller ones."
        )
    if report.out_of_time and tried:
        said.append(f"The time was up before all was tried; more than --minutes {report.minutes:g} tries more.")
    if report.keeps_limit is False:
        said.append(
            f"No setting that was tried keeps p99 within {report.p99_limit_ms:g} ms at concurrency "
            f"{report.concurrency}: allow more, or keep fewer requests in flight."
        )
    return " ".join(said)


def _each(agreements: Mapping[str, Agreement]) -> str:
    return "; ".join(f"{name}: {agreement}" for name, agreement in agreements.items())


def _measured(values: dict[str, Value], samples: Sequence[Measurement]) -> Row:
    return Row(
        settings=values,
        samples=list(samples),
        images_per_s=Quartiles.of(Spread.of([sample.images_per_s for sample in samples])),
        p50_ms=statistics.median(sample.p50_ms for sample in samples),
        p99_ms=statistics.median(sample.p99_ms for sample in samples),
    )
