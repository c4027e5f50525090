"""Interleaved rounds: in each, every competitor is measured once at every point, and each round begins with another.

What is measured is held by threads, and a clock goes from the first batch to the end of the last.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

from benchmarks.gpu.results import Family, Part, Rate
from benchmarks.photos import Size
from benchmarks.rounds import rotated
from onestream.preprocess.cuda.device import Device
from onestream.serving.models.workers import Workers

State = TypeVar("State")
Result = TypeVar("Result")
Batch = Sequence[bytes]

_WARMUP_BATCHES = 3
"""Of each lane and batch size: the first allocates, the second is recorded as a CUDA graph, the third replays it."""
_LONG_WARMUP_S = 1.0
_LONGEST_REASON = 400


class Lanes(Generic[State]):
    """``count`` threads, each with a state that it made itself. Used by one thread.

    ``device`` is made current in each and waited for by ``finish``; None for states on the host. The constructor raises
    what making a state raised.
    """

    def __init__(self, count: int, open_state: Callable[[], State], *, device: Device | None) -> None:
        self.count = count
        self._device = device
        self._pending = 0
        self._ended: queue.Queue[Exception | None] = queue.Queue()
        self._failure: Exception | None = None

        def opened() -> State:
            if device is not None:
                device.enter()
            return open_state()

        self._workers: Workers[State, Callable[[State], None]] = Workers(count, opened, self._work)

    def submit(self, job: Callable[[State], None], *, in_flight: int) -> None:
        """Hand over a job as soon as fewer than ``in_flight`` are running."""
        while self._pending >= in_flight:
            self._take_one()
        self._pending += 1
        self._workers.submit(job)

    def finish(self) -> None:
        """Wait for all jobs and for the GPU. Raises the first failure of a job since the last call."""
        while self._pending:
            self._take_one()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if self._device is not None:
            self._device.core.sync()

    def ask(self, job: Callable[[State], Result]) -> Result:
        """The result of one job."""
        answers: list[Result] = []
        self.submit(lambda state: answers.append(job(state)), in_flight=self.count)
        self.finish()
        return answers[0]

    def rate(
        self, run: Callable[[State, Batch], None], pick: Callable[[], Batch], *, in_flight: int, duration_s: float
    ) -> float:
        """Images per second of ``run`` over batches from ``pick``, measured for at least ``duration_s``.

        Every lane in use gets a batch, and the clock stops when the last batch is done and the GPU is idle.
        """
        images, batches = 0, 0
        began = time.perf_counter()
        while time.perf_counter() - began < duration_s or batches < in_flight:
            self._submit(run, batch := pick(), in_flight)
            images, batches = images + len(batch), batches + 1
        self.finish()
        return images / (time.perf_counter() - began)

    def warm_up(self, run: Callable[[State, Batch], None], pick: Callable[[], Batch]) -> None:
        """Run three batches of this size in every lane, or one where that takes long; nothing is timed."""
        began = time.perf_counter()
        for number in range(_WARMUP_BATCHES * self.count):
            if number >= self.count and time.perf_counter() - began > _LONG_WARMUP_S:
                break
            self._submit(run, pick(), self.count)
        self.finish()

    def close(self) -> None:
        """End the threads and let go of their states."""
        self._workers.close()

    def _submit(self, run: Callable[[State, Batch], None], batch: Batch, in_flight: int) -> None:
        self.submit(lambda state: run(state, batch), in_flight=in_flight)

    def _take_one(self) -> None:
        failure = self._ended.get()
        self._pending -= 1
        self._failure = self._failure or failure

    def _work(self, state: State, job: Callable[[State], None]) -> None:
        try:
            job(state)
        except Exception as error:  # handed to the thread that measures, whatever a library raised
            self._ended.put(error)
        else:
            self._ended.put(None)


class Photos:
    """Random batches of many photos of one size: each photo once before any comes again."""

    def __init__(self, size: Size, contents: Sequence[bytes], *, seed: int) -> None:
        self.size: Size = size
        self.contents = contents
        self._rng = np.random.default_rng((seed, len(contents)))
        self._order: list[int] = []

    def pick(self, batch: int) -> list[bytes]:
        """The next ``batch`` photos; a batch larger than the set holds some several times."""
        while len(self._order) < batch:
            self._order += self._rng.permutation(len(self.contents)).tolist()
        chosen, self._order = self._order[:batch], self._order[batch:]
        return [self.contents[index] for index in chosen]


@dataclass(frozen=True, slots=True)
class Workload:
    """What one measurement runs: ``run`` on the states of ``lanes``, with ``in_flight`` batches at the same time.

    ``photos`` is None where a batch is a number of rows only.
    """

    part: Part
    setting: str
    lanes: Lanes[Any]
    run: Callable[[Any, Batch], None]
    photos: Photos | None
    batch: int
    in_flight: int
    family: Family | None = None
    decode_threads: int | None = None

    @property
    def size(self) -> Size | None:
        """Of the photos."""
        return self.photos.size if self.photos else None

    def pick(self) -> Batch:
        """The next batch."""
        return self.photos.pick(self.batch) if self.photos else (b"",) * self.batch


def measure(
    points: Sequence[Workload],
    *,
    rounds: int,
    duration_s: float,
    deadline: float,
    missing: dict[str, str],
    progress: Callable[[str], None],
    keep: Callable[[Rate], None],
) -> None:
    """Every point ``rounds`` times, after a warm-up; ``keep`` gets each rate when it is there.

    A round is begun only where one as long as the last would end before ``deadline`` (``time.monotonic``), but for the
    first. A setting that fails is left out from then on, with its reason in ``missing``.
    """
    left = list(points)
    warm: set[tuple[int, str, Size | None, int]] = set()

    def attempt(point: Workload, what: Callable[[], object]) -> None:
        try:
            what()
        except Exception as error:  # whatever a library raises, the others are still measured
            missing[f"{point.part}: {point.setting}"] = reason(error)
            left[:] = [other for other in left if other.lanes is not point.lanes or other.setting != point.setting]

    for point in points:
        key = (id(point.lanes), point.setting, point.size, point.batch)
        if point in left and key not in warm:
            warm.add(key)
            attempt(point, partial(point.lanes.warm_up, point.run, point.pick))
    took_s = 0.0
    for index in range(rounds):
        began = time.monotonic()
        if index and began + took_s > deadline:
            progress(f"the time is up after {index} of {rounds} rounds")
            break
        progress(f"round {index + 1} of {rounds}, {len(left)} points")
        for point in rotated(left, index, rounds=rounds):
            if point in left:
                attempt(point, partial(_once, point, index, duration_s, keep))
        took_s = time.monotonic() - began


def _once(point: Workload, index: int, duration_s: float, keep: Callable[[Rate], None]) -> None:
    rate = point.lanes.rate(point.run, point.pick, in_flight=point.in_flight, duration_s=duration_s)
    keep(
        Rate(
            round=index,
            part=point.part,
            setting=point.setting,
            family=point.family,
            size=point.size,
            batch=point.batch,
            in_flight=point.in_flight,
            images_per_s=rate,
            decode_threads=point.decode_threads,
        )
    )


def reason(error: Exception) -> str:
    """An error as one short line."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return line if len(line) <= _LONGEST_REASON else line[: _LONGEST_REASON - 3] + "..."
