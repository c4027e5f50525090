"""Threads that take batches in turn, each with state of its own, so that one batch's work overlaps another's."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

State = TypeVar("State")
Job = TypeVar("Job")


class Workers(Generic[State, Job]):
    """``count`` threads; each makes its state by ``open_state`` and then calls ``work(state, job)`` for its jobs.

    The constructor returns when all states are made and raises what making one raised. ``work`` must not raise.
    """

    def __init__(self, count: int, open_state: Callable[[], State], work: Callable[[State, Job], None]) -> None:
        self._open_state, self._work = open_state, work
        self._jobs: queue.Queue[Job | None] = queue.Queue()
        self._free = threading.Semaphore(count)
        self._opened: queue.Queue[BaseException | None] = queue.Queue()
        self._threads = [
            threading.Thread(target=self._run, name=f"batch-{number}", daemon=True) for number in range(count)
        ]
        for thread in self._threads:
            thread.start()
        failures = [failure for failure in (self._opened.get() for _ in self._threads) if failure is not None]
        if failures:
            self.close()
            raise failures[0]

    def submit(self, job: Job) -> None:
        """Hand over a job and return when a thread is free for the next, so that batches grow while all are busy."""
        self._free.acquire()
        self._jobs.put(job)
        with self._free:
            pass

    def close(self) -> None:
        """Finish what was handed over and end the threads."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        try:
            state = self._open_state()
        except BaseException as failure:  # handed to the thread that constructs
            self._opened.put(failure)
            return
        self._opened.put(None)
        while (job := self._jobs.get()) is not None:
            try:
                self._work(state, job)
            finally:
                self._free.release()
