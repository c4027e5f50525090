"""Finds out whether a tritonserver still answers: one that hangs keeps its ports open and its processes alive."""

from __future__ import annotations

import threading
from collections.abc import Callable

from onestream.serving.server.triton.control import ControlError

_QUESTION_TIMEOUT_S = 5.0
_UNANSWERED = 4
_PAUSE_S = 1.0

SILENCE_S = _QUESTION_TIMEOUT_S * _UNANSWERED
"""So long a busy tritonserver may leave the simplest question unanswered. Each of several questions must time out, so
that a pause of this process itself, after which one does, counts for nothing."""


class Liveness:
    """Asks a server again and again, in a thread, from the start until ``close``.

    Args:
        ask: returns when the server has answered that it is alive, and raises ControlError after the given seconds.
    """

    def __init__(self, ask: Callable[[float], None]) -> None:
        self._ask = ask
        self._unanswered = 0
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="liveness", daemon=True).start()

    @property
    def is_silent(self) -> bool:
        """Whether no question of the last ``SILENCE_S`` seconds was answered."""
        return self._unanswered >= _UNANSWERED

    def close(self) -> None:
        """Ask no more."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.is_set():
            try:
                self._ask(_QUESTION_TIMEOUT_S)
            except ControlError:
                self._unanswered += 1
            else:
                self._unanswered = 0
            self._closed.wait(_PAUSE_S)
