"""Threads that hold what is measured, and a clock from the first batch to the end of the last."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from onestream.preprocess.cuda.device import Device
from onestream.serving.models.workers import Workers

State = TypeVar("State")
Result = TypeVar("Result")
Batch = Sequence[bytes]

_WARMUP_BATCHES = 3
"""Of each lane and batch size: the first allocates, the second is recorded as a CUDA graph, the third replays it."""
_LONG_WARMUP_S = 1.0


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
