"""Runs the plan: photos, repository, server, agreement, the plain competitor's setting, then round after round."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import tritonclient.grpc as triton

from benchmarks import agreement, cpu_time, in_process
from benchmarks.competitors import (
    CLASSIFY,
    DEFAULT_PLAIN,
    ROOT,
    Contest,
    PlainSetting,
    make_repository,
    plain_settings,
)
from benchmarks.cpu_time import Usage
from benchmarks.photos import PhotoSet, Size
from benchmarks.plan import MAIN_LOAD, RATE_SHARE, SEED, PlannedLoad, ServedPlan, points
from benchmarks.result_files import begin
from benchmarks.results import (
    PACKAGES,
    Agreement,
    Competitor,
    CpuTime,
    InProcess,
    PlainTrial,
    Results,
    Served,
)
from benchmarks.rounds import rotated
from onestream.measure.load import perf_analyzer
from onestream.measure.load.perf_analyzer import Export, Load, PerfAnalyzerError, Transport
from onestream.measure.spread import Spread
from onestream.serving.server.fit import usable_cores
from onestream.serving.server.server import Server

Only = Literal["served", "in-process", "cpu-time"]
PARTS: tuple[Only, ...] = ("served", "in-process", "cpu-time")
CACHE = ROOT / ".cache" / "benchmarks"

_SETTLE_S = 0.3
_STARTUP_TIMEOUT_S = 300.0  # of about forty processes
_FEWEST_IMAGES = 60
"""Of a load, as fast as the plain competitor is: in windows with fewer perf_analyzer may find no request at all."""
_NOTABLE_SHARE = 0.05


def run(
    plan: ServedPlan,
    contest: Contest = CLASSIFY,
    *,
    parts: tuple[Only, ...] = PARTS,
    progress: Callable[[str], None] = print,
) -> Results:
    """Measure everything of a contest and return it.

    Raises ``perf_analyzer.PerfAnalyzerError``, ``Disagreement``, ``photos.PhotosMissing`` or
    ``onestream.serving.server.errors.ServerError``.
    """
    about, cores = begin((*PACKAGES, *contest.packages)), usable_cores()
    command = perf_analyzer.find_perf_analyzer() if "served" in parts else []
    progress("photos: reading, or making them")
    photos = {size: contest.pictures(size, CACHE / "photos") for size in plan.sizes}
    settings = plain_settings(cores)
    libraries = about.versions
    with tempfile.TemporaryDirectory(prefix="onestream-bench-") as folder:
        repository = Path(folder) / "repository"
        progress("repository: building ours and the plain models")
        shown = [content for size in plan.sizes for content in photos[size].contents]
        make_repository(contest, repository, settings, calibrate=shown)
        state = _Run(plan, contest, parts, progress, photos, repository / contest.fused, cores)
        if "served" in parts:
            progress("server: starting")
            with _serving(repository, command, contest.models(settings)) as served:
                libraries["tritonserver"] = served.client.get_server_metadata().version
                libraries["perf_analyzer"] = perf_analyzer.version(command)
                state.check_agreement(served, settings)
                state.choose_plain(served, settings)
                state.all_rounds(served)
        else:
            state.all_rounds(None)
    return Results(
        **about.model_dump(),
        pipeline=contest.name,
        quick=plan.quick,
        seed=SEED,
        rounds=plan.rounds,
        duration_s=max(state.duration_s(size) for size in plan.sizes),
        photos=[photo for size in plan.sizes for photo in photos[size].photos],
        agreement=state.agreement,
        plain_setting={size: str(setting) for size, setting in state.plain.items()},
        plain_trials=state.trials,
        served=state.served,
        in_process=state.in_process,
        cpu_time=state.cpu_time,
    )


@dataclass(frozen=True, slots=True)
class _Serving:
    """A running server, a client for its statistics, and the command that runs perf_analyzer."""

    server: Server
    client: triton.InferenceServerClient
    command: list[str]

    def usage(self, model: str) -> Usage:
        return Usage.now(server_pid=self.server.pid, client=self.client, model=model)

    def load(self, model: str, load: Load, transport: Transport, photos: PhotoSet, *, duration_s: float) -> Export:
        return perf_analyzer.measure(
            self.command,
            model=model,
            address=self.server.http_address if transport == "http" else self.server.grpc_address,
            transport=transport,
            load=load,
            photos=photos.perf_analyzer_input,
            duration_s=duration_s,
        )


@contextmanager
def _serving(repository: Path, command: list[str], models: list[str]) -> Iterator[_Serving]:
    with (
        Server(
            repository,
            http_port=0,
            grpc_port=0,
            metrics_port=0,
            device="cpu",
            shared_memory=True,
            models=models,
            startup_timeout_s=_STARTUP_TIMEOUT_S,
        ) as server,
        triton.InferenceServerClient(server.grpc_address) as client,
    ):
        yield _Serving(server, client, command)


@dataclass(slots=True)
class _Run:
    """One run: where things are, and what was measured so far."""

    plan: ServedPlan
    contest: Contest
    parts: tuple[Only, ...]
    progress: Callable[[str], None]
    photos: dict[Size, PhotoSet]
    fused: Path
    cores: int
    plain: dict[Size, PlainSetting] = field(default_factory=dict)
    capacity: dict[Size, float] = field(default_factory=dict)
    agreement: list[Agreement] = field(default_factory=list)
    trials: list[PlainTrial] = field(default_factory=list)
    served: list[Served] = field(default_factory=list)
    in_process: list[InProcess] = field(default_factory=list)
    cpu_time: list[CpuTime] = field(default_factory=list)

    def check_agreement(self, serving: _Serving, settings: tuple[PlainSetting, ...]) -> None:
        """Ask every competitor about every photo; this also warms up every model."""
        alone = in_process.open_fused(self.fused)
        models = [*(setting.name for setting in settings), self.contest.name, self.contest.fused]
        for size, photos in self.photos.items():
            self.progress(f"agreement: {len(photos.photos)} photos of {size}")
            names = [photo.name for photo in photos.photos]
            address = serving.server.grpc_address
            answers = {model: agreement.ask(model, photos.contents, grpc_address=address) for model in models}
            answers["in process"] = [answer for photo in photos.contents for answer in alone([photo])]
            agreed = self.contest.agree(answers, names)
            self.agreement.append(
                Agreement(size=size, tolerance=agreement.TOLERANCE, photos=len(names), **asdict(agreed))
            )

    def choose_plain(self, serving: _Serving, settings: tuple[PlainSetting, ...]) -> None:
        """Take, for each size, the setting in which the plain competitor is fastest at concurrency 8."""
        for size in self.photos:
            rates: dict[PlainSetting, list[float]] = {setting: [] for setting in settings}
            for index in range(self.plan.trial_rounds):
                for setting in settings:
                    point = PlannedLoad(MAIN_LOAD, ())
                    batching_model = self.contest.batching_model(setting.name)
                    export, _ = self._load(serving, size, point, setting.name, batching_model)
                    rate = export.inferences_per_s
                    rates[setting].append(rate)
                    self.trials.append(PlainTrial(round=index, size=size, setting=str(setting), inferences_per_s=rate))
            best = max(settings, key=lambda setting: Spread.of(rates[setting]).median)
            self.plain[size], self.capacity[size] = best, Spread.of(rates[best]).median
            self.progress(f"plain competitor at {size}: {best} ({self.capacity[size]:.0f} images/s)")

    def all_rounds(self, serving: _Serving | None) -> None:
        """In each round every competitor once at every point, next to the limits that it is compared with."""
        began = time.monotonic()
        for index in range(self.plan.rounds):
            for size in self.plan.sizes:
                self.progress(f"round {index + 1} of {self.plan.rounds}, {size}")
                if serving is not None:
                    rate = max(1, math.floor(self.capacity[size] * RATE_SHARE))
                    contest = self.contest
                    for point in points(self.plan, contest.name, contest.changes, rate=rate, cascade=contest.cascade):
                        for competitor in rotated(point.competitors, index):
                            self.served.append(self._measure(serving, index, size, point, competitor))
                if "in-process" in self.parts:
                    self._measure_in_process(index, size)
                if "cpu-time" in self.parts and not self.contest.cascade:
                    self._measure_cpu_time(index, size)
            each_s = (time.monotonic() - began) / (index + 1)
            left_min = each_s * (self.plan.rounds - index - 1) / 60
            self.progress(f"a round takes {each_s:.0f} s; about {left_min:.0f} minutes left")

    def duration_s(self, size: Size) -> float:
        """The plan's, longer for pictures that take long, as the plain competitor's setting was chosen by."""
        capacity = self.capacity.get(size)
        return max(self.plan.duration_s, round(_FEWEST_IMAGES / capacity, 1)) if capacity else self.plan.duration_s

    def _measure(self, serving: _Serving, index: int, size: Size, point: PlannedLoad, competitor: Competitor) -> Served:
        model, batching_model = self._models(size, point, competitor)
        time.sleep(_SETTLE_S)
        export, before = self._load(serving, size, point, model, batching_model)
        after = serving.usage(batching_model)
        others = after.others_cpu_share(before)
        self.progress(
            f"  {competitor:<29}{point.part:<11}{point.transport:<9}{point.load!s:<17}"
            f"{export.inferences_per_s:7.1f} /s  p50 {export.p50_ms:6.1f}  p99 {export.p99_ms:6.1f} ms"
            + (f"  (other programs use {others:.0%} of the machine)" if others > _NOTABLE_SHARE else "")
        )
        return Served(
            round=index,
            size=size,
            competitor=competitor,
            part=point.part,
            model=model,
            transport=point.transport,
            load=point.load,
            export=export,
            images_per_execution=after.images_per_execution(before),
            server_cpu_ms=after.server_cpu_ms(before),
            others_cpu_share=others,
        )

    def _load(
        self, serving: _Serving, size: Size, point: PlannedLoad, model: str, batching_model: str
    ) -> tuple[Export, Usage]:
        """What perf_analyzer measures, in a second try where the first fails, and the counters from before it."""

        def once() -> tuple[Export, Usage]:
            before = serving.usage(batching_model)
            photos, duration_s = self.photos[size], self.duration_s(size)
            return serving.load(model, point.load, point.transport, photos, duration_s=duration_s), before

        try:
            return once()
        except PerfAnalyzerError as error:
            self.progress(f"  once more, since {error}")
            return once()

    def _models(self, size: Size, point: PlannedLoad, competitor: Competitor) -> tuple[str, str]:
        """The model that is asked, and the one of its steps whose batches tell how Triton batched."""
        plain = {"plain": self.plain[size], "plain_default": DEFAULT_PLAIN}
        name = plain[competitor].name if competitor in plain else competitor
        if point.part == "preprocess":
            return f"{name}_preprocess", f"{name}_preprocess"
        return name, self.contest.batching_model(name)

    def _measure_in_process(self, index: int, size: Size) -> None:
        # Batch 1, and the batch that a server makes at concurrency 8 when every process has its share.
        batches = sorted({1, max(1, MAIN_LOAD.value // self.cores)})
        rates = in_process.measure(
            self.fused,
            self.photos[size].contents,
            batches=batches,
            processes=self.cores,
            duration_s=self.duration_s(size),
        )
        for batch, rate in rates.items():
            self.progress(f"  in process, {self.cores} processes, batches of {batch}: {rate:.1f} images/s")
            self.in_process.append(
                InProcess(round=index, size=size, batch=batch, processes=self.cores, images_per_s=rate)
            )

    def _measure_cpu_time(self, index: int, size: Size) -> None:
        file, photos, passes = self.contest.pipeline_file, self.photos[size].contents, self.plan.cpu_time_passes
        of_pass = cpu_time.measure(file, photos, passes=passes)
        first = index * passes
        self.cpu_time += [CpuTime(round=first + n, size=size, milliseconds=used) for n, used in enumerate(of_pass)]
