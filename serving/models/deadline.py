"""Deadlines: until when a caller waits for an answer, and how long a model process may work on one batch.

A process that hangs in native code may hold Python's lock for ever, so no thread of its own can end it, and Triton
takes it for healthy. The kernel's timer needs neither: SIGALRM, which nothing handles, ends the process.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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


class NobodyWaits(Exception):
    """The caller of a picture has left, or no time is left, so nothing more is done for it."""


class Caller:
    """Somebody of whom nothing is known, who waits for as long as it takes."""

    def is_waiting(self) -> bool:
        """Whether the answer is still waited for."""
        return True

    def handed_on(self) -> dict[str, Any]:
        """Options of a ``pb_utils.InferenceRequest`` that is made for the caller's. Raises ``NobodyWaits``."""
        return {}


ANYBODY = Caller()


class RequestCaller(Caller):
    """Who sent a request, from the moment on in which a model takes it up.

    ``is_held``: whether Triton keeps the request until it is answered. It lets go of one that a response sender answers
    later, and frees its trace, under which nothing may be asked any more.
    """

    def __init__(self, request: Any, *, is_held: bool) -> None:
        self.request, self._is_held = request, is_held
        # Triton does not tell a model how long the request waited before it. In microseconds, 0 for none.
        timeout_us = request.timeout()
        self._until_s = time.monotonic() + timeout_us / 1e6 if timeout_us else math.inf

    def is_late(self) -> bool:
        """Whether the caller has stopped waiting."""
        return time.monotonic() > self._until_s

    def is_waiting(self) -> bool:
        """See ``Caller.is_waiting``: neither late nor cancelled."""
        return not (self.is_late() or self.request.is_cancelled())

    def handed_on(self) -> dict[str, Any]:
        """See ``Caller.handed_on``: id, what is left of the timeout, and the trace.

        A priority is not among them: a model of Triton 2.51 neither sees its request's nor can it give one.
        """
        options: dict[str, Any] = {"request_id": self.request.request_id()}
        if self._until_s < math.inf:
            left_us = round((self._until_s - time.monotonic()) * 1e6)
            # 0 would mean that it waits for ever.
            if left_us < 1:
                raise NobodyWaits
            options["timeout"] = left_us
        if self._is_held:
            options["trace"] = self.request.trace()
        return options
