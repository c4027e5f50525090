"""The rate that a run's progress shows."""

from __future__ import annotations

from onestream.cli.bulk.progress import Rate


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
