"""How many streams are held: by staircases, all competitors in turn, so that none has the quieter machine.

A staircase goes up where a load was held and down where it was not, in steps that are halved at every turn. Once they
are as small as they get it stays about the load that is held every other time, however fast the machine is meanwhile:
H. Levitt, Transformed Up-Down Methods in Psychoacoustics, J. Acoust. Soc. Am. 49 (1971), the simple up-down.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import fmean

from onestream.bench.playing import Played, rates_of

STEP = 0.1
"""Streams; the last may run at a fraction of its rate."""

ATTEMPTS = 12
"""Of a competitor that count, where a plan does not say it."""

_FIRST_STEP = 0.3
"""Of the load at which a staircase begins."""

Attempt = Callable[[float], Played]


@dataclass(frozen=True, slots=True)
class Tried:
    """One attempt: so many streams, and what came of it. ``counts``: whether the staircase had settled."""

    competitor: str
    load: float
    held: bool
    counts: bool
    p99_ms: float
    dropped: int
    failure: str


class _Staircase:
    """Loads of one competitor, in steps of ``STEP``."""

    def __init__(self, start: int) -> None:
        self.load = max(1, start)
        self.settled = self.sunk = False
        self._step = max(1, round(_FIRST_STEP * start))
        self._held_before: bool | None = None

    def note(self, *, held: bool) -> None:
        """What came of ``load``, which becomes the next one to try."""
        self.sunk = self.load == 1 and not held
        if self._held_before not in (None, held):
            self.settled = self._step == 1
            self._step = max(1, self._step // 2)
        self._held_before = held
        self.load = max(1, self.load + (self._step if held else -self._step))


@dataclass(slots=True)
class Found:
    """Streams held by competitor, the mean of the loads that were held among those that count, and all attempts."""

    held: dict[str, float] = field(default_factory=dict)
    tried: list[Tried] = field(default_factory=list)


def find(
    competitors: Mapping[str, Attempt],
    *,
    start: Mapping[str, float],
    attempts: int = ATTEMPTS,
    say: Callable[[str], None] = lambda _: None,
    settle_s: float = 1.0,
) -> Found:
    """How many streams each competitor holds: ``attempts`` that count, after those that lead there from ``start``.

    0 for a competitor that does not even hold a stream at a tenth of its rate.
    """
    stairs = {name: _Staircase(round(start[name] / STEP)) for name in competitors}
    counted: dict[str, list[Tried]] = {name: [] for name in competitors}
    found = Found()
    while open_ones := [
        name for name, one in stairs.items() if len(counted[name]) < attempts and not (one.sunk and not counted[name])
    ]:
        for name in open_ones:
            tried = _try(name, stairs[name], competitors[name], say)
            found.tried.append(tried)
            counted[name] += [tried] * tried.counts
            time.sleep(settle_s)
    for name, those in counted.items():
        held = [tried.load for tried in those if tried.held]
        found.held[name] = round(fmean(held), 6) if held else 0.0
    return found


def _try(name: str, stairs: _Staircase, attempt: Attempt, say: Callable[[str], None]) -> Tried:
    load, counts = round(stairs.load * STEP, 6), stairs.settled
    played = attempt(load)
    stairs.note(held=played.held)
    verdict = "held" if played.held else played.failure or f"{played.dropped} dropped, p99 {played.p99_ms:.0f} ms"
    say(f"{name}: {load:.1f} streams ({len(rates_of(load))} sources): {verdict}")
    return Tried(name, load, played.held, counts, played.p99_ms, played.dropped, played.failure)
