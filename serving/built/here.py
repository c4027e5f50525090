"""Whether a network in int8 is faster than in float32 on the machine that serves it: measured by running both."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.engine.base import Engine
from onestream.serving.engine.network_files import float_beside
from onestream.serving.engine.quantization import Quantization, this_processor
from onestream.serving.errors import BadNetwork

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


_BUDGET_S = 1.0


@dataclass(frozen=True, slots=True)
class Here:
    """Milliseconds of one run with one picture on this machine."""

    int8_ms: float
    float32_ms: float

    @classmethod
    def measured(cls, network: Path, quantization: Quantization, *, threads: int) -> Here:
        """Run a network in int8 and the one in float32 beside it by turns, for about a second.

        Raises ``BadNetwork`` where one of them does not run.
        """
        # Noise will do: the time of a run does not depend on what the pixels show.
        pixels = np.random.default_rng(0).integers(0, 256, (1, *quantization.speed.pixels), dtype=np.uint8)
        try:
            engines = [OnnxRuntimeEngine(file, threads=threads) for file in (network, float_beside(network))]
            return cls(*medians_ms(engines, pixels, budget_s=_BUDGET_S))
        except Exception as error:  # ONNX Runtime's exceptions share no public base class
            raise BadNetwork(
                f"{network.name} and {float_beside(network).name} cannot be timed here, so it is unknown whether int8 "
                f"gains on this processor: {type(error).__name__}. Build them again: onestream build --precision int8 "
                "--calibrate PHOTOS"
            ) from None

    @property
    def gains(self) -> bool:
        """Whether int8 is faster."""
        return self.int8_ms < self.float32_ms

    def __str__(self) -> str:
        return f"int8 takes {self.int8_ms:.2f} ms an image here, float32 {self.float32_ms:.2f} ms"


def price_of(network: Path) -> Quantization:
    """What a network in int8 carries. Raises ``BadNetwork`` where that, or the file, cannot be read."""
    try:
        found = OnnxRuntimeEngine(network, threads=1).quantization
    except Exception as error:  # ONNX Runtime's exceptions share no public base class
        raise BadNetwork(f"{network.name} cannot be read: {type(error).__name__}") from None
    if found is None:
        raise BadNetwork(
            f"{network.name} lies beside a network in float32, and does not say what int8 costs; an onestream of "
            "another version built it"
        )
    return found


def warning(network: Path, quantization: Quantization, *, threads: int) -> str:
    """What to say where another processor timed a network and int8 gains nothing on this one; empty elsewhere.

    A network that cannot be timed is said too: what is served is the one in int8, which does not need the other.
    """
    if this_processor() == quantization.speed.processor or not float_beside(network).exists():
        return ""
    try:
        here = Here.measured(network, quantization, threads=threads)
    except BadNetwork as error:
        return str(error)
    if here.gains:
        return ""
    built = quantization.speed
    return (
        f"{here} on {this_processor()}; it was built on {built.processor}, where they took {built.int8_ms:.2f} and "
        f"{built.float32_ms:.2f} ms. Build it here in float32: onestream build --precision float32"
    )
