"""CUDA graphs: the batch sizes for which there are some, and the work of a stream that is recorded and replayed.

Triton's TensorRT backend and our sessions have the same sizes. A batch of another size takes the next one's graph: its
last rows hold what was there before, and nobody reads theirs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import cuda.core
    import cuda.core.graph

_EVERY_GPU = (1, 2, 4, 8, 16, 32)
_SMALL = 8
"""Above it a plan has a second optimization profile."""


def batch_sizes(largest: int) -> tuple[int, ...]:
    """1, 2, 4, 8, 16, 32, 48, 64, 96, 128 and so on, and ``largest``, which is at least 1: 16 sizes for 1024."""
    sizes, power = list(_EVERY_GPU), _EVERY_GPU[-1]
    while power < largest:
        sizes += [power + power // 2, 2 * power]
        power *= 2
    return (*(size for size in sizes if size < largest), largest)


def next_size(batch: int, sizes: tuple[int, ...]) -> int:
    """The smallest of ``sizes`` that holds a batch."""
    return sizes[bisect_left(sizes, batch)]


def tuned_sizes(largest: int) -> tuple[int, ...]:
    """The batch sizes that a plan's optimization profiles are tuned for, of which each takes every batch."""
    return (_SMALL, largest) if largest > _SMALL else (largest,)


def nearest(batch: int, tuned: tuple[int, ...]) -> int:
    """The index of the profile for a batch: the one tuned for the nearest size, as Triton's backend chooses."""
    return min(range(len(tuned)), key=lambda index: abs(tuned[index] - batch))


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
