"""The pauses after which a live stream connects again."""

from __future__ import annotations

import random
from dataclasses import dataclass

from onestream.client.errors import (
    BadStream,
    CannotConnect,
    OnestreamError,
    ServerUnavailable,
    TimedOut,
    UnreadableInput,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconnect:
    """How often and how soon a stream that was open connects again, to its source and to the server.

    ``attempts`` are those in a row without a result; the wait before each begins at ``first_s`` and doubles up to
    ``longest_s``, give or take a quarter. What was never open is not tried again: its address may be wrong.
    """

    attempts: int = 10
    first_s: float = 0.5
    longest_s: float = 15.0

    def __post_init__(self) -> None:
        if self.attempts < 0:
            raise ValueError(f"attempts={self.attempts}, expected 0 or more")
        if not 0 < self.first_s <= self.longest_s:
            raise ValueError(f"first_s={self.first_s!r}, expected more than 0 and at most longest_s={self.longest_s!r}")

    def delay_s(self, failure: OnestreamError, attempt: int) -> float | None:
        """Seconds to wait before attempt number ``attempt`` (from 0); None where it is of no use or was the last."""
        if attempt >= self.attempts or not may_pass(failure):
            return None
        # Streams that failed together must not come back together.
        return float(min(self.first_s * 2.0**attempt, self.longest_s) * random.uniform(0.75, 1.25))


NEVER = Reconnect(attempts=0)
"""A lost connection ends the stream."""


def may_pass(failure: OnestreamError) -> bool:
    """Whether a failure can go away by itself: a lost connection, a server that restarts or is full."""
    if isinstance(failure, BadStream):
        # The server may still count the connection that was lost; a decoder or network that failed may be restarted.
        return failure.code in ("too_many_streams", "failed")
    return isinstance(failure, (UnreadableInput, CannotConnect, ServerUnavailable, TimedOut))
