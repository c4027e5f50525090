"""Frame choice, of files and while frames come: properties over all options, and the cases that people get wrong."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from onestream.preprocess.variation import Timing
from onestream.preprocess.video.clips.choose_frames import Clip, Timeline, choose_frames
from onestream.preprocess.video.streams.sampling import Sampler, Sampling


def steady(count: int) -> Timeline:
    return Timeline(np.arange(count, dtype=np.int64), count, Fraction(1, 30))


CLIPS = st.builds(Clip, num_frames=st.integers(1, 80), start_frame=st.integers(0, 19), stride=st.integers(1, 9))


@given(count=st.integers(1, 60), clip=CLIPS, length=st.none() | st.integers(1, 60))
def test_frames_are_the_slice_that_python_takes(count: int, clip: Clip, length: int | None) -> None:
    start = clip.start_frame
    clip = replace(clip, end_frame=None if length is None else start + length)
    if start >= count:
        with pytest.raises(ValueError, match=f"start_frame {start} is past the end of a video of {count} frames"):
            choose_frames(clip, steady(count))
    else:
        expected = list(range(count))[start : clip.end_frame : clip.stride][: clip.num_frames]
        assert choose_frames(clip, steady(count)) == expected


@given(more=st.integers(1, 20), bare=CLIPS, mode=st.sampled_from(["constant", "edge", "reflect"]))
def test_padding_keeps_what_is_there_and_fills_to_the_length(more: int, bare: Clip, mode: Any) -> None:
    timeline = steady(bare.start_frame + more)
    there, clip = choose_frames(bare, timeline), replace(bare, pad_mode=mode)
    padded = choose_frames(clip, timeline)
    assert len(padded) == bare.num_frames == clip.length
    assert padded[: len(there)] == there
    added = len(padded) - len(there)
    if mode == "constant":
        assert padded[len(there) :] == [None] * added
    else:
        assert padded == np.pad(np.array(there), (0, added), mode).tolist()


@given(
    steps=st.lists(st.integers(1, 40), min_size=1, max_size=40), fps=st.fractions(Fraction(1, 3), 90), data=st.data()
)
def test_the_frame_at_a_time_is_the_last_one_not_after_it(steps: list[int], fps: Fraction, data: st.DataObject) -> None:
    ticks = np.concatenate([[7], 7 + np.cumsum(steps)]).astype(np.int64)
    timeline = Timeline(ticks[:-1], int(ticks[-1]), Fraction(1, 600))
    start = data.draw(st.integers(0, len(timeline) - 1))
    chosen = choose_frames(Clip(start_frame=start, fps=fps), timeline)
    assert chosen[0] == start
    begin = int(ticks[start]) * timeline.time_base
    for k, frame in enumerate(chosen):
        time = begin + k / fps
        assert ticks[frame] * timeline.time_base <= time < int(ticks[frame + 1]) * timeline.time_base
    # One more would be shown after the end.
    assert begin + len(chosen) / fps >= int(ticks[-1]) * timeline.time_base


@given(frames=st.lists(st.integers(0, 12), min_size=1, max_size=30))
def test_listed_frames_are_taken_as_they_are_and_must_exist(frames: list[int]) -> None:
    assert choose_frames(Clip(frames=tuple(frames)), steady(13)) == frames
    with pytest.raises(ValueError, match="frame 13 was asked for, of a video of 13 frames"):
        choose_frames(Clip(frames=(*frames, 13, 3)), steady(13))


def test_an_end_frame_bounds_a_rate() -> None:
    timeline = Timeline(np.array([0, 10, 20, 30], np.int64), 40, Fraction(1, 10))
    assert choose_frames(Clip(fps=2, end_frame=2), timeline) == [0, 0, 1, 1]
    assert choose_frames(Clip(fps=2, end_frame=2, num_frames=3), timeline) == [0, 0, 1]
    assert choose_frames(Clip(fps=Fraction(1, 2), num_frames=3, pad_mode="edge"), timeline) == [0, 2, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_frames": 0}, "num_frames must be at least 1, got 0"),
        ({"start_frame": -1}, "start_frame must be at least 0, got -1"),
        ({"stride": 0}, "stride must be at least 1, got 0"),
        ({"start_frame": 4, "end_frame": 4}, "end_frame 4 must be after start_frame 4"),
        ({"pad_mode": "wrap", "num_frames": 2}, "pad_mode must be one of constant, edge, reflect, none; got 'wrap'"),
        ({"pad_mode": "edge"}, "needs num_frames"),
        ({"pad_level": 256}, "pad_level must be at most 255, got 256"),
        ({"fps": 0}, "fps must be above 0, got 0"),
        ({"fps": float("nan")}, "fps must be above 0, got nan"),
        ({"fps": 5, "stride": 2}, "fps replaces stride"),
        ({"frames": ()}, "frames is empty"),
        ({"frames": (3, -2)}, "frames must be 0 or more, got -2"),
        ({"frames": (3,), "stride": 2}, "frames stands alone"),
        ({"frames": (3,), "pad_mode": "edge"}, "frames stands alone"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Clip(**options)  # type: ignore[arg-type]


@given(more=st.integers(1, 40), clip=CLIPS, speed=st.floats(0.1, 8))
def test_a_faster_clip_goes_so_many_times_as_far(more: int, clip: Clip, speed: float) -> None:
    timing, count = Timing(speed=speed), clip.start_frame + more
    assert abs(timing.speed - speed) <= 2**-17
    chosen = choose_frames(clip, steady(count), timing)
    # In floats of Python products of such small numbers are exact: a speed has 20 binary digits.
    wanted = [clip.start_frame + int(k * clip.stride * timing.speed) for k in range(clip.num_frames or 0)]
    assert chosen == [number for number in wanted if number < count]
    # At a constant rate by their times, it is the same.
    by_time = replace(clip, stride=1, fps=Fraction(30, clip.stride))
    assert choose_frames(by_time, steady(count), timing) == chosen


@given(
    more=st.integers(1, 40),
    clip=CLIPS,
    length=st.none() | st.integers(1, 60),
    speed=st.sampled_from([0.5, 1.0, 1.5]),
)
def test_a_clip_begins_wherever_it_needs_no_padding(more: int, clip: Clip, length: int | None, speed: float) -> None:
    start, count = clip.start_frame, clip.start_frame + more
    clip = replace(clip, end_frame=None if length is None else start + length)
    steps = 4 * count
    for one in (clip, replace(clip, stride=1, fps=Fraction(30, clip.stride))):
        timings = [Timing(start=place / steps, speed=speed) for place in range(steps + 1)]
        found = [choose_frames(one, steady(count), timing) for timing in timings]
        span = int(clip.stride * speed * (clip.num_frames - 1))
        last = min(count, clip.end_frame or count) - 1
        assert sorted({chosen[0] for chosen in found}) == list(range(start, max(start, last - span) + 1))
        assert all(chosen == [chosen[0] + n - found[0][0] for n in found[0]] for chosen in found)
        assert len(found[0]) == clip.num_frames or span > last - start


@given(
    lost=st.sets(st.integers(1, 14)).map(sorted), mode=st.sampled_from(["constant", "edge", "none"]), speed=st.just(2.0)
)
def test_where_a_frame_is_lost_the_one_before_it_is_shown_again(lost: list[int], mode: str, speed: float) -> None:
    clip = Clip(num_frames=12, pad_mode=mode)  # type: ignore[arg-type]
    timing = Timing(speed=speed, lost=tuple(lost))
    whole, seen = (choose_frames(clip, steady(19), one) for one in (Timing(speed=speed), timing))
    assert len(seen) == len(whole)
    for place, number in enumerate(seen):
        kept = max(one for one in range(place + 1) if one not in lost)
        assert number == whole[kept]


def test_what_a_timing_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="frames lists the frames themselves, which have no other speed"):
        choose_frames(Clip(frames=(1, 2)), steady(9), Timing(speed=2))
    with pytest.raises(ValueError, match="no other speed or start"):
        choose_frames(Clip(frames=(1, 2)), steady(9), Timing(start=0.5))
    assert choose_frames(Clip(frames=(1, 2)), steady(9), Timing(lost=(1,))) == [1, 1]
    for outside in (-0.1, 1.1):
        with pytest.raises(ValidationError, match="start"):
            Timing(start=outside)
    for lost in ((0,), (2, 2), (3, 1)):
        with pytest.raises(ValidationError, match="places from 1 on, ascending"):
            Timing(lost=lost)
    with pytest.raises(ValidationError, match="speed"):
        Timing(speed=0)
    timing = Timing(speed=1.25, lost=(2, 5))
    assert str(timing) == "speed 1.25; lost 2, 5"
    assert str(Timing(start=0.25)) == "speed 1; start 0.25"
    assert Timing.model_validate_json(timing.model_dump_json()) == timing


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


RATES = st.fractions(Fraction(1, 3), 200) | st.sampled_from([Fraction(10), Fraction(30), Fraction(90), 29.97])
SAMPLINGS = st.builds(
    lambda pace, start, count: Sampling(**pace, start_frame=start, num_frames=count),
    st.fixed_dictionaries({"stride": st.integers(1, 7)}) | st.fixed_dictionaries({"fps": RATES}),
    st.integers(0, 5),
    st.none() | st.integers(1, 30),
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


def test_wrong_options_are_named_as_those_of_a_clip() -> None:
    for options in ({"stride": 0}, {"fps": 0}, {"start_frame": 5, "end_frame": 5}, {"num_frames": 0}):
        with pytest.raises(ValueError, match="must be"):
            Sampling(**options)
