"""Bounds the time that a model process may work on one batch.

A process that hangs in native code may hold Python's lock for ever, so no thread of its own can end it, and Triton
takes it for healthy. The kernel's timer needs neither: SIGALRM, which nothing handles, ends the process.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

BATCH_DEADLINE_S = 60.0
"""Several times what the heaviest batch that the limits allow takes on a busy machine (about 20 s)."""
HEAVY_DEADLINE_S = 600.0
"""A heavy picture is decoded when nobody else wants the processor, which on a busy machine can take minutes."""

_lock = threading.Lock()
_ends: dict[int, float] = {}


def extend() -> None:
    """Let this process live for another ``BATCH_DEADLINE_S`` seconds, and not longer without a further word.

    The word is that of the calling thread; other threads have deadlines of their own, and the first of all counts.
    """
    _live_for(BATCH_DEADLINE_S)


@contextmanager
def batch_deadline(seconds: float | None = None) -> Iterator[None]:
    """Let the block take so many seconds, or ``BATCH_DEADLINE_S``; after that the kernel ends this process."""
    _live_for(seconds or BATCH_DEADLINE_S)
    try:
        yield
    finally:
        with _lock:
            del _ends[threading.get_ident()]
            _arm()


def _live_for(seconds: float) -> None:
    with _lock:
        _ends[threading.get_ident()] = time.monotonic() + seconds
        _arm()


def _arm() -> None:
    left_s = max(min(_ends.values()) - time.monotonic(), 0.001) if _ends else 0.0  # 0 would mean: no timer
    signal.setitimer(signal.ITIMER_REAL, left_s)
