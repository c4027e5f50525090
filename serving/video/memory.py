"""Keeps the memory of the process that decodes all streams within a limit, by measuring it.

What packets make a decoder keep cannot be foreseen for every codec. So the process looks at its own resident size:
above the limit it ends the stream whose packets took the most, and where that does not help, it is to be replaced.
"""

from __future__ import annotations

import ctypes
import gc
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, Literal, TypeVar
from weakref import WeakKeyDictionary, ref

Stream = TypeVar("Stream")

PATIENCE_S = 10.0
"""How long the memory may stay above the limit while what was ended is let go: a decoder may be at work for seconds."""


def resident_bytes() -> int:
    """The resident memory of this process, in bytes."""
    with open("/proc/self/statm", "rb", buffering=0) as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def give_back() -> None:
    """Give memory that is free back to the system: glibc keeps it, all 4 GB of it if need be."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class MemoryWatch(Generic[Stream]):
    """Says which stream to end so that the process stays within ``most_bytes``. Thread-safe, but for ``look``.

    ``resident`` and ``give_back`` are replaced in tests; ``clock`` is in seconds.
    """

    def __init__(
        self,
        most_bytes: int,
        *,
        resident: Callable[[], int] = resident_bytes,
        give_back: Callable[[], None] = give_back,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.most_bytes = most_bytes
        self._resident, self._give_back, self._clock = resident, give_back, clock
        self._taken: WeakKeyDictionary[Stream, int] = WeakKeyDictionary()
        self._lock = threading.Lock()
        self._ending: Callable[[], Stream | None] = lambda: None
        self._over_since_s: float | None = None

    @contextmanager
    def charging(self, stream: Stream) -> Iterator[None]:
        """Charge ``stream`` with the growth of the process meanwhile."""
        before = self._resident()
        try:
            yield
        finally:
            grown = self._resident() - before
            with self._lock:
                self._taken[stream] = self._taken.get(stream, 0) + grown

    def look(self, streams: Iterable[Stream]) -> Stream | Literal["replace"] | None:
        """The stream to end now; *replace* where ending streams did not help, None where all is well or being mended.

        To be called now and then; a stream that is returned is taken to be ended.
        """
        if not self._is_over():
            self._over_since_s = None
            return None
        now_s = self._clock()
        if self._over_since_s is None:
            self._over_since_s = now_s
        if now_s - self._over_since_s > PATIENCE_S:
            return "replace"
        if self._ending() is not None:
            # Its decoder still works and cannot be interrupted.
            return None
        with self._lock:
            greediest = max(streams, key=lambda stream: self._taken.get(stream, 0), default=None)
        if greediest is not None:
            self._ending = ref(greediest)
        return greediest

    def _is_over(self) -> bool:
        if self._resident() <= self.most_bytes:
            return False
        self._give_back()
        return self._resident() > self.most_bytes
