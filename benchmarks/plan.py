"""What is measured in every round, in which order."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.photos import SIZES, Size
from benchmarks.results import Competitor, Part
from benchmarks.rounds import Plan
from onestream.measure.load.perf_analyzer import Load, Transport

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
QUICK = ServedPlan(quick=True, rounds=2, duration_s=1.5, trial_rounds=1, concurrencies=(1, 8), cpu_time_passes=2)


def competitors(pipeline: str) -> tuple[Competitor, ...]:
    """What is measured at every point: the plain ensemble, and both forms of a pipeline."""
    return ("plain", pipeline, f"{pipeline}_fused")


def int8_pipeline(pipeline: str) -> str:
    """The name of the same pipeline with its network in int8, whose models stand beside those in float32."""
    return f"{pipeline}_int8"


def in_int8(pipeline: str) -> Competitor:
    """The fused form of that one."""
    return f"{int8_pipeline(pipeline)}_fused"


def unbounded_pipeline(pipeline: str) -> str:
    """The name of the same pipeline with queues without bounds, ``max_queue_size: 0``."""
    return f"{pipeline}_unbounded"


def unbounded(pipeline: str) -> tuple[Competitor, Competitor]:
    """Both forms of that one."""
    return unbounded_pipeline(pipeline), f"{unbounded_pipeline(pipeline)}_fused"


def variants(pipeline: str) -> tuple[Competitor, ...]:
    """What is ours beside both forms as they are generated."""
    return (in_int8(pipeline), *unbounded(pipeline))


def at_main_load(pipeline: str, *, cascade: bool = False) -> tuple[Competitor, ...]:
    """What is measured at concurrency 8 by gRPC; a cascade only as it is generated."""
    return ("plain_default", *competitors(pipeline), *(() if cascade else variants(pipeline)))


@dataclass(frozen=True, slots=True)
class PlannedLoad:
    """A load on a part of the pipeline, put on every competitor in turn."""

    load: Load
    competitors: tuple[Competitor, ...]
    transport: Transport = "grpc"
    part: Part = "whole"


def points(plan: ServedPlan, pipeline: str, *, rate: int, cascade: bool = False) -> list[PlannedLoad]:
    """The points of one size. ``rate`` is in requests per second. A cascade has no model for preprocessing alone."""
    every, most = competitors(pipeline), at_main_load(pipeline, cascade=cascade)
    concurrencies = [Load(kind="concurrency", value=value) for value in plan.concurrencies]
    # By shared memory, since inside a pipeline these pixels do not travel to a client.
    alone = PlannedLoad(MAIN_LOAD, ("plain", pipeline), transport="grpc+shm", part="preprocess")
    return [
        *(PlannedLoad(load, most if load == MAIN_LOAD else every) for load in concurrencies),
        PlannedLoad(Load(kind="rate", value=rate), every),
        PlannedLoad(MAIN_LOAD, every, transport="http"),
        PlannedLoad(MAIN_LOAD, every, transport="grpc+shm"),
        *([] if cascade else [alone]),
    ]
