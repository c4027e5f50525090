"""Times that never go back."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onestream.wire.clock import Clock


@pytest.mark.parametrize(
    ("times", "shown"),
    [
        ([5, 15, 25, 45], [5, 15, 25, 45]),
        # Clips that begin alike, of which the last is longer; and clips of one picture.
        ([0, 10, 20, 0, 10, 20, 0, 10, 20, 30, 40], [*range(0, 110, 10)]),
        ([0, 0, 0, 0], [0, 10, 20, 30]),
        ([100, 110, 0, 10, 200], [100, 110, 120, 130, 200]),
        # Repeated, late, and in another order: the source's own times count again as soon as they are ahead.
        ([0, 10, 10, 30, 40], [0, 10, 20, 30, 40]),
        ([0, 10, 3, 30, 40], [0, 10, 20, 30, 40]),
        ([0, 10, 30, 20, 40, 50], [0, 10, 30, 40, 41, 50]),
        ([0, 10, 20, 0, 10, 30, 40, 50, 60], [0, 10, 20, 30, 40, 41, 42, 50, 60]),
        # For good after 16 pictures.
        ([*range(300, 320), *range(17), 330], [*range(300, 320), *range(329, 346), 659]),
        ([None, 10, None, 30, None, None], [0, 10, 20, 30, 40, 50]),
        ([-50, -40, -60, -50], [-50, -40, -30, -20]),
    ],
)
def test_a_clock_goes_on_where_the_source_s_own_goes_back(times: list[int | None], shown: list[int]) -> None:
    clock = Clock(1)
    assert [clock.forward(time, 10) for time in times] == shown
    assert clock.next_time == shown[-1] + 10
    # Where pictures have no duration, the step is the last one.
    clock = Clock(3)
    assert [clock.forward(time) for time in (0, None, 10, None, 5)] == [0, 3, 10, 20, 30]


@given(
    st.lists(st.tuples(st.none() | st.integers(-(1 << 62), 1 << 62), st.integers(0, 1000)), max_size=30),
    st.fractions(Fraction(1, 1000), 1000),
)
def test_every_time_is_after_the_one_before(pictures: list[tuple[int | None, int]], step: Fraction) -> None:
    clock = Clock(step)
    shown = [clock.forward(time, duration) for time, duration in pictures]
    assert all(earlier < later for earlier, later in pairwise(shown))
    assert all(isinstance(at, int) for at, (time, _) in zip(shown, pictures, strict=True) if time is not None)
    with pytest.raises(ValueError, match="step must be above 0, got 0"):
        Clock(0)
