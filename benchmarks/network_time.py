"""CPU time of a fused model's networks, and of everything else that it does, for one picture after the other.

Measured as ``cpu_time`` is, in a process of its own on one core: what ``in_process`` runs, whose networks count their
own time. *everything but the networks* is the rest: decoding, regions, resizing, decoding of outputs, the answer.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt

from benchmarks import in_process
from onestream.serving.engine import OnnxRuntimeEngine

Timed = Literal["networks", "everything but the networks"]
TIMED: tuple[Timed, ...] = get_args(Timed)

_TIMEOUT_S = 300.0


class TimedEngine(OnnxRuntimeEngine):
    """Adds the CPU time of every run to ``used_s``. With one thread ONNX Runtime works in the thread that calls it."""

    used_s: ClassVar[float] = 0.0

    def run(self, pixels: npt.NDArray[np.uint8]) -> dict[str, npt.NDArray[Any]]:
        """See ``OnnxRuntimeEngine.run``."""
        began = time.thread_time()
        try:
            return super().run(pixels)
        finally:
            TimedEngine.used_s += time.thread_time() - began


def measure(fused: Path, photos: Sequence[bytes], *, passes: int) -> list[dict[str, float]]:
    """Milliseconds of CPU time per image, one entry for every pass over the photos, after one that does not count.

    ``fused`` is the folder of the fused model. Raises ``multiprocessing.TimeoutError`` after five minutes.
    """
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply_async(_measure, (fused, tuple(photos), passes)).get(_TIMEOUT_S)


def _measure(fused: Path, photos: tuple[bytes, ...], passes: int) -> list[dict[str, float]]:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    run = in_process.open_fused(fused, engine=TimedEngine)
    measured = []
    for _ in range(1 + passes):
        networks_s, began = TimedEngine.used_s, time.process_time()
        for photo in photos:
            run([photo])
        whole_s, networks_s = time.process_time() - began, TimedEngine.used_s - networks_s
        of_pass = zip(TIMED, (networks_s, whole_s - networks_s), strict=True)
        measured.append({str(name): seconds * 1000 / len(photos) for name, seconds in of_pass})
    return measured[1:]
