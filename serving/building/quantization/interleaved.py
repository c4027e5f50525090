"""Times engines against each other: one run of each after the other, again and again, so that noise meets all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from onestream.serving.engine.base import Engine

_LEAST_ROUNDS, _MOST_ROUNDS = 5, 50


def medians_ms(engines: Sequence[Engine], pixels: npt.NDArray[np.uint8], *, budget_s: float) -> list[float]:
    """The median time of a run of each engine with ``pixels``, uint8 (batch, height, width, channels), in milliseconds.

    It takes about ``budget_s``, but at least 5 rounds and at most 50 after one that is not counted.
    """
    times: list[list[float]] = [[] for _ in engines]
    began = time.perf_counter()
    for number in range(_MOST_ROUNDS + 1):
        if number > _LEAST_ROUNDS and time.perf_counter() - began > budget_s:
            break
        for engine, own in zip(engines, times, strict=True):
            start = time.perf_counter()
            engine.run(pixels)
            own.append(time.perf_counter() - start)
    return [1000 * statistics.median(own[1:]) for own in times]
