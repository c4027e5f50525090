"""What every part of a run shares: the plan, the GPU, the photos, and what is missing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from benchmarks.gpu.agreement import Expected, Network
from benchmarks.gpu.measure import Photos, Workload, measure, reason
from benchmarks.gpu.results import Kept
from benchmarks.photos import SEED, SIZES, Size, make_photos
from benchmarks.rounds import Plan
from onestream.preprocess.cuda.device import Device
from onestream.serving.pipeline import Pipeline

Only = Literal["fused", "preprocess", "served"]
PARTS: tuple[Only, ...] = get_args(Only)
_ENDS: dict[Only, float] = {"fused": 0.4, "preprocess": 0.8, "served": 1.0}
"""Share of the whole time after which a part begins no further round; the last one has what is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPlan(Plan):
    """What is measured, and how often.

    ``settings``: a pattern of the ways to preprocess that are compared. ``photos``: how many of each size;
    ``compared``: how many of these must agree. A measurement of a served model lasts ``served_s``.
    """

    rounds: int = 3
    duration_s: float = 0.3
    parts: tuple[Only, ...] = PARTS
    sizes: tuple[Size, ...] = SIZES
    settings: str = ""
    batches: tuple[int, ...] = (1, 8, 64, 256)
    fused_batches: tuple[int, ...] = (64, 256)
    served_s: float = 4.0
    minutes: float = 7.0
    photos: int = 192
    compared: int = 24


@dataclass(frozen=True, slots=True)
class Setup:
    """One run's surroundings. ``network`` is None where it is not built; ``missing`` says what is not measured."""

    plan: GpuPlan
    device: Device
    cores: int
    pipeline: Pipeline
    network: Path | None
    repository: Path
    photos: Sequence[Photos]
    on_cpu: Network | None
    expected: Sequence[Expected]
    missing: dict[str, str]
    progress: Callable[[str], None]
    began: float = field(default_factory=time.monotonic)

    def measure(self, part: Only, points: Sequence[Workload], kept: Kept, *, share: float = 1.0) -> None:
        """The points in interleaved rounds, until this share of the part's time is up; each is kept at once."""
        end = 1.0 if part == self.plan.parts[-1] else _ENDS[part]
        measure(
            points,
            rounds=self.plan.rounds,
            duration_s=self.plan.duration_s,
            deadline=self.began + self.plan.minutes * 60 * end * share,
            missing=self.missing,
            progress=self.progress,
            keep=lambda rate: kept.add(rates=[rate]),
        )


def set_up(
    plan: GpuPlan,
    device: Device,
    *,
    cores: int,
    pipeline: Pipeline,
    network: Path,
    repository: Path,
    photos_folder: Path,
    progress: Callable[[str], None],
) -> Setup:
    """Make the photos and run the reference. ``network`` is the served network's file, which may be missing."""
    began = time.monotonic()
    missing: dict[str, str] = {}
    progress(f"photos: making {plan.photos} of each size")
    sources = sorted(photos_folder.glob("*.jpg"))
    photos = [
        Photos(size, make_photos(size, plan.photos, sources=sources, seed=SEED, threads=cores), seed=SEED)
        for size in plan.sizes
    ]
    definition = pipeline.preprocess
    on_cpu = None
    if not network.exists():
        missing["best classes, and everything with the network"] = "the network is not built; run: onestream build"
    else:
        try:
            on_cpu = Network(network, definition)
        except Exception as error:  # a missing ONNX Runtime, or a file that it cannot load
            missing["best classes"] = reason(error)
    progress("reference: computing what all must agree with")
    expected = [
        Expected.of(one.size, one.contents[: plan.compared], definition, pipeline.limits, on_cpu) for one in photos
    ]
    return Setup(
        plan=plan,
        device=device,
        cores=cores,
        pipeline=pipeline,
        network=network if network.exists() else None,
        repository=repository,
        photos=photos,
        on_cpu=on_cpu,
        expected=expected,
        missing=missing,
        progress=progress,
        began=began,
    )
