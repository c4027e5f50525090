"""The rate that a run's progress shows."""

from __future__ import annotations

import pytest
from rich.progress import Progress

from onestream.cli.bulk.progress import Rate, RateAndTimeLeft


class Clock:
    """Shows the time that it is set to."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def rate_of(changes: list[tuple[float, int]], *, earlier: int, at_s: float) -> float:
    """The rate of a run that begins after 100 s, at a time after some changes."""
    clock = Clock()
    rate = Rate(earlier, clock)
    for clock.now_s, done in changes:
        rate.reached(done)
    clock.now_s = at_s
    return rate.per_s


def test_parts_that_take_minutes_have_a_rate_from_the_first_on() -> None:
    assert rate_of([], earlier=500, at_s=130) == 0
    assert rate_of([(220, 1500)], earlier=500, at_s=220) == 1000 / 120
    # Four workers end their parts together.
    together = [(220.0 + worker, 500 + 1000 * worker) for worker in range(1, 5)]
    assert rate_of(together, earlier=500, at_s=224) == 4000 / 124


def test_it_falls_while_nothing_is_done() -> None:
    assert rate_of([(200, 1000)], earlier=0, at_s=300) == 5


def test_it_is_that_of_late() -> None:
    slow = [(100.0 + number, number) for number in range(1, 2001)]
    fast = [(2100 + number / 10, 2000 + number) for number in range(1, 2001)]
    assert round(rate_of(slow + fast, earlier=0, at_s=2300), 6) == 10


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (1000, "5.0 images/s, 0:01:40 left"),
        (501, "5.0 images/s, 0:00:01 left"),
        (500, "5.0 images/s, 0:00:00 left"),
        # Files that came while the run was at work were not counted.
        (400, "5.0 images/s, 0:00:00 left"),
        (None, "5.0 images/s, -:--:-- left"),
    ],
)
def test_the_time_left_is_never_negative(total: int | None, expected: str) -> None:
    clock = Clock()
    rate = Rate(0, clock)
    clock.now_s = 200
    rate.reached(500)
    column = RateAndTimeLeft(rate)
    progress = Progress(column)
    progress.add_task("", total=total, completed=500)
    assert column.render(progress.tasks[0]).plain == expected
