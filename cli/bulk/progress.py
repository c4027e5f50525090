"""Shows a run's progress on standard error."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from math import ceil
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

_OF_LATE = 1000
"""So many changes of the number are looked back on: as many images, or as many parts on Ray, which may take minutes."""


class Rate:
    """Images a second of late, from a run's beginning at ``done`` images; ``now`` is its clock, in seconds.

    Rich's own estimate forgets what is older than half a minute, and knows none before the second change.
    """

    def __init__(self, done: int, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._changes = deque([(now(), done)], maxlen=_OF_LATE)

    def reached(self, done: int) -> None:
        """So many images are done now."""
        self._changes.append((self._now(), done))

    @property
    def per_s(self) -> float:
        """Images a second; it falls while nothing is done."""
        (began_s, earlier), (_, done) = self._changes[0], self._changes[-1]
        return (done - earlier) / max(self._now() - began_s, 1e-9)


class RateAndTimeLeft(ProgressColumn):
    """Images a second by ``rate``, and the time that is left; none where more are done than were counted."""

    def __init__(self, rate: Rate) -> None:
        super().__init__()
        self._rate = rate

    def render(self, task: Task) -> Text:
        """Both as text; no time where nothing foretells it."""
        per_s, remaining = self._rate.per_s, task.remaining
        left = "-:--:--" if remaining is None or not per_s else str(timedelta(seconds=max(0, ceil(remaining / per_s))))
        return Text(f"{per_s:.{0 if per_s >= 10 else 1}f} images/s, {left} left")


@contextmanager
def progress_bar(*, done: int, failed: int, count: Callable[[], int] | None) -> Iterator[Callable[[int, int], None]]:
    """A bar that begins at ``done`` images; call what it yields with both numbers, as often as they change.

    ``count`` says, in a thread of its own, how many there are altogether; without it no end is foreseen.
    """
    rate = Rate(done)
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        RateAndTimeLeft(rate),
        TextColumn("{task.fields[failed]} failed"),
    )
    # Rich would otherwise take over stdout, which belongs to the results.
    with Progress(
        *columns, console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False
    ) as progress:
        task = progress.add_task("", total=None, completed=done, failed=failed)
        if count is not None:
            threading.Thread(target=lambda: progress.update(task, total=count()), daemon=True).start()

        def advance(done: int, failed: int) -> None:
            rate.reached(done)
            progress.update(task, completed=done, failed=failed)

        yield advance
