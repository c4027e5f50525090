"""What runs write down: every raw number, and what it was measured on. Of a GPU: ``gpu.results``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

from benchmarks.photos import Photo, Size
from benchmarks.result_files import FROZEN, Run
from onestream.measure.load.perf_analyzer import Export, Load, Transport
from onestream.measure.spread import Spread, ratio

SCHEMA = 1
FILE_NAME = "results.json"
TRAINING, AUGMENTATION, OVERLOAD, READING = "training.json", "augmentation.json", "overload.json", "reading.json"
VIDEO, STREAMS, BOXES, QUANTIZATION = "video-clips.json", "streams.json", "boxes.json", "quantization.json"
SCALE_OUT, HOSTILE, ENGINES, PATCHES = "scale-out.json", "hostile.json", "engines.json", "patches.json"
IN_PROCESS, ON_RAY, BULK = "in process", "bulk --ray", "bulk"
"""What ``scale_out`` compares."""
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
    """CPU milliseconds per image in one pass over the photos; see ``cpu_time``."""

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


class Results(Run):
    """Everything of one run of ``pipeline``. ``plain_setting`` is the best setting of the plain competitor by size."""

    format: int = SCHEMA
    pipeline: str = "classify"
    quick: bool
    seed: int
    rounds: int
    duration_s: float
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

    def measured_at(self, where: Where) -> list[Competitor]:
        """Who was measured at a point, in the order of its first round."""
        return list(dict.fromkeys(one.competitor for one in self.served if one.where == where))

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


class CaseResult(BaseModel):
    """One comparison at one photo size: images/s of each loader by round, the first loader being ours.

    ``differences``: mean difference of each loader's images from ours, in units of the output.
    """

    model_config = FROZEN

    name: str
    size: Size
    images: int
    images_per_s: dict[str, list[float]]
    differences: dict[str, float]

    def ours_over(self, other: str) -> Spread | None:
        """Our images/s divided by another loader's, round by round."""
        ours, theirs = self.images_per_s["ours"], self.images_per_s[other]
        return ratio(dict(enumerate(ours)), dict(enumerate(theirs)))


class Parity(BaseModel):
    """DALI against the reference after the crop: levels, shares of the values, images with another best class."""

    model_config = FROZEN

    images: int
    largest_level: int
    share_equal: float
    share_within_one: float
    flipped: int


class LoaderResults(Run):
    """A run that compares loaders."""

    workers: int
    rounds: int
    cases: list[CaseResult]


class TrainingResults(LoaderResults):
    """With the share of the images of each size for which the loader gives what serving computes, bit by bit.

    ``resident_mib`` and ``growth`` are of a soak that earlier runs had.
    """

    equal_to_serving: dict[Size, float]
    parity: dict[Size, Parity]
    resident_mib: tuple[float, ...] = ()
    growth: float = 0.0


Variant = Literal["bounded", "unbounded"]
VARIANTS: tuple[Variant, ...] = ("bounded", "unbounded")


class OfferedLoad(BaseModel):
    """One run at ``share`` of the capacity of its round. Latencies are in milliseconds, None where there were none.

    ``goodput_per_s`` counts answers within the deadline; ``refused_per_s`` UNAVAILABLE; ``expired_per_s`` what got
    nothing within the deadline. ``sent_late`` requests left the load generator more than 50 ms after they were due.
    """

    model_config = FROZEN

    round: int
    form: str
    variant: Variant
    share: float
    capacity_per_s: float
    offered_per_s: float
    goodput_per_s: float
    refused_per_s: float
    expired_per_s: float
    failed: int
    failure: str
    sent_late: int
    p50_ms: float | None
    p99_ms: float | None
    refused_p50_ms: float | None
    refused_p99_ms: float | None

    def __str__(self) -> str:
        p99 = "-" if self.p99_ms is None else f"{self.p99_ms:.0f} ms"
        return (
            f"{self.form}, {self.variant}, {self.share:g} × capacity: {self.offered_per_s:.0f}/s offered, "
            f"{self.goodput_per_s:.0f} answered (p99 {p99}), {self.refused_per_s:.0f} refused, "
            f"{self.expired_per_s:.0f} too late"
        )


class Capacity(BaseModel):
    """Images per second to 8 callers who wait for their answers, in one round."""

    model_config = FROZEN

    round: int
    form: str
    variant: Variant
    per_s: float


class OverloadResults(Run):
    """A run. ``load_cores`` are the load generator's own, 0 where it shared the server's."""

    server_cores: int
    load_cores: int
    rounds: int
    seconds: float
    deadline_s: float
    capacities: list[Capacity]
    points: list[OfferedLoad]

    def cost(self, form: str) -> Spread:
        """Capacity with bounds, divided by that without."""
        per_s = {(one.round, one.variant): one.per_s for one in self.capacities if one.form == form}
        numbers = sorted({number for number, _ in per_s})
        return Spread.of([per_s[number, "bounded"] / per_s[number, "unbounded"] for number in numbers])

    def of(self, form: str, variant: Variant, share: float) -> list[OfferedLoad]:
        """The rounds of one point."""
        return [one for one in self.points if (one.form, one.variant, one.share) == (form, variant, share)]

    @property
    def forms(self) -> list[str]:
        """In the order of measuring."""
        return list(dict.fromkeys(one.form for one in self.points))

    @property
    def shares(self) -> list[float]:
        """Of the capacity, ascending."""
        return sorted({one.share for one in self.points})


class LineRead(BaseModel):
    """A rendered line, and what each reader says that it is."""

    model_config = FROZEN

    text: str
    font: str
    height_px: int
    read: dict[str, str]


class Difference(BaseModel):
    """A line that two readers find at the same place and read in two ways."""

    model_config = FROZEN

    picture: str
    one: str
    other: str


class Compared(BaseModel):
    """Two readers on the same pictures. ``lines`` are the other's, of which ``equal`` have the same text in the first.

    ``rendered`` and ``rendered_equal`` are the same of pictures with rendered text, where lines that are found in the
    photo beside it count too. ``only_one`` and ``only_other`` count lines for which the other reader has none at that
    place.
    """

    model_config = FROZEN

    one: str
    other: str
    pictures: int
    lines: int
    equal: int
    rendered: int
    rendered_equal: int
    only_one: int
    only_other: int
    differences: list[Difference]


class ReadingResults(Run):
    """A run. ``settings`` are what rapidocr was told."""

    seed: int
    settings: dict[str, str | int | float | bool]
    lines: list[LineRead]
    compared: list[Compared]
