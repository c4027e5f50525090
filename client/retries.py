"""Decides when a failed call is repeated, and counts down its deadline."""

from __future__ import annotations

import random
from dataclasses import dataclass
from time import monotonic

from onestream.client.errors import CannotConnect, OnestreamError, ServerOverloaded, ServerUnavailable, TimedOut
from onestream.wire.limits import DEFAULT_TIMEOUT_S


class Deadline:
    """A moment in time that everything belonging to one call shares.

    Where the caller gives no ``timeout_s``, it is 10 seconds after the beginning until ``default_to`` says another.
    """

    def __init__(self, timeout_s: float | None) -> None:
        self._is_given = timeout_s is not None
        self.timeout_s: float = DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s
        self._began = monotonic()

    def default_to(self, timeout_s: float) -> None:
        """Let the call take so long, from its beginning on, unless the caller said it."""
        if not self._is_given:
            self.timeout_s = timeout_s

    def remaining_s(self) -> float:
        """Seconds left; 0 or less afterwards."""
        return self._began + self.timeout_s - monotonic()

    def require_s(self) -> float:
        """Seconds left. Raises TimedOut where there are none."""
        remaining_s = self.remaining_s()
        if remaining_s <= 0:
            raise TimedOut(f"the {self.timeout_s:.3g} s of timeout_s passed before the request was sent")
        return remaining_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """Which errors are tried again; a call is safe to repeat because inference changes nothing.

    Tried again are a lost or refused connection (after about 0.1 and 0.4 s) and a model that is being restarted or has
    no room for a large image now (after about 0.5 and 2 s, since both take seconds). Never: a bad image, an invalid
    request, an unknown model, a failure inside the model, a deadline that passed. A full queue is not tried again
    either unless ``when_overloaded``: repeated requests are what an overloaded server needs least, and the
    caller can slow down.
    """

    at_most: int = 2
    when_overloaded: bool = False

    def __post_init__(self) -> None:
        if self.at_most < 0:
            raise ValueError(f"retries={self.at_most}, expected 0 or more")

    def delay_s(self, error: OnestreamError, attempt: int) -> float | None:
        """Seconds to wait after ``attempt`` (from 0) failed with ``error``; None when it is final."""
        if attempt >= self.at_most:
            return None
        if isinstance(error, CannotConnect):
            first_s = 0.1
        elif isinstance(error, ServerUnavailable) or (self.when_overloaded and isinstance(error, ServerOverloaded)):
            first_s = 0.5
        else:
            return None
        # Clients that failed together must not come back together.
        return first_s * 4.0**attempt * random.uniform(0.75, 1.25)
