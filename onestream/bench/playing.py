"""A number of streams in real time for some seconds, and whether they were held."""

from __future__ import annotations

import math
import multiprocessing
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

P99_LIMIT_MS = 200.0
"""Real time: of a hundred results, ninety-nine come within this time after their frame."""

_START_S = 3.0
"""For processes to start and connect."""


@dataclass(frozen=True, slots=True)
class Run:
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
        """Whether everything came in real time and nothing was dropped."""
        return not self.failure and not self.dropped and self.p99_ms <= P99_LIMIT_MS


def rates_of(load: float) -> tuple[float, ...]:
    """The rates of ``load`` streams, of which the last may be a part: 2.6 is 1, 1 and 0.6."""
    whole = math.floor(load + 1e-9)
    rest = round(load - whole, 6)
    return (1.0,) * whole + ((rest,) if rest > 0 else ())


class Player(ABC):
    """Plays one stream to the end. Instances travel to other processes, so they hold plain values only."""

    @abstractmethod
    def play(self, rate: float, times: Times, played: Played) -> None:
        """Play from ``times.beginning_s`` to ``times.end_s``, and note what comes in ``played``."""

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


def play(player: Player, run: Run) -> Played:
    """Play all streams at once, in processes that are new."""
    context = multiprocessing.get_context("spawn")
    beginning_s = time.monotonic() + _START_S
    # As of cameras, nobody's frames come at the same moments.
    offsets = [index / (30 * len(run.rates)) for index in range(len(run.rates))]
    plans = [
        (rate, Times(beginning_s + offset, beginning_s + run.warm_s, beginning_s + run.warm_s + run.seconds))
        for rate, offset in zip(run.rates, offsets, strict=True)
    ]
    groups = [[plan] for plan in plans] if player.own_processes else [plans]
    pipes, processes = [], []
    for group in groups:
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_play_group, args=(player, group, there), daemon=True)
        process.start()
        there.close()
        pipes.append(here)
        processes.append(process)
    total = Played()
    deadline_s = beginning_s + run.warm_s + run.seconds + 30
    for here, process in zip(pipes, processes, strict=True):
        if here.poll(max(0.0, deadline_s - time.monotonic())):
            try:
                _add(total, here.recv())
            except EOFError:
                total.failure = total.failure or f"a process ended with {process.exitcode}"
        else:
            total.failure = total.failure or "no end came in time"
        process.kill()
        process.join()
    return total


def _play_group(player: Player, plans: Sequence[tuple[float, Times]], pipe: Any) -> None:
    import threading

    results = [Played() for _ in plans]

    def one(rate: float, times: Times, played: Played) -> None:
        try:
            player.play(rate, times, played)
        except Exception as error:  # whatever ends a stream means that it was not held
            played.failure = f"{type(error).__name__}: {error}"

    threads = [
        threading.Thread(target=one, args=(rate, times, played), daemon=True)
        for (rate, times), played in zip(plans, results, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = Played()
    for (rate, _), played in zip(plans, results, strict=True):
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


def percentile_ms(latencies_ms: Sequence[float], percent: float) -> float:
    """A percentile; NaN without any latency."""
    return float(np.percentile(latencies_ms, percent)) if latencies_ms else math.nan
