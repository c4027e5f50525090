"""The search: one knob at a time around the best setting so far, and a second measurement of what won."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from onestream.measure.spread import Spread
from onestream.measure.tune.decide import SECOND_LOOK, Judgement, Measurement, judge, keeps_limit
from onestream.measure.tune.knobs import Device, Knob, Value, neighbours, sensible, with_value
from onestream.serving.pipeline import ServingOptions


class OutOfTime(Exception):
    """There is no time left for another comparison."""


class SettingFailed(Exception):
    """A setting could not be served or measured; the message says why."""

    def __init__(self, options: ServingOptions, reason: str) -> None:
        super().__init__(reason)
        self.options = options


class Compare(Protocol):
    """What measures settings."""

    def __call__(self, settings: Sequence[ServingOptions], *, final: bool = False) -> list[list[Measurement]]:
        """Measure settings in interleaved rounds; one list of samples for each setting, all of equal length.

        A comparison may end early where the first setting has no chance. A ``final`` one does not, and has time set
        aside for it; others raise ``OutOfTime``. Raises ``SettingFailed``.
        """


@dataclass(frozen=True, slots=True)
class Trial:
    """One setting, measured against the best one before it. ``samples`` are empty where it failed.

    ``to_start`` is its images/s as a multiple of the start's: the product of the ratios that lead there.
    """

    options: ServingOptions
    against: ServingOptions
    samples: list[Measurement]
    against_samples: list[Measurement]
    judgement: Judgement | None
    to_start: float | None
    failure: str = ""

    @property
    def better(self) -> bool:
        """Whether it took the place of the best one before it."""
        return self.judgement is not None and self.judgement.better


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The winner of the search, measured again side by side with where it began and with the defaults.

    ``winner_judgement`` compares it with the better of those two; the others compare what was chosen with each of them,
    and are None where it is that one itself, or where the defaults cannot be served.
    """

    winner: ServingOptions
    winner_judgement: Judgement
    to_start: Judgement | None
    to_defaults: Judgement | None
    samples: dict[ServingOptions, list[Measurement]]


@dataclass(slots=True)
class Outcome:
    """What the search did. ``best`` is what to write: the start where nothing was better, or not for sure.

    ``keeps_limit`` tells whether ``best`` keeps the limit on p99; None without a limit or a measurement.
    """

    start: ServingOptions
    defaults: ServingOptions
    best: ServingOptions
    trials: list[Trial] = field(default_factory=list)
    confirmation: Confirmation | None = None
    out_of_time: bool = False
    keeps_limit: bool | None = None


def search(
    start: ServingOptions,
    knobs: Sequence[Knob],
    *,
    device: Device,
    cores: int,
    compare: Compare,
    p99_ms: float | None = None,
    on_trial: Callable[[Trial], None] = lambda _: None,
) -> Outcome:
    """Find the best setting that ``compare`` can tell from the others.

    Begins with ``start``; the defaults are tried first. Then, knob by knob, the neighbours of the best value upwards as
    long as they are better, else downwards; again until a whole pass changes nothing, or until there is no time. At the
    end the winner is compared once more with the start and the defaults, and the best of these three is the outcome.
    Raises ``SettingFailed`` where the setting fails that others are compared with.
    """
    run = _Search(start, tuple(knobs), device, cores, compare, p99_ms, on_trial)
    try:
        run.climb()
    except OutOfTime:
        run.outcome.out_of_time = True
    if run.outcome.best != start:
        run.confirm()
    return run.outcome


class _Search:
    def __init__(
        self,
        start: ServingOptions,
        knobs: tuple[Knob, ...],
        device: Device,
        cores: int,
        compare: Compare,
        p99_ms: float | None,
        on_trial: Callable[[Trial], None],
    ) -> None:
        self.outcome = Outcome(start, _defaults(start, knobs), start)
        self._knobs, self._device, self._cores = knobs, device, cores
        self._compare, self._p99_ms, self._on_trial = compare, p99_ms, on_trial
        self._to_start = {start: 1.0}
        self._tried = {start}
        self._broken: set[ServingOptions] = set()
        self._failed: set[tuple[str, Value]] = set()

    def climb(self) -> None:
        """Try the defaults, then knob after knob until nothing changes."""
        self._is_better(self.outcome.defaults)
        changed = True
        while changed:
            changed = False
            for knob in self._knobs:
                changed |= self._climb_along(knob) if knob.ordered else self._try_all(knob)

    def confirm(self) -> None:
        """Measure the winner again, with the start and the defaults; it stays chosen where it is better than both."""
        outcome = self.outcome
        winner, start, defaults = outcome.best, outcome.start, outcome.defaults
        settings = [options for options in dict.fromkeys((start, defaults, winner)) if options not in self._broken]
        samples = dict(zip(settings, self._compare(settings, final=True), strict=True))

        def judged(options: ServingOptions, other: ServingOptions) -> Judgement:
            return judge(samples[options], samples[other], p99_ms=self._p99_ms, standard_errors=SECOND_LOOK)

        def compared_with(other: ServingOptions) -> Judgement | None:
            return judged(outcome.best, other) if other != outcome.best and other in samples else None

        best = defaults if defaults in samples and judged(defaults, start).better else start
        last = judged(winner, start if best == winner else best)
        outcome.best = winner if last.better else best
        outcome.confirmation = Confirmation(winner, last, compared_with(start), compared_with(defaults), samples)
        if self._p99_ms is not None:
            outcome.keeps_limit = keeps_limit(samples[outcome.best], self._p99_ms)

    def _try_all(self, knob: Knob) -> bool:
        improved = False
        for value in knob.values:
            improved |= self._improves(knob, value)
        return improved

    def _climb_along(self, knob: Knob) -> bool:
        for up in (True, False):
            moved = False
            for value in neighbours(knob, self.outcome.best, up=up):
                if not self._improves(knob, value):
                    break
                moved = True
            if moved:
                return True
        return False

    def _improves(self, knob: Knob, value: Value) -> bool:
        options = with_value(self.outcome.best, knob.field, value)
        if options is None or (knob.field, value) in self._failed:
            return False
        better = self._is_better(options)
        if options in self._broken:
            self._failed.add((knob.field, value))
        return better

    def _is_better(self, options: ServingOptions) -> bool:
        """Measure a setting that was not tried yet against the best one, which it replaces if it is better."""
        if options in self._tried or not sensible(options, device=self._device, cores=self._cores):
            return False
        best = self.outcome.best
        try:
            samples, against = self._compare([options, best])
        except SettingFailed as error:
            if error.options != options:
                raise
            self._tried.add(options)
            self._broken.add(options)
            self._note(Trial(options, best, [], [], None, None, str(error)))
            return False
        self._tried.add(options)
        judgement = judge(samples, against, p99_ms=self._p99_ms)
        self._to_start[options] = judgement.ratio.median * self._to_start[best]
        self._note(Trial(options, best, samples, against, judgement, self._to_start[options]))
        if self._p99_ms is not None:
            self.outcome.keeps_limit = keeps_limit(samples if judgement.better else against, self._p99_ms)
        if judgement.better:
            self.outcome.best = options
        return judgement.better

    def _note(self, trial: Trial) -> None:
        self.outcome.trials.append(trial)
        self._on_trial(trial)


def speeds(samples: Sequence[Measurement]) -> Spread:
    """Images/s over the rounds."""
    return Spread.of([sample.images_per_s for sample in samples])


def _defaults(start: ServingOptions, knobs: Sequence[Knob]) -> ServingOptions:
    """The start with every knob at its default; what is no knob, such as limits of queues, stays."""
    options, plain = start, type(start)()
    for knob in knobs:
        changed = with_value(options, knob.field, knob.of(plain))
        options = options if changed is None else changed
    return options
