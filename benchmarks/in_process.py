"""The limit: the same operations without a server, in one process per core, each with one thread.

Every process runs what the fused model runs: the definition compiled for DALI up to its pixels, the network with the
definition's last steps at its door, postprocessing; of a cascade, its stages. It reads no requests and builds no
responses.
"""

from __future__ import annotations

import multiprocessing
import queue
import time
from collections.abc import Callable, Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from onestream.postprocess.kinds import Tensors
from onestream.serving.models.in_process import InProcess

_START_TIMEOUT_S = 120.0
_WARMUP_BATCHES = 5


def open_fused(model: Path) -> Callable[[Sequence[bytes]], list[Tensors]]:
    """What one process runs: encoded images to the outputs for each. ``model`` is the folder of the fused model."""
    fused = InProcess(model, threads=1)

    def run(images: Sequence[bytes]) -> list[Tensors]:
        outcomes = []
        for outcome in fused(images):
            if isinstance(outcome, Exception):
                raise outcome
            outcomes.append(outcome)
        return outcomes

    return run


def measure(
    model: Path,
    photos: Sequence[bytes],
    *,
    batches: Sequence[int],
    processes: int,
    duration_s: float,
) -> dict[int, float]:
    """Images per second of all processes together, by batch size; each batch size runs for ``duration_s``.

    Raises ``RuntimeError`` where a process fails.
    """
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes)
    rates: multiprocessing.Queue[tuple[int, float]] = context.Queue()
    arguments = (model, tuple(photos), tuple(batches), duration_s, barrier, rates)
    workers = [context.Process(target=_work, args=(index, *arguments), daemon=True) for index in range(processes)]
    for worker in workers:
        worker.start()
    try:
        total = dict.fromkeys(batches, 0.0)
        for _ in range(processes * len(batches)):
            batch, rate = rates.get(timeout=_START_TIMEOUT_S + duration_s * len(batches))
            total[batch] += rate
    except queue.Empty:
        raise RuntimeError("a process of the in-process limit failed; its error is printed above") from None
    finally:
        for worker in workers:
            worker.join(5)
            worker.kill()
    return total


def _work(
    index: int,
    model: Path,
    photos: tuple[bytes, ...],
    batches: tuple[int, ...],
    duration_s: float,
    barrier: Barrier,
    rates: Any,
) -> None:
    run = open_fused(model)
    for size in batches:
        # Processes begin at different photos, so that they do not decode the same one at the same time.
        position = index * len(photos) // 2
        for _ in range(_WARMUP_BATCHES):
            run(photos[:size])
        barrier.wait(_START_TIMEOUT_S)
        began, images = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - began) < duration_s:
            run([photos[(position + i) % len(photos)] for i in range(size)])
            position += size
            images += size
        rates.put((size, images / elapsed))
