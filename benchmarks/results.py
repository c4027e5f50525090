"""What a run of the benchmarks writes down: every raw number, and what it was measured on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

from benchmarks.photos import Photo, Size
from benchmarks.result_files import FROZEN, Machine
from onestream.measure.load.perf_analyzer import Export, Load, Transport

SCHEMA = 1
FILE_NAME = "results.json"
Competitor = str
"""*plain* is the plain ensemble in its fastest setting, *plain_default* with Triton's and ONNX Runtime's defaults; ours
have the names of their models, such as *classify* and *classify_fused*."""
Part = Literal["whole", "preprocess"]

PACKAGES = ("nvidia-dali-cuda120", "nvidia-pytriton", "numpy", "onnxruntime", "opencv-python-headless", "pillow")
"""Those that do the work."""


@dataclass(frozen=True, slots=True)
class Where:
    """A point at which competitors are compared."""

    size: Size
    load: Load
    transport: Transport = "grpc"
    part: Part = "whole"


class Served(BaseModel):
    """One measurement of a served model.

    ``images_per_execution`` is the mean batch that Triton made for the model that runs the network (or, of
    *preprocess*, that decodes). ``server_cpu_ms`` is the CPU time of Triton and its model processes per image.
    ``others_cpu_share`` is the share of the machine that other programs used meanwhile, 0 to 1.
    """

    model_config = FROZEN

    round: int
    size: Size
    competitor: Competitor
    part: Part
    model: str
    transport: Transport
    load: Load
    export: Export
    images_per_execution: float
    server_cpu_ms: float
    others_cpu_share: float

    @property
    def where(self) -> Where:
        """What all competitors are compared at."""
        return Where(self.size, self.load, self.transport, self.part)


class InProcess(BaseModel):
    """One measurement of the same operations in process: images per second of all processes together."""

    model_config = FROZEN

    round: int
    size: Size
    batch: int
    processes: int
    images_per_s: float


class CpuTime(BaseModel):
    """CPU milliseconds per image in one pass over the photos; see ``cpu_time``, ``boxes_time`` and ``network_time``."""

    model_config = FROZEN

    round: int
    size: Size
    milliseconds: dict[str, float]


class PlainTrial(BaseModel):
    """One measurement by which the plain competitor's setting is chosen."""

    model_config = FROZEN

    round: int
    size: Size
    setting: str
    inferences_per_s: float


class Agreement(BaseModel):
    """How far each competitor agrees with the plain one over all photos of a size; see ``agreement.Agreed``."""

    model_config = FROZEN

    size: Size
    tolerance: float
    best_classes_equal: int
    photos: int
    largest_difference: dict[str, float]
    least_overlap: dict[str, float] = {}
    equal_texts: dict[str, float] = {}


class Results(BaseModel):
    """Everything of one run of ``pipeline``. ``plain_setting`` is the best setting of the plain competitor by size."""

    model_config = FROZEN

    format: int = SCHEMA
    pipeline: str = "classify"
    started_utc: str
    quick: bool
    seed: int
    rounds: int
    duration_s: float
    commit: str
    machine: Machine
    versions: dict[str, str]
    photos: list[Photo]
    agreement: list[Agreement]
    plain_setting: dict[Size, str]
    plain_trials: list[PlainTrial]
    served: list[Served]
    in_process: list[InProcess]
    cpu_time: list[CpuTime]

    @property
    def fused(self) -> Competitor:
        """Our form that does all in one process."""
        return f"{self.pipeline}_fused"

    def rounds_of(self, value: Callable[[Served], float], competitor: Competitor, where: Where) -> dict[int, float]:
        """A quantity of one competitor at one point, by round; empty where that was not measured."""
        return {one.round: value(one) for one in self.served if one.competitor == competitor and one.where == where}

    def limit(self, size: Size) -> dict[int, float]:
        """Images per second in process by round, at the batch size that was fastest over all rounds."""
        by_batch: dict[int, dict[int, float]] = {}
        for one in self.in_process:
            if one.size == size:
                by_batch.setdefault(one.batch, {})[one.round] = one.images_per_s
        return max(by_batch.values(), key=lambda rounds: sum(rounds.values()), default={})

    def loads(self, size: Size) -> list[Load]:
        """The loads that were measured over plain gRPC: concurrencies in increasing order, then the rate."""
        found = {one.load for one in self.served if one.size == size and one.transport == "grpc"}
        return sorted(found, key=lambda load: (load.kind, load.value))
