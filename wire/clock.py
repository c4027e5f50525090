"""When pictures are shown: a source's own times, made never to go back."""

from __future__ import annotations

import math
from fractions import Fraction

Time = int | Fraction
"""In a time base: whole where it is a picture's own, moved or not."""

_SOON = 16
"""Pictures after which a clock that was set back counts as set for good."""
_JUMP = Fraction(3, 2)
"""Steps from one time to the next that are more than the next picture."""


class Clock:
    """Gives each picture of one source the time at which it is shown, always after the picture before it.

    A picture has its own time where that is after those before. Where it is before them (clips that were joined, a
    camera that started again) it is shown one step after the picture before, and what follows keeps its distance from
    it, by ``shift``. Where the source soon jumps back to where it was (pictures that came late or twice), so does the
    clock, and waits by the smallest steps until the source's own times are ahead again. A time that is repeated moves
    nothing that follows. A picture without a time is shown one step after the one before.

    The step is the duration of the picture before, else the time between the last two, else ``step``. All times are in
    one time base, ``step`` above 0. Raises ``ValueError`` for another.
    """

    def __init__(self, step: Time) -> None:
        if step <= 0:
            raise ValueError(f"step must be above 0, got {step}")
        self.shift = 0
        self._step: Time = step
        self._newest: Time | None = None
        # Of the source's own times the last, and the highest since the clock was set.
        self._last = self._highest = 0
        self._has_time = False
        # Before it was set back: the highest, and the shift.
        self._before: tuple[int, int] | None = None
        self._since = 0

    @property
    def next_time(self) -> Time:
        """When the newest picture is no longer shown; 0 before the first."""
        return 0 if self._newest is None else self._newest + self._step

    def forward(self, time: int | None, duration: int = 0) -> Time:
        """The time at which the next picture is shown, of its own ``time`` and ``duration`` (0 where it has none)."""
        shown = self.next_time if time is None else self._placed(time)
        if duration > 0:
            self._step = duration
        elif time is not None and self._has_time and time > self._last:
            self._step = time - self._last
        if time is not None:
            self._last, self._has_time = time, True
        self._newest = shown
        return shown

    def _placed(self, time: int) -> int:
        following = math.ceil(self.next_time)
        if self._newest is None:
            self._highest = time
            return time
        if self._has_time and time == self._highest:
            return following
        if self._before and time > self._before[0] and time - self._last > _JUMP * self._step:
            self.shift, self._before = self._before[1], None
        elif self._has_time and time < self._highest:
            self._before, self._since = self._before or (self._highest, self.shift), 0
            self.shift = following - time
        self._highest = time
        self._since += 1
        if self._since > _SOON:
            self._before = None
        return max(time + self.shift, math.floor(self._newest) + 1)
