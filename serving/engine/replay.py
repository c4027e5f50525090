"""Records the work of a CUDA stream as a graph, and replays it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import cuda.core
    import cuda.core.graph


class Replayed:
    """Work on a stream by batch size: the first of a size is run and recorded, all that follow replay the recording.

    A size that cannot be recorded runs each time, and ``refused`` is then True. There must be few sizes
    (``batch_sizes``), since all are kept. ``handle`` is the stream's.
    """

    def __init__(self, handle: int) -> None:
        import cuda.core

        self.refused = False
        self._stream = cuda.core.Stream.from_handle(handle)
        self._graphs: dict[int, cuda.core.graph.Graph | None] = {}

    def queue(self, size: int, run: Callable[[], bool]) -> bool:
        """Queue the work of a batch size, which ``run`` queues, the same each time. False where that returned False."""
        if size not in self._graphs:
            # The first execution sets things up, which a recording forbids.
            if not run():
                return False
            self._graphs[size] = record(self._stream, run)
            self.refused |= self._graphs[size] is None
        elif graph := self._graphs[size]:
            graph.launch(self._stream)
        else:
            return run()
        return True

    def close(self) -> None:
        """Release the recordings; the stream must have passed them."""
        for graph in self._graphs.values():
            if graph is not None:
                graph.close()
        self._graphs.clear()


def record(stream: cuda.core.Stream, queue: Callable[[], bool]) -> cuda.core.graph.Graph | None:
    """Record the work that ``queue`` gives to ``stream`` as a graph that is ready to launch. Nothing of it is executed.

    None where it cannot be recorded: ``queue`` returned False, or did something that a recording forbids.
    """
    builder = stream.create_graph_builder()
    try:
        # Other threads go on allocating meanwhile. Of this one what a graph cannot hold, such as a copy that is done at
        # once, ends the recording; a relaxed one would go on without it, and its replays with old values.
        builder.begin_building(mode="thread_local")
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
