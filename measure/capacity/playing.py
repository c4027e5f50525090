"""A number of streams in real time for some seconds, and whether they were held."""

from __future__ import annotations

import math
import multiprocessing
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

P99_LIMIT_MS = 200.0
"""Real time: of a hundred results, ninety-nine come within this time after their frame."""

_START_S = 0.5
"""From when all are ready to the first frame."""

_READY_S = 120.0


@dataclass(frozen=True, slots=True)
class Playback:
    """What to play: ``rates`` of the streams (1 is 30 frames/s), ``warm_s`` not counted, then ``seconds``."""

    rates: tuple[float, ...]
    warm_s: float
    seconds: float


@dataclass(slots=True)
class Played:
    """What came of it in the counted time.

    ``due`` is how many results should come; ``latencies_ms`` of those that came, from when a frame could be decoded;
    ``dropped`` frames of the whole run; ``failure`` is what ended a stream early.
    """

    due: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    dropped: int = 0
    failure: str = ""

    @property
    def p99_ms(self) -> float:
        """Ninety-ninth percentile of the latencies; a result that did not come is infinitely late."""
        missing = max(0, self.due - len(self.latencies_ms))
        latencies = sorted(self.latencies_ms)
        place = math.ceil(0.99 * (len(latencies) + missing)) - 1
        return latencies[place] if 0 <= place < len(latencies) else math.inf

    @property
    def held(self) -> bool:
        """Whether everything came in real time and nothing was dropped; without a full stream, whether all came."""
        return not self.failure and not self.dropped and (not self.due or self.p99_ms <= P99_LIMIT_MS)


def rates_of(load: float) -> tuple[float, ...]:
    """The rates of ``load`` streams, of which the last may be a part: 2.6 is 1, 1 and 0.6."""
    whole = math.floor(load + 1e-9)
    rest = round(load - whole, 6)
    return (1.0,) * whole + ((rest,) if rest > 0 else ())


Playing = Callable[["Times", Played], None]
"""Plays a stream from ``Times.beginning_s`` to ``Times.end_s``, and notes what comes."""


class Player(ABC):
    """Plays streams. Instances travel to other processes, so they hold plain values only."""

    @abstractmethod
    def open(self, rate: float) -> Playing:
        """Import, read and connect what one stream needs; what is returned begins at once."""

    own_processes: bool = False
    """Whether every stream has a process of its own, else all share one."""


@dataclass(frozen=True, slots=True)
class Times:
    """By ``time.monotonic``: when a stream begins, from when on it counts, and when its last frame is due."""

    beginning_s: float
    counted_s: float
    end_s: float

    def counts(self, due_s: float) -> bool:
        """Whether a frame's result is counted."""
        return self.counted_s <= due_s < self.end_s


def play(player: Player, run: Playback) -> Played:
    """Play all streams at once, in processes that are new; they begin when the last of them is ready."""
    context = multiprocessing.get_context("spawn")
    # As of cameras, nobody's frames come at the same moments.
    streams = [(rate, index / (30 * len(run.rates))) for index, rate in enumerate(run.rates)]
    groups = [[stream] for stream in streams] if player.own_processes else [streams]
    pipes, processes = [], []
    for group in groups:
        here, there = context.Pipe()
        process = context.Process(target=_play_group, args=(player, run, group, there), daemon=True)
        process.start()
        there.close()
        pipes.append(here)
        processes.append(process)
    total = Played()
    ready = [_received(here, _READY_S, total) for here in pipes]
    if all(ready):
        beginning_s = time.monotonic() + _START_S
        for here in pipes:
            here.send(beginning_s)
        for here in pipes:
            played = _received(here, _START_S + run.warm_s + run.seconds + 30, total)
            if isinstance(played, Played):
                _add(total, played)
    for process in processes:
        process.kill()
        process.join()
    return total


def _received(pipe: Any, timeout_s: float, total: Played) -> Any:
    try:
        if pipe.poll(timeout_s):
            return pipe.recv()
        total.failure = total.failure or "a process said nothing in time"
    except (EOFError, ConnectionError):
        total.failure = total.failure or "a process ended"
    return None


def _play_group(player: Player, run: Playback, streams: Sequence[tuple[float, float]], pipe: Any) -> None:
    results = [Played() for _ in streams]
    begin = threading.Barrier(len(streams) + 1)
    times: list[float] = []

    def one(rate: float, offset_s: float, played: Played) -> None:
        playing: Playing | None = None
        try:
            playing = player.open(rate)
        except Exception as error:  # whatever ends a stream means that it was not held
            played.failure = f"{type(error).__name__}: {error}"
        begin.wait()
        begin.wait()
        if playing is not None:
            began_s = times[0]
            counted_s = began_s + run.warm_s
            try:
                playing(Times(began_s + offset_s, counted_s, counted_s + run.seconds), played)
            except Exception as error:
                played.failure = f"{type(error).__name__}: {error}"

    threads = [
        threading.Thread(target=one, args=(rate, offset_s, played), daemon=True)
        for (rate, offset_s), played in zip(streams, results, strict=True)
    ]
    for thread in threads:
        thread.start()
    begin.wait()
    pipe.send("ready")
    times.append(pipe.recv())
    begin.wait()
    for thread in threads:
        thread.join()
    total = Played()
    for (rate, _), played in zip(streams, results, strict=True):
        if rate < 1:
            # Between rarer frames decoding waits longer by itself; what must not happen is that any is missing.
            missing = max(0, played.due - len(played.latencies_ms))
            played = Played(dropped=max(played.dropped, missing), failure=played.failure)
        _add(total, played)
    pipe.send(total)


def _add(total: Played, played: Played) -> None:
    total.due += played.due
    total.latencies_ms += played.latencies_ms
    total.dropped += played.dropped
    total.failure = total.failure or played.failure
