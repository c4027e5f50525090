"""What a run of the benchmarks writes down: every raw number, and what it was measured on."""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import psutil
from pydantic import BaseModel, ConfigDict

from benchmarks.cpu_time import Timed
from benchmarks.photos import Photo, Size
from onestream.measure.load.perf_analyzer import Export, Load, Transport

SCHEMA = 1
FILE_NAME = "results.json"
Competitor = Literal["plain", "plain_default", "classify", "classify_fused"]
"""*plain* is the plain ensemble in its fastest setting, *plain_default* with Triton's and ONNX Runtime's defaults."""
Part = Literal["whole", "preprocess"]

_PACKAGES = ("nvidia-dali-cuda120", "nvidia-pytriton", "numpy", "onnxruntime", "pillow")
_Frozen = ConfigDict(frozen=True, extra="forbid")


class Machine(BaseModel):
    """Where it was measured."""

    model_config = _Frozen

    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    system: str

    @property
    def slug(self) -> str:
        """A folder name, such as ``amd-epyc-2-cores``."""
        return re.sub(r"[^a-z0-9]+", "-", f"{self.cpu} {self.cores} cores".lower()).strip("-")


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

    model_config = _Frozen

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

    model_config = _Frozen

    round: int
    size: Size
    batch: int
    processes: int
    images_per_s: float


class CpuTime(BaseModel):
    """CPU milliseconds per image in one pass over the photos; see ``cpu_time``."""

    model_config = _Frozen

    round: int
    size: Size
    milliseconds: dict[Timed, float]


class PlainTrial(BaseModel):
    """One measurement by which the plain competitor's setting is chosen."""

    model_config = _Frozen

    round: int
    size: Size
    setting: str
    inferences_per_s: float


class Agreement(BaseModel):
    """Largest difference of a score between each competitor and the plain one, over all photos of a size."""

    model_config = _Frozen

    size: Size
    tolerance: float
    best_classes_equal: int
    photos: int
    largest_difference: dict[str, float]


class Results(BaseModel):
    """Everything of one run. ``plain_setting`` is the best setting of the plain competitor by size."""

    model_config = _Frozen

    format: int = SCHEMA
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


def this_machine() -> Machine:
    """Describe the machine; nothing of it names a host or a user."""
    release = platform.freedesktop_os_release()
    return Machine(
        cpu=_cpu_model(),
        cores=psutil.cpu_count() or 1,
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        kernel=f"{platform.system()} {platform.release()} {platform.machine()}",
        system=release.get("PRETTY_NAME", release["NAME"]),
    )


def _cpu_model() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found.group(1).strip() if found else platform.machine()


def library_versions() -> dict[str, str]:
    """Versions of Python and of the libraries that do the work."""
    return {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}}


def commit(root: Path) -> str:
    """The commit that is checked out, with ``+changes`` where files differ from it; *unknown* outside of git."""
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True)
        changes = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("+changes" if changes.stdout.strip() else "")


def read(folder: Path) -> list[Results]:
    """All results below a folder, by path."""
    return [Results.model_validate_json(path.read_text()) for path in sorted(folder.glob(f"*/{FILE_NAME}"))]
