"""What a run on a GPU writes down: every raw measurement, and why anything is missing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from pydantic import BaseModel, Field

from benchmarks.photos import Size
from benchmarks.result_files import FROZEN, Run, slug_of, write

FILE_NAME = "gpu.json"
Part = Literal["preprocess", "decode alone", "network alone", "fused", "served"]
Family = Literal["CV-CUDA", "DALI on the GPU", "ours on the CPU", "OpenCV"]
FAMILIES: tuple[Family, ...] = get_args(Family)
Rounds = dict[int, float]

_LIBRARIES = (
    "cvcuda", "nvidia-dali", "nvidia-nvimgcodec", "nvidia-nvjpeg", "tensorrt", "cuda-core", "cuda-bindings", "numpy",
    "onnxruntime", "opencv", "pillow",
)  # fmt: skip


class Rate(BaseModel):
    """One measurement, in images per second.

    ``setting`` names the competitor (*preprocess*), the precision (*fused*, *network alone*) or the model (*served*);
    ``family`` the library of a competitor. ``size`` is None where no photo is read. ``in_flight``: batches, and for
    *served* requests, at the same time. ``decode_threads``: the CPU's of each decoder, where they are compared.
    """

    model_config = FROZEN

    round: int
    part: Part
    setting: str
    family: Family | None = None
    size: Size | None
    batch: int
    in_flight: int
    images_per_s: float
    decode_threads: int | None = None


class Agreement(BaseModel):
    """How far one setting is from the reference, before anything is timed.

    ``mean_levels`` (mean) and ``max_level`` (worst value) are differences of samples in 8-bit levels, None for *fused*,
    which returns scores. ``flipped``: photos with another best class, ties left out; None where no network was there.
    ``allowed``: what was asked for, in words; ``agrees``: whether it was met.
    """

    model_config = FROZEN

    part: Part
    setting: str
    size: Size
    photos: int
    mean_levels: float | None
    max_level: float | None
    flipped: int | None
    allowed: str
    agrees: bool


class Steps(BaseModel):
    """GPU milliseconds of each step of a fused batch, one batch in flight: medians over the batches.

    ``waits``: host waits of our own code per batch.
    """

    model_config = FROZEN

    precision: str
    size: Size
    batch: int
    batches: int
    milliseconds: dict[str, float]
    waits: float


class PhotoSet(BaseModel):
    """The photos of one size: how many, and their mean size in units of 1000 bytes."""

    model_config = FROZEN

    size: Size
    count: int
    mean_kilobytes: float


class GpuResults(Run):
    """Everything of one run. ``not_measured`` says by name what is missing and why; ``engine`` is what ran the network.

    ``rounds`` were planned; fewer measurements of a part mean that its time was up.
    """

    format: Literal[1] = 1
    gpu: str
    compute_capability: tuple[int, int]
    cores: int
    seed: int
    rounds: int
    duration_s: float
    photos: list[PhotoSet]
    engine: str | None = None
    agreement: list[Agreement] = Field(default_factory=list)
    rates: list[Rate] = Field(default_factory=list)
    steps: list[Steps] = Field(default_factory=list)
    not_measured: dict[str, str] = Field(default_factory=dict)

    @property
    def slug(self) -> str:
        """The folder's name, from the GPU's, such as ``nvidia-h100-80gb-hbm3``."""
        return slug_of(self.gpu)

    def rounds_of(
        self,
        part: Part,
        setting: str,
        size: Size | None,
        *,
        batch: int,
        in_flight: int,
        decode_threads: int | None = None,
    ) -> Rounds:
        """Images per second by round; empty where that was not measured."""
        wanted = (part, setting, size, batch, in_flight, decode_threads)
        return {
            one.round: one.images_per_s
            for one in self.rates
            if (one.part, one.setting, one.size, one.batch, one.in_flight, one.decode_threads) == wanted
        }

    def fastest(
        self,
        part: Part,
        size: Size | None,
        *,
        setting: str | None = None,
        family: Family | None = None,
        batch: int | None = None,
    ) -> Rounds:
        """The rounds of what has the highest median among what the arguments name; empty where that is nothing.

        ``setting``, ``family`` and ``batch`` limit the choice, None to nothing.
        """
        keys = {
            (one.setting, one.batch, one.in_flight, one.decode_threads)
            for one in self.rates
            if (one.part, one.size) == (part, size)
            and setting in (None, one.setting)
            and family in (None, one.family)
            and batch in (None, one.batch)
        }
        found = [
            self.rounds_of(part, name, size, batch=of, in_flight=number, decode_threads=threads)
            for name, of, number, threads in sorted(keys, key=str)
        ]
        return max(found, key=lambda rounds: float(np.median(list(rounds.values()))), default={})

    @property
    def rounds_made(self) -> int:
        """The most rounds that any part was given time for."""
        return max((one.round + 1 for one in self.rates), default=0)


class Kept:
    """The results of a run. Their file is written with each figure, so that a crash loses none.

    ``missing`` is what ``not_measured`` will say, and may still change.
    """

    def __init__(self, results: GpuResults, path: Path, missing: dict[str, str]) -> None:
        self.results = results
        self._path, self._missing = path, missing

    def add(
        self,
        *,
        engine: str | None = None,
        agreement: Sequence[Agreement] = (),
        rates: Sequence[Rate] = (),
        steps: Sequence[Steps] = (),
    ) -> None:
        """Add to the results, and write them."""
        was = self.results
        update = {
            "engine": engine or was.engine,
            "agreement": [*was.agreement, *agreement],
            "rates": [*was.rates, *rates],
            "steps": [*was.steps, *steps],
            "not_measured": dict(self._missing),
        }
        self.results = was.model_copy(update=update)
        write(self._path, self.results)


def library_versions() -> dict[str, str]:
    """Versions of the libraries that do the work, by package, and of the driver."""
    found = {
        name: each.version
        for each in metadata.distributions()
        if (name := (each.metadata["Name"] or "").lower().replace("_", "-")).startswith(_LIBRARIES)
    }
    driver = Path("/proc/driver/nvidia/version")
    if driver.exists() and (number := re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", driver.read_text())):
        found["driver"] = number.group(1)
    return dict(sorted(found.items()))
