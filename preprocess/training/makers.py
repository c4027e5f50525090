"""Threads each of which has a maker of its own: decoders and compiled loops release the interpreter's lock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    """Something that holds resources."""

    def close(self) -> None:
        """Release them."""
        ...


MakerT = TypeVar("MakerT", bound=Closable)
ResultT = TypeVar("ResultT")


class MakerThreads(Generic[MakerT]):
    """A pool of threads; ``make`` gives each a maker, which need not be thread-safe.

    The first is made at once, so that what it refuses is raised where the loader is made.
    """

    def __init__(self, make: Callable[[], MakerT], *, threads: int, name: str) -> None:
        self._make = make
        self._makers = [make()]
        self._spare = list(self._makers)
        self._local, self._lock = threading.local(), threading.Lock()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name, initializer=self._begin)

    def submit(self, task: Callable[[MakerT], ResultT]) -> Future[ResultT]:
        """Run a task with a thread's maker, when one is free."""
        return self._pool.submit(self._run, task)

    def close(self) -> None:
        """Wait for the tasks that run, cancel the others, and close the makers."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        for maker in self._makers:
            maker.close()
        self._makers.clear()
        self._spare.clear()

    def _run(self, task: Callable[[MakerT], ResultT]) -> ResultT:
        return task(self._local.maker)

    def _begin(self) -> None:
        with self._lock:
            if self._spare:
                self._local.maker = self._spare.pop()
                return
        maker = self._make()
        with self._lock:
            self._makers.append(maker)
        self._local.maker = maker
