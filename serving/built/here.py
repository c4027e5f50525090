"""Whether less precision is faster than float32 on the machine that serves a network: measured by running both."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from onestream.preprocess.errors import BackendMissing
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.engine.cpu import CpuEngine
from onestream.serving.engine.network_files import float_beside
from onestream.serving.engine.quantization import Price, this_processor
from onestream.serving.engine.table import CPU_ENGINES
from onestream.serving.errors import BadNetwork
from onestream.wire.tensor_names import PIXELS

_LEAST_ROUNDS, _MOST_ROUNDS = 5, 50


def medians_ms(engines: Sequence[CpuEngine], pixels: npt.NDArray[np.uint8], *, budget_s: float) -> list[float]:
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
            engine.run({PIXELS: pixels})
            own.append(time.perf_counter() - start)
    return [1000 * statistics.median(own[1:]) for own in times]


_BUDGET_S = 1.0


@dataclass(frozen=True, slots=True)
class Here:
    """Milliseconds of one run with one picture on this machine."""

    precision: str
    ms: float
    float32_ms: float

    @classmethod
    def measured(cls, network: Path, price: Price, *, threads: int) -> Here:
        """Run a network in int8 or bfloat16 and the one in float32 beside it by turns, for about a second.

        Raises ``BadNetwork`` where one of them does not run, ``preprocess.BackendMissing`` without their engine.
        """
        # Noise will do: the time of a run does not depend on what the pixels show.
        pixels = np.random.default_rng(0).integers(0, 256, (1, *price.speed.pixels), dtype=np.uint8)
        engine = CPU_ENGINES[price.engine].on_cpu()
        try:
            engines = [engine(file, threads=threads) for file in (network, float_beside(network))]
            return cls(price.precision, *medians_ms(engines, pixels, budget_s=_BUDGET_S))
        except BackendMissing:
            raise
        except Exception as error:  # ONNX Runtime's exceptions share no public base class
            raise BadNetwork(
                f"{network.name} and {float_beside(network).name} cannot be timed here, so it is unknown whether "
                f"{price.precision} gains on this processor: {type(error).__name__}. Build them again: onestream build "
                f"--precision {price.precision} --calibrate PHOTOS"
            ) from None

    @property
    def gains(self) -> bool:
        """Whether less precision is faster."""
        return self.ms < self.float32_ms

    def __str__(self) -> str:
        return f"{self.precision} takes {self.ms:.2f} ms an image here, float32 {self.float32_ms:.2f} ms"


def price_of(network: Path) -> Price:
    """What a network in int8 or bfloat16 carries. Raises ``BadNetwork`` where that, or the file, cannot be read."""
    try:
        found = OnnxRuntimeEngine(network, threads=1).price
    except Exception as error:  # ONNX Runtime's exceptions share no public base class
        raise BadNetwork(f"{network.name} cannot be read: {type(error).__name__}") from None
    if found is None:
        raise BadNetwork(
            f"{network.name} lies beside a network in float32, and does not say what it costs; an onestream of "
            "another version built it"
        )
    return found


def warning(network: Path, price: Price, *, threads: int) -> str:
    """What to say where another processor timed a network and it gains nothing on this one; empty elsewhere.

    A network that cannot be timed is said too: what is served does not need the one in float32.
    """
    if this_processor() == price.speed.processor or not float_beside(network).exists():
        return ""
    try:
        here = Here.measured(network, price, threads=threads)
    except BadNetwork as error:
        return str(error)
    if here.gains:
        return ""
    built = price.speed
    return (
        f"{here} on {this_processor()}; it was built on {built.processor}, where they took {built.ms:.2f} and "
        f"{built.float32_ms:.2f} ms. Build it here in float32: onestream build --precision float32"
    )
