"""How many streams are held: found by halving, for all competitors in turn, so that none has the quieter machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from onestream.bench.playing import Played, rates_of

STEP = 0.1
"""Streams; the last may run at a fraction of its rate."""

_GROWTH = 1.3
_ATTEMPTS = 2
"""A load is held where it is held once in so many attempts: other programs can only disturb."""

Attempt = Callable[[float], Played]


@dataclass(frozen=True, slots=True)
class Tried:
    """One attempt: so many streams, and what came of it."""

    competitor: str
    load: float
    held: bool
    p99_ms: float
    dropped: int
    failure: str


@dataclass(slots=True)
class _Bracket:
    """What is known of one competitor, in steps: held up to ``low``, not at ``high``."""

    start: int
    low: int = 0
    high: int | None = None
    sure: bool = False
    climbing: bool = False

    @property
    def _narrow(self) -> bool:
        return self.high is not None and self.high - self.low <= 1

    def following(self) -> int:
        """The next load to try; at the end once more the one that was not held, which may have been disturbed."""
        if self.high is not None:
            return self.high if self._narrow else (self.low + self.high) // 2
        if self.climbing:
            return self.low + 1
        return max(self.low + 1, round(self.low * _GROWTH)) if self.low else max(1, self.start)

    def note(self, load: int, *, held: bool) -> None:
        if held:
            self.low = load
            if load == self.high:
                self.high, self.climbing = None, True
        else:
            self.sure = self.climbing or (self._narrow and load == self.high)
            self.high = load


@dataclass(slots=True)
class Found:
    """Streams held by competitor, and everything that was tried."""

    held: dict[str, float] = field(default_factory=dict)
    tried: list[Tried] = field(default_factory=list)


def find(
    competitors: Mapping[str, Attempt],
    *,
    start: Mapping[str, float],
    say: Callable[[str], None] = lambda _: None,
    settle_s: float = 1.0,
) -> Found:
    """How many streams each competitor holds, to ``STEP``; ``start`` is where to begin."""
    brackets = {name: _Bracket(round(start[name] / STEP)) for name in competitors}
    found = Found()
    while any(not bracket.sure for bracket in brackets.values()):
        for name, bracket in brackets.items():
            if not bracket.sure:
                steps = bracket.following()
                load = round(steps * STEP, 6)
                bracket.note(steps, held=_try(name, load, competitors[name], found, say, settle_s))
    found.held = {name: round(bracket.low * STEP, 6) for name, bracket in brackets.items()}
    return found


def _try(name: str, load: float, attempt: Attempt, found: Found, say: Callable[[str], None], settle_s: float) -> bool:
    for _ in range(_ATTEMPTS):
        played = attempt(load)
        found.tried.append(Tried(name, load, played.held, played.p99_ms, played.dropped, played.failure))
        verdict = "held" if played.held else played.failure or f"{played.dropped} dropped, p99 {played.p99_ms:.0f} ms"
        say(f"{name}: {load:.1f} streams ({len(rates_of(load))} sources): {verdict}")
        time.sleep(settle_s)
        if played.held:
            return True
    return False
