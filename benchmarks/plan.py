"""What is measured in every round, in which order."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.photos import SIZES, Size
from benchmarks.results import Competitor, Part
from onestream.measure.load.perf_analyzer import Load, Transport
from onestream.measure.plan import Plan

COMPETITORS: tuple[Competitor, ...] = ("plain", "classify", "classify_fused")
AT_MAIN_LOAD: tuple[Competitor, ...] = ("plain_default", *COMPETITORS)
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


@dataclass(frozen=True, slots=True)
class PlannedLoad:
    """A load on a part of the pipeline, put on every competitor in turn."""

    load: Load
    transport: Transport = "grpc"
    part: Part = "whole"
    competitors: tuple[Competitor, ...] = COMPETITORS


def points(plan: ServedPlan, *, rate: int) -> list[PlannedLoad]:
    """The points of one size. ``rate`` is in requests per second."""
    concurrencies = [Load(kind="concurrency", value=value) for value in plan.concurrencies]
    return [
        *(PlannedLoad(load, competitors=AT_MAIN_LOAD if load == MAIN_LOAD else COMPETITORS) for load in concurrencies),
        PlannedLoad(Load(kind="rate", value=rate)),
        PlannedLoad(MAIN_LOAD, transport="http"),
        PlannedLoad(MAIN_LOAD, transport="grpc+shm"),
        # By shared memory, since inside a pipeline these pixels do not travel to a client.
        PlannedLoad(MAIN_LOAD, transport="grpc+shm", part="preprocess", competitors=("plain", "classify")),
    ]
