"""Frame choice: properties over all options, and the cases that people get wrong."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from onestream.preprocess.variation import Timing
from onestream.preprocess.video.clips.choose_frames import Clip, Timeline, choose_frames


def steady(count: int) -> Timeline:
    return Timeline(np.arange(count, dtype=np.int64), count, Fraction(1, 30))


@given(
    count=st.integers(1, 60),
    num_frames=st.integers(1, 80),
    start=st.integers(0, 59),
    length=st.none() | st.integers(1, 60),
    stride=st.integers(1, 9),
)
def test_frames_are_the_slice_that_python_takes(
    count: int, num_frames: int, start: int, length: int | None, stride: int
) -> None:
    end = None if length is None else start + length
    clip = Clip(num_frames=num_frames, start_frame=start, end_frame=end, stride=stride)
    if start >= count:
        with pytest.raises(ValueError, match=f"start_frame {start} is past the end of a video of {count} frames"):
            choose_frames(clip, steady(count))
    else:
        assert choose_frames(clip, steady(count)) == list(range(count))[start:end:stride][:num_frames]


@given(
    count=st.integers(1, 20),
    num_frames=st.integers(1, 70),
    start=st.integers(0, 19),
    stride=st.integers(1, 5),
    mode=st.sampled_from(["constant", "edge", "reflect"]),
)
def test_padding_keeps_what_is_there_and_fills_to_the_length(
    count: int, num_frames: int, start: int, stride: int, mode: str
) -> None:
    start %= count
    bare = choose_frames(Clip(num_frames=num_frames, start_frame=start, stride=stride), steady(count))
    clip = Clip(num_frames=num_frames, start_frame=start, stride=stride, pad_mode=mode)  # type: ignore[arg-type]
    padded = choose_frames(clip, steady(count))
    assert len(padded) == num_frames == clip.length
    assert padded[: len(bare)] == bare
    there, added = np.array(bare), padded[len(bare) :]
    if mode == "constant":
        assert added == [None] * len(added)
    else:
        expected = np.pad(there, (0, len(added)), mode)  # type: ignore[call-overload]
        assert padded == expected.tolist()


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
def test_listed_frames_are_taken_as_they_are(frames: list[int]) -> None:
    assert choose_frames(Clip(frames=tuple(frames)), steady(13)) == frames


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


def test_a_listed_frame_must_exist() -> None:
    with pytest.raises(ValueError, match="frame 9 was asked for, of a video of 9 frames"):
        choose_frames(Clip(frames=(0, 9, 3)), steady(9))


@given(
    count=st.integers(1, 60),
    num_frames=st.integers(1, 40),
    start=st.integers(0, 59),
    stride=st.integers(1, 5),
    speed=st.floats(0.1, 8),
)
def test_a_faster_clip_goes_so_many_times_as_far(
    count: int, num_frames: int, start: int, stride: int, speed: float
) -> None:
    start %= count
    timing = Timing(speed=speed)
    assert abs(timing.speed - speed) <= 2**-17
    chosen = choose_frames(Clip(num_frames=num_frames, start_frame=start, stride=stride), steady(count), timing)
    # In floats of Python products of such small numbers are exact: a speed has 20 binary digits.
    wanted = [start + int(k * stride * timing.speed) for k in range(num_frames)]
    assert chosen == [number for number in wanted if number < count]
    # At a constant rate by their times, it is the same.
    by_time = Clip(num_frames=num_frames, start_frame=start, fps=Fraction(30, stride))
    assert choose_frames(by_time, steady(count), timing) == chosen


@given(
    count=st.integers(1, 60),
    num_frames=st.integers(1, 20),
    start=st.integers(0, 59),
    end=st.none() | st.integers(1, 60),
    stride=st.integers(1, 5),
    speed=st.sampled_from([0.5, 1.0, 1.5]),
)
def test_a_clip_begins_wherever_it_needs_no_padding(
    count: int, num_frames: int, start: int, end: int | None, stride: int, speed: float
) -> None:
    start %= count
    bound = None if end is None else start + end
    options = {"num_frames": num_frames, "start_frame": start, "end_frame": bound}
    steps = 4 * count
    for clip in (Clip(stride=stride, **options), Clip(fps=Fraction(30, stride), **options)):  # type: ignore[arg-type]
        found = [
            choose_frames(clip, steady(count), Timing(start=place / steps, speed=speed)) for place in range(steps + 1)
        ]
        span = int(stride * speed * (num_frames - 1))
        last = min(count, count if bound is None else bound) - 1
        assert sorted({chosen[0] for chosen in found}) == list(range(start, max(start, last - span) + 1))
        assert all(chosen == [chosen[0] + n - found[0][0] for n in found[0]] for chosen in found)  # type: ignore[operator]
        assert len(found[0]) == num_frames or span > last - start


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
