"""How often a piece of work was begun by processes that did not live to its end: Ray would begin it for ever."""

from __future__ import annotations

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

MOST_ATTEMPTS = 5
"""So many processes may end at one piece of work: workers are also killed for what others do on their machine."""


class AttemptCounts:
    """What was begun and has not ended, in one process; ``Attempts`` asks it from others."""

    def __init__(self) -> None:
        self._begun: dict[str, tuple[int, str]] = {}

    def begin(self, work: str) -> tuple[int, str]:
        """See ``Attempts.begin``."""
        earlier, reached = self._begun.get(work, (0, ""))
        self._begun[work] = (earlier + 1, reached)
        return earlier, reached

    def reach(self, work: str, what: str) -> None:
        """See ``Attempts.reach``."""
        count, _ = self._begun.get(work, (1, ""))
        self._begun[work] = (count, what)

    def end(self, work: str) -> None:
        """See ``Attempts.end``."""
        # Ray may have two processes at one piece of work, where it took a machine for lost.
        self._begun.pop(work, None)


class Attempts:
    """The count of all attempts of a run, which goes to any process; ``work`` names a piece of it."""

    def __init__(self) -> None:
        # Beside the one that asks, without which there is no run: any other machine may be lost.
        beside = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._counts: Any = ray.remote(num_cpus=0)(AttemptCounts).options(scheduling_strategy=beside).remote()

    def begin(self, work: str) -> tuple[int, str]:
        """Count an attempt; how many there were before, and what the last of them had reached, if it said so."""
        earlier: tuple[int, str] = ray.get(self._counts.begin.remote(work))
        return earlier

    def reach(self, work: str, what: str) -> None:
        """Say how far an attempt has come, before that is done."""
        ray.get(self._counts.reach.remote(work, what))

    def end(self, work: str) -> None:
        """Forget what has come to its end."""
        ray.get(self._counts.end.remote(work))
