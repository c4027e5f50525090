"""What is measured in every round, in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.photos import SIZES, Size
from benchmarks.results import Competitor, Part
from benchmarks.rounds import Plan
from onestream.measure.load.perf_analyzer import Load, Transport
from onestream.serving.pipeline import CpuPrecision

MAIN_LOAD = Load(kind="concurrency", value=8)
ONE_AT_A_TIME = Load(kind="concurrency", value=1)
SEED = 20

RATE_SHARE = 0.7
"""The open-loop rate, as a share of what the plain competitor can do at concurrency 8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPlan(Plan):
    """How much is measured.

    ``trial_rounds`` are for the choice of the plain competitor's setting; ``cpu_time_passes`` are over the photos, in
    each round.
    """

    quick: bool
    trial_rounds: int
    concurrencies: tuple[int, ...]
    cpu_time_passes: int
    sizes: tuple[Size, ...] = SIZES


FULL = ServedPlan(quick=False, rounds=5, duration_s=6.0, trial_rounds=2, concurrencies=(1, 4, 8, 16), cpu_time_passes=4)
QUICK = ServedPlan(quick=True, rounds=2, duration_s=2.5, trial_rounds=1, concurrencies=(1, 8), cpu_time_passes=2)


@dataclass(frozen=True, slots=True)
class Change:
    """A pipeline of ours with something changed, whose fused form is measured at concurrency 8 by gRPC.

    Its name is the pipeline's and ``suffix``. It is compared with the change ``against``, or with the pipeline as it
    is. ``serving`` and ``decode`` are merged into those of the pipeline file.
    """

    suffix: str
    label: str
    against: Change | None = None
    precision: CpuPrecision = "float32"
    serving: Mapping[str, Any] = field(default_factory=dict)
    decode: Mapping[str, Any] = field(default_factory=dict)

    def pipeline(self, pipeline: str) -> str:
        """The name of the pipeline with this change."""
        return f"{pipeline}_{self.suffix}"

    def fused(self, pipeline: str) -> Competitor:
        """Its fused form."""
        return f"{self.pipeline(pipeline)}_fused"

    def baseline(self, pipeline: str) -> Competitor:
        """The fused form that it is compared with."""
        return f"{pipeline}_fused" if self.against is None else self.against.fused(pipeline)


_OPENVINO = {"cpu": {"engine": "openvino"}}
INT8 = Change("int8", "in int8", precision="int8")
BF16 = Change("bf16", "in bf16 by OpenVINO", precision="bf16", serving=_OPENVINO)
OPENVINO_INT8 = Change("openvino_int8", "in int8 by OpenVINO", INT8, "int8", serving=_OPENVINO)
SCALED_INT8 = Change(
    "scaled_int8", "in int8 with `dct_scaling`", INT8, "int8", {"gpu": {"decode": "cpu"}}, {"dct_scaling": True}
)
UNBOUNDED = Change("unbounded", "with queues without bounds", serving={"max_queue_size": 0})
CHANGES = (INT8, BF16, OPENVINO_INT8, SCALED_INT8, UNBOUNDED)


def competitors(pipeline: str) -> tuple[Competitor, ...]:
    """What is measured at every point: the plain ensemble, and both forms of a pipeline."""
    return ("plain", pipeline, f"{pipeline}_fused")


@dataclass(frozen=True, slots=True)
class PlannedLoad:
    """A load on a part of the pipeline, put on every competitor in turn."""

    load: Load
    competitors: tuple[Competitor, ...]
    transport: Transport = "grpc"
    part: Part = "whole"


def points(
    plan: ServedPlan, pipeline: str, changes: Sequence[Change], *, rate: int, cascade: bool = False
) -> list[PlannedLoad]:
    """The points of one size. ``rate`` is in requests per second. A cascade has no model for preprocessing alone."""
    every = competitors(pipeline)
    most = ("plain_default", *every, *(change.fused(pipeline) for change in changes))
    # By shared memory, since inside a pipeline these pixels do not travel to a client.
    alone = PlannedLoad(MAIN_LOAD, ("plain", pipeline), transport="grpc+shm", part="preprocess")
    concurrencies = [Load(kind="concurrency", value=value) for value in plan.concurrencies]
    return [
        *(PlannedLoad(load, most if load == MAIN_LOAD else every) for load in concurrencies),
        PlannedLoad(Load(kind="rate", value=rate), every),
        PlannedLoad(MAIN_LOAD, every, transport="http"),
        PlannedLoad(MAIN_LOAD, every, transport="grpc+shm"),
        *([] if cascade else [alone]),
    ]
