"""How much is measured, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured: in each of ``rounds`` everything once, for ``duration_s`` each, > 0."""

    rounds: int
    duration_s: float


def rotated(what: Sequence[_Item], round_index: int, *, rounds: int | None = None) -> list[_Item]:
    """Everything once, each round beginning one further on, or so far that ``rounds`` of them spread over all."""
    first = round_index % len(what) if rounds is None else len(what) * round_index // max(1, rounds)
    return [*what[first:], *what[:first]]
