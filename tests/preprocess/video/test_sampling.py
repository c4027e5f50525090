"""Choosing frames while they come: the same as choosing them from a whole file."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from onestream.preprocess.video.clips.choose_frames import Clip, Timeline, choose_frames
from onestream.preprocess.video.streams.sampling import Sampler, Sampling

BASE = Fraction(1, 90)


def taken(sampling: Sampling, times: list[int], end: int, *, skipping: bool = False) -> list[int]:
    """The numbers of the frames that are taken; with ``skipping``, those that may be left out are not shown."""
    sampler: Sampler[int] = Sampler(sampling)
    found: list[int] = []
    for index, time in enumerate(times):
        follows = times[index + 1] * BASE if index + 1 < len(times) else None
        if not (skipping and sampler.skips(index, time * BASE, follows)):
            found += sampler.add(index, time * BASE, index)
    return found + sampler.end(end * BASE)


SAMPLINGS = st.one_of(
    st.builds(
        Sampling, stride=st.integers(1, 7), start_frame=st.integers(0, 5), num_frames=st.none() | st.integers(1, 9)
    ),
    st.builds(
        Sampling,
        fps=st.fractions(Fraction(1, 3), 200) | st.sampled_from([Fraction(10), Fraction(30), Fraction(90), 29.97]),
        start_frame=st.integers(0, 5),
        num_frames=st.none() | st.integers(1, 30),
    ),
)


@given(
    sampling=SAMPLINGS,
    steps=st.lists(st.sampled_from([1, 2, 3, 3, 3, 9, 40]), min_size=1, max_size=30),
    first=st.integers(-50, 50),
    length=st.none() | st.integers(1, 20),
    skipping=st.booleans(),
)
def test_a_stream_gives_the_frames_of_a_clip(
    sampling: Sampling, steps: list[int], first: int, length: int | None, skipping: bool
) -> None:
    times = [first, *(first + sum(steps[: n + 1]) for n in range(len(steps)))]
    times, end = times[:-1], times[-1]
    assume(sampling.start_frame < len(times))
    options = {name: getattr(sampling, name) for name in ("stride", "fps", "start_frame", "num_frames")}
    if length:
        options["end_frame"] = sampling.start_frame + length
    chosen = choose_frames(Clip(**options), Timeline(np.array(times), end, BASE))
    assert taken(Sampling(**options), times, end, skipping=skipping) == list(dict.fromkeys(chosen))


def test_most_frames_that_nobody_wants_are_known_beforehand() -> None:
    sampler: Sampler[int] = Sampler(Sampling(stride=5))
    assert [index for index in range(11) if not sampler.skips(index, index * BASE, None)] == [0, 5, 10]
    by_time: Sampler[int] = Sampler(Sampling(fps=10))
    by_time.add(0, 0 * BASE, 0)
    # 90 units a second: wanted at 0, 9, 18, …
    assert [n for n in range(1, 8) if not by_time.skips(n, 3 * n * BASE, 3 * (n + 1) * BASE)] == [3, 6]
    assert not by_time.skips(1, 3 * BASE, None)


def test_a_frame_is_given_as_soon_as_it_is_certain() -> None:
    sampler: Sampler[str] = Sampler(Sampling(fps=10))
    assert sampler.add(0, Fraction(0), "a") == ["a"]
    assert sampler.add(1, Fraction(8, 100), "b") == []
    assert sampler.add(2, Fraction(13, 100), "c") == ["b"]
    assert sampler.add(3, Fraction(2, 10), "d") == ["d"]
    assert sampler.end(Fraction(3, 10)) == []


def test_it_is_done_when_nothing_can_follow() -> None:
    sampler: Sampler[int] = Sampler(Sampling(num_frames=2, stride=3))
    found = [(sampler.add(index, index * BASE, index), sampler.done) for index in range(5)]
    assert found == [([0], False), ([], False), ([], False), ([3], True), ([], True)]
    before: Sampler[int] = Sampler(Sampling(end_frame=2))
    assert [before.add(index, index * BASE, index) for index in range(4)] == [[0], [1], [], []]
    assert before.done


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stride": 0}, "stride must be at least 1, got 0"),
        ({"fps": 0}, "fps must be above 0, got 0"),
        ({"fps": 5, "stride": 2}, "fps replaces stride"),
        ({"start_frame": 5, "end_frame": 5}, "end_frame 5 must be after start_frame 5"),
        ({"num_frames": 0}, "num_frames must be at least 1"),
    ],
)
def test_wrong_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling(**options)
