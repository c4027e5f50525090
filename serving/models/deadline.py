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
"""Several times what the heaviest batch that the limits allow takes on a busy machine (about 20 s); a cascade's is
extended by every region."""
HEAVY_DEADLINE_S = 600.0
"""A heavy picture is decoded when nobody else wants the processor, which on a busy machine can take minutes."""

_lock = threading.Lock()
_ends: dict[int, float] = {}
_allowed: dict[int, float] = {}


def extend() -> None:
    """Let the calling thread's ``batch_deadline`` last as long again, from now on, as it was; nothing without one."""
    allowed = _allowed.get(threading.get_ident())
    if allowed is not None:
        _live_for(allowed)


@contextmanager
def batch_deadline(seconds: float | None = None) -> Iterator[None]:
    """Let the block take so many seconds, or ``BATCH_DEADLINE_S``; after that the kernel ends this process.

    A thread that extends it again and again shows that the process does not hang.
    """
    allowed = seconds or BATCH_DEADLINE_S
    _allowed[threading.get_ident()] = allowed
    _live_for(allowed)
    try:
        yield
    finally:
        with _lock:
            del _ends[threading.get_ident()], _allowed[threading.get_ident()]
            _arm()


def _live_for(seconds: float) -> None:
    with _lock:
        _ends[threading.get_ident()] = time.monotonic() + seconds
        _arm()


def _arm() -> None:
    left_s = max(min(_ends.values()) - time.monotonic(), 0.001) if _ends else 0.0  # 0 would mean: no timer
    signal.setitimer(signal.ITIMER_REAL, left_s)
