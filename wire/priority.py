"""Triton's priority levels: which waiting requests leave a queue first."""

from __future__ import annotations

from typing import Literal

Priority = Literal["high", "normal", "low"]

PRIORITIES: dict[Priority, int] = {"high": 1, "normal": 2, "low": 3}
"""Triton's levels: requests of a lower number leave a queue first."""


def check_priority(priority: str) -> Priority:
    """Return ``priority``. Raises ValueError where it is none of ``PRIORITIES``."""
    for known in PRIORITIES:
        if priority == known:
            return known
    raise ValueError(f"priority={priority!r}, expected one of {', '.join(PRIORITIES)}")
