"""Who waits for an answer, and what their request hands on to those that are made for it inside the server."""

from __future__ import annotations

import math
import time
from typing import Any


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
