"""Logs refusals in the server's log, each with its request's id, at a bounded rate."""

from __future__ import annotations

import threading
from collections.abc import Callable
from urllib.parse import quote

AT_MOST = 10
"""Lines that one process of a model writes in a window, before those that say how many were left out."""
WINDOW_S = 1.0

_LONGEST_ID = 128
_LONGEST_TEXT = 1000


class RefusalLog:
    """Says in the log what a model's process refuses. Thread-safe.

    Whoever sends nothing but bad images would otherwise fill the disk: beyond ``AT_MOST`` lines a window, refusals are
    only counted, and the window's end says how many there were.

    Args:
        model: its name, with which every line begins.
        write: takes a line.
        window_s: length of a window, which begins with a refusal.
    """

    def __init__(self, model: str, *, write: Callable[[str], None], window_s: float = WINDOW_S) -> None:
        self._model, self._write, self._window_s = model, write, window_s
        self._lock = threading.Lock()
        self._count = 0
        self._timer: threading.Timer | None = None

    def refused(self, request_id: str, error: Exception) -> None:
        """Say that a request was refused; ``request_id`` is as the client sent it, empty where it sent none."""
        with self._lock:
            self._count += 1
            if self._timer is None:
                self._timer = threading.Timer(self._window_s, self._end_window)
                self._timer.daemon = True
                self._timer.start()
            left_out = self._count > AT_MOST
        if not left_out:
            request = f"request {printable(request_id)}: " if request_id else ""
            self._write(f"{self._model}: {request}{str(error)[:_LONGEST_TEXT]}")

    def close(self) -> None:
        """Say what was left out so far."""
        with self._lock:
            timer = self._timer
        if timer is not None:
            timer.cancel()
            self._end_window()

    def _end_window(self) -> None:
        with self._lock:
            left_out, self._count, self._timer = self._count - AT_MOST, 0, None
        if left_out > 0:
            self._write(f"{self._model}: {left_out} more were refused within {self._window_s:g} s")


def printable(request_id: str) -> str:
    """A client's id as one word of at most 128 characters: what our own client would not send is percent-encoded."""
    return quote(request_id[:_LONGEST_ID], safe="._~:/+=@-", errors="replace")[:_LONGEST_ID]
