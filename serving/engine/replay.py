"""Records the work of a CUDA stream as a graph, and decides when that is worth it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import cuda.core
    import cuda.core.graph

Turn = Literal["run", "record", "replay"]

MAX_GRAPHS = 16
"""Graphs of one session. Each holds an execution context of its own, a few MB on the GPU."""


class Turns:
    """Decides for each batch size whether to run it, record it or replay its recording.

    The first use runs: many sizes never come again. The second records, while there are fewer than ``limit`` graphs;
    all that follow replay. A size whose recording was refused runs for ever.
    """

    def __init__(self, *, limit: int = MAX_GRAPHS) -> None:
        self._limit = limit
        self._seen: set[int] = set()
        self._recorded: set[int] = set()
        self._refused: set[int] = set()

    def next(self, batch: int) -> Turn:
        """The action for a batch of this size now."""
        if batch in self._recorded:
            return "replay"
        if batch not in self._seen:
            self._seen.add(batch)
            return "run"
        if batch in self._refused or len(self._recorded) >= self._limit:
            return "run"
        return "record"

    def recorded(self, batch: int) -> None:
        """There is a graph of this size from now on."""
        self._recorded.add(batch)

    def refused(self, batch: int) -> None:
        """This size could not be recorded."""
        self._refused.add(batch)


def record(stream: cuda.core.Stream, queue: Callable[[], bool]) -> cuda.core.graph.Graph | None:
    """Record the work that ``queue`` gives to ``stream`` as a graph that is ready to launch. Nothing of it is executed.

    None where it cannot be recorded: ``queue`` returned False, or did something that a recording forbids.
    """
    builder = stream.create_graph_builder()
    try:
        # Other threads of the process go on allocating meanwhile, which the stricter modes would forbid.
        builder.begin_building(mode="relaxed")
        try:
            queued = queue()
        finally:
            builder.end_building()
        return builder.complete() if queued else None
    except Exception:  # cuda.core's errors share no public base class; the caller runs without a graph
        return None
    finally:
        # Where the recording became invalid, this raises the same error once more.
        with suppress(Exception):
            builder.close()
