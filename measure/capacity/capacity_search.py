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

from onestream.measure.capacity.playing import Played, rates_of

STEP = 0.1
"""Streams; the last may run at a fraction of its rate."""

_ATTEMPTS = 12
"""Of each competitor that count."""

_FIRST_STEP = 0.3
"""Of the load at which a staircase begins."""

Attempt = Callable[[float], Played]


@dataclass(frozen=True, slots=True)
class Tried:
    """One attempt: so many streams, and what came of it. ``counts``: whether all staircases had settled before."""

    competitor: str
    load: float
    held: bool
    counts: bool
    p99_ms: float
    dropped: int
    failure: str


class _Staircase:
    """Loads of one competitor, in steps of ``STEP``."""

    def __init__(self, start: float) -> None:
        self.steps = max(1, round(start / STEP))
        self.settled = False
        self._width = max(1, round(_FIRST_STEP * self.steps))
        self._held_before: bool | None = None

    def note(self, *, held: bool) -> None:
        """What came of ``steps``, which becomes the next load to try."""
        if self._held_before not in (None, held):
            self.settled = self.settled or self._width == 1
            self._width = max(1, self._width // 2)
        elif self.steps == 1 and not held and self._held_before is not None:
            # Twice at the lowest load.
            self.settled = True
        self._held_before = held
        self.steps = max(1, self.steps + (self._width if held else -self._width))


@dataclass(slots=True)
class Found:
    """Streams held by competitor, and all attempts."""

    held: dict[str, float] = field(default_factory=dict)
    tried: list[Tried] = field(default_factory=list)


def find(
    competitors: Mapping[str, Attempt],
    *,
    start: Mapping[str, float],
    attempts: int = _ATTEMPTS,
    say: Callable[[str], None] = lambda _: None,
    settle_s: float = 1.0,
) -> Found:
    """How many streams each competitor holds, from ``attempts`` of each after those that lead there from ``start``.

    That is the mean of these loads, about which as many are held as are not; 0 where none was held.
    """
    staircases = {name: _Staircase(start[name]) for name in competitors}
    found, counted = Found(), 0
    while counted < attempts:
        # All count in the same minutes, and nobody plays them alone.
        counts = all(staircase.settled for staircase in staircases.values())
        for name, staircase in staircases.items():
            load = round(staircase.steps * STEP, 6)
            played = competitors[name](load)
            staircase.note(held=played.held)
            found.tried.append(Tried(name, load, played.held, counts, played.p99_ms, played.dropped, played.failure))
            verdict = (
                "held" if played.held else played.failure or f"{played.dropped} dropped, p99 {played.p99_ms:.0f} ms"
            )
            say(f"{name}: {load:.1f} streams ({len(rates_of(load))} sources): {verdict}")
            time.sleep(settle_s)
        counted += counts
    for name in competitors:
        those = [tried for tried in found.tried if tried.competitor == name and tried.counts]
        held_any = any(tried.held for tried in those)
        found.held[name] = round(fmean(tried.load for tried in those), 6) if held_any else 0.0
    return found
