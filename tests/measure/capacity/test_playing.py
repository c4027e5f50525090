"""Streams in real time: when frames are due, what counts, and that every end is told."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest
from clip_files import COUNT, write_video

from onestream.measure.capacity.clip import FPS, Clip, ClipMissing, due_times
from onestream.measure.capacity.playing import P99_LIMIT_MS, Playback, Played, Player, Playing, Times, play


@dataclass(frozen=True)
class Toy(Player):
    """Answers every frame after so many milliseconds."""

    latency_ms: float = 5.0
    fail: str = ""
    loses: int = 0

    def open(self, rate: float) -> Playing:
        if self.fail == "open":
            raise ArithmeticError("this stream cannot be played")
        opened_s = time.monotonic()

        def playing(times: Times, played: Played) -> None:
            if self.fail == "raise":
                raise ArithmeticError("this stream cannot be played")
            if self.fail == "die":
                os._exit(3)
            assert opened_s < times.beginning_s, "nobody begins before all are ready"
            for number, due_s in due_times(rate, times.beginning_s, times.end_s):
                if times.counts(due_s):
                    played.due += 1
                    if number >= self.loses:
                        played.latencies_ms.append(self.latency_ms)

        return playing


class Alone(Toy):
    own_processes = True


RUN = Playback((1.0, 1.0, 0.5), warm_s=0.5, seconds=2.0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Toy, Alone])
def test_full_streams_are_timed_and_a_part_of_one_must_only_be_complete(kind: type[Toy]) -> None:
    """The reason that a stream ends is reported."""
    played = play(kind(), RUN)
    assert played.due == len(played.latencies_ms) == pytest.approx(2 * 2 * FPS, abs=2)
    assert played.held
    late = play(kind(latency_ms=P99_LIMIT_MS + 1), RUN)
    assert not late.held
    missing = play(kind(loses=10_000), replace(RUN, rates=(0.5,)))
    assert (missing.held, missing.dropped) == (False, pytest.approx(FPS, abs=1))
    for when in ("open", "raise"):
        assert play(kind(fail=when), RUN).failure == "ArithmeticError: this stream cannot be played"
    assert play(kind(fail="die"), RUN).failure == "a process ended"


def test_a_result_that_did_not_come_is_infinitely_late() -> None:
    assert Played(due=100, latencies_ms=[1.0] * 100).p99_ms == 1.0
    assert Played(due=100, latencies_ms=[1.0] * 99).p99_ms == 1.0
    assert Played(due=100, latencies_ms=[1.0] * 98).p99_ms == math.inf
    assert not Played(due=100, latencies_ms=[1.0] * 100, dropped=1).held
    assert Played().held, "of a part of a stream it is asked only that nothing is missing"


def test_a_clip_goes_on_and_on_at_the_rate_asked_for(tmp_path: Path) -> None:
    clip = Clip.read(write_video(tmp_path / "clip.mp4", "libx264", options={"bf": "2"}))
    assert clip.frames == COUNT
    shown = sorted(clip.packet(number).pts or 0 for number in range(3 * COUNT))
    steps = {after - before for before, after in pairwise(shown)}
    assert len(shown) == 3 * COUNT
    assert len(steps) == 1
    beginning_s = time.monotonic()
    played = clip.played(rate=2, beginning_s=beginning_s, until_s=beginning_s + 1)
    packets = [(time.monotonic() - beginning_s, packet) for packet in played]
    assert [packet for _, packet in packets] == [clip.packet(number) for number in range(2 * FPS)]
    assert all(at_s >= number / (2 * FPS) for number, (at_s, _) in enumerate(packets))
    raw = write_video(tmp_path / "clip.h264", "libx264", format="h264", count=5)
    with pytest.raises(ClipMissing, match="must begin with a key frame and state all times"):
        Clip.read(raw)
