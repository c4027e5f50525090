"""Runs the plan: photos, repository, server, agreement, the plain competitor's setting, then round after round."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

import tritonclient.grpc as triton

from benchmarks import agreement, cpu_time, in_process, perf_analyzer
from benchmarks.competitors import PIPELINE, ROOT, PlainSetting, make_repository, plain_settings
from benchmarks.photos import PhotoSet, Size, photo_set
from benchmarks.plan import MAIN_LOAD, RATE_SHARE, SEED, Plan, Point, points, rotated
from benchmarks.results import (
    Agreement,
    Competitor,
    CpuTime,
    InProcess,
    PlainTrial,
    Results,
    Served,
    commit,
    library_versions,
    this_machine,
)
from benchmarks.spread import Spread
from benchmarks.usage import Usage
from serving.pipeline import Pipeline
from serving.server import Server

Only = Literal["served", "in-process", "cpu-time"]
PARTS: tuple[Only, ...] = ("served", "in-process", "cpu-time")
CACHE = ROOT / ".cache" / "benchmarks"

_SETTLE_S = 0.3


@dataclass(slots=True)
class _Run:
    """The state of one run: where things are, and what was measured so far."""

    plan: Plan
    parts: tuple[Only, ...]
    progress: Callable[[str], None]
    photos: dict[Size, PhotoSet]
    network: Path
    cores: int
    plain: dict[Size, PlainSetting] = field(default_factory=dict)
    capacity: dict[Size, float] = field(default_factory=dict)
    agreement: list[Agreement] = field(default_factory=list)
    trials: list[PlainTrial] = field(default_factory=list)
    served: list[Served] = field(default_factory=list)
    in_process: list[InProcess] = field(default_factory=list)
    cpu_time: list[CpuTime] = field(default_factory=list)


def run(plan: Plan, *, parts: tuple[Only, ...] = PARTS, progress: Callable[[str], None] = print) -> Results:
    """Measure everything and return it.

    Raises ``perf_analyzer.PerfAnalyzerError``, ``agreement.Disagreement``, ``photos.PhotosMissing`` or
    ``serving.server.ServerError``.
    """
    started, cores = datetime.now(timezone.utc), os.cpu_count() or 1
    command = perf_analyzer.find_perf_analyzer() if "served" in parts else []
    progress("photos: reading, or making them")
    photos = {size: photo_set(size, folder=CACHE / "photos") for size in plan.sizes}
    settings = plain_settings(cores)
    with tempfile.TemporaryDirectory(prefix="onestream-bench-") as folder:
        repository = Path(folder)
        progress("repository: building ours and the plain ensembles")
        make_repository(repository, settings)
        state = _Run(plan, parts, progress, photos, repository / "classify_model" / "1" / "model.onnx", cores)
        versions = library_versions()
        if "served" in parts:
            progress("server: starting")
            with _serving(repository) as served:
                versions["tritonserver"] = served.client.get_server_metadata().version
                _check_agreement(state, served, settings)
                _choose_plain(state, served, command, settings)
                _rounds(state, served, command)
        else:
            _rounds(state, None, command)
    return Results(
        started_utc=started.isoformat(timespec="seconds"),
        quick=plan.quick,
        seed=SEED,
        rounds=plan.rounds,
        duration_s=plan.duration_s,
        commit=commit(ROOT),
        machine=this_machine(),
        versions=versions,
        photos=[photo for size in plan.sizes for photo in photos[size].photos],
        agreement=state.agreement,
        plain_setting={size: str(setting) for size, setting in state.plain.items()},
        plain_trials=state.trials,
        served=state.served,
        in_process=state.in_process,
        cpu_time=state.cpu_time,
    )


@dataclass(frozen=True, slots=True)
class _Served:
    """A running server, and a client for its statistics."""

    server: Server
    client: triton.InferenceServerClient


@contextmanager
def _serving(repository: Path) -> Iterator[_Served]:
    with (
        Server(repository, http_port=0, grpc_port=0, metrics_port=0, device="cpu") as server,
        triton.InferenceServerClient(server.grpc_address) as client,
    ):
        yield _Served(server, client)


def _check_agreement(state: _Run, served: _Served, settings: tuple[PlainSetting, ...]) -> None:
    """Ask every competitor about every photo; this also warms up every model."""
    classify = in_process.make_classifier(Pipeline.from_file(PIPELINE), state.network)
    for size, photos in state.photos.items():
        state.progress(f"agreement: {len(photos.photos)} photos of {size}")
        names = [photo.name for photo in photos.photos]
        models = [*(setting.name for setting in settings), "classify", "classify_fused"]
        answers = {
            model: agreement.ask(model, photos.contents, grpc_address=served.server.grpc_address) for model in models
        }
        alone = [classify([photo]) for photo in photos.contents]
        answers["in process"] = [agreement.answer(class_ids[0], scores[0]) for scores, class_ids in alone]
        worst = agreement.check(answers, names)
        best = [{given[index].class_ids[0] for given in answers.values()} for index in range(len(names))]
        state.agreement.append(
            Agreement(
                size=size,
                tolerance=agreement.TOLERANCE,
                best_classes_equal=sum(len(classes) == 1 for classes in best),
                photos=len(names),
                largest_difference=worst,
            )
        )


def _choose_plain(state: _Run, served: _Served, command: list[str], settings: tuple[PlainSetting, ...]) -> None:
    """Take, for each size, the setting with which the plain ensemble is fastest at concurrency 8."""
    for size, photos in state.photos.items():
        rates: dict[PlainSetting, list[float]] = {setting: [] for setting in settings}
        for index in range(state.plan.trial_rounds):
            for setting in settings:
                export = perf_analyzer.measure(
                    command,
                    model=setting.name,
                    address=served.server.grpc_address,
                    transport="grpc",
                    load=MAIN_LOAD,
                    photos=photos.perf_analyzer_input,
                    duration_s=state.plan.duration_s,
                )
                rates[setting].append(export.inferences_per_s)
                trial = PlainTrial(
                    round=index, size=size, setting=str(setting), inferences_per_s=export.inferences_per_s
                )
                state.trials.append(trial)
        best = max(settings, key=lambda setting: Spread.of(rates[setting]).median)
        state.plain[size], state.capacity[size] = best, Spread.of(rates[best]).median
        state.progress(f"plain competitor at {size}: {best} ({state.capacity[size]:.0f} images/s)")


def _rounds(state: _Run, served: _Served | None, command: list[str]) -> None:
    began = time.monotonic()
    for index in range(state.plan.rounds):
        for size in state.plan.sizes:
            state.progress(f"round {index + 1} of {state.plan.rounds}, {size}")
            if served is not None:
                rate = max(1, math.floor(state.capacity[size] * RATE_SHARE))
                for point in points(state.plan, rate=rate):
                    for competitor in rotated(point.competitors, index):
                        state.served.append(_measure(state, served, command, index, size, point, competitor))
            if "in-process" in state.parts:
                state.in_process += _measure_in_process(state, index, size)
            if "cpu-time" in state.parts:
                passes = cpu_time.measure(PIPELINE, state.photos[size].contents, passes=state.plan.cpu_time_passes)
                first = index * state.plan.cpu_time_passes
                state.cpu_time += [
                    CpuTime(round=first + number, size=size, milliseconds=used) for number, used in enumerate(passes)
                ]
        per_round_s = (time.monotonic() - began) / (index + 1)
        left = state.plan.rounds - index - 1
        state.progress(f"round {index + 1} took {per_round_s:.0f} s; about {per_round_s * left / 60:.0f} minutes left")


def _measure(
    state: _Run, served: _Served, command: list[str], index: int, size: Size, point: Point, competitor: Competitor
) -> Served:
    model, batching_model = _models(state, size, point, competitor)
    server = served.server
    time.sleep(_SETTLE_S)
    before = Usage.now(server_pid=server.pid, client=served.client, model=batching_model)
    export = perf_analyzer.measure(
        command,
        model=model,
        address=server.http_address if point.transport == "http" else server.grpc_address,
        transport=point.transport,
        load=point.load,
        photos=state.photos[size].perf_analyzer_input,
        duration_s=state.plan.duration_s,
    )
    after = Usage.now(server_pid=server.pid, client=served.client, model=batching_model)
    others = after.others_cpu_share(before)
    state.progress(
        f"  {competitor:<15}{point.part:<11}{point.transport:<9}{point.load!s:<17}"
        f"{export.inferences_per_s:7.1f} /s  p50 {export.p50_ms:6.1f}  p99 {export.p99_ms:6.1f} ms"
        + (f"  (other programs use {others:.0%} of the machine)" if others > 0.05 else "")
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


def _models(state: _Run, size: Size, point: Point, competitor: Competitor) -> tuple[str, str]:
    """The model that is asked, and the one of its steps whose batches tell how Triton batched."""
    name = state.plain[size].name if competitor == "plain" else competitor
    if point.part == "preprocess":
        return f"{name}_preprocess", f"{name}_preprocess"
    steps = {"plain": f"{name}_network", "classify": f"{name}_model", "classify_fused": name}
    return name, steps[competitor]


def _measure_in_process(state: _Run, index: int, size: Size) -> list[InProcess]:
    # Batch 1, and the batch that a server makes at concurrency 8 when every process has its share.
    batches = sorted({1, max(1, MAIN_LOAD.value // state.cores)})
    rates = in_process.measure(
        PIPELINE,
        state.network,
        state.photos[size].contents,
        batches=batches,
        processes=state.cores,
        duration_s=state.plan.duration_s,
    )
    for batch, rate in rates.items():
        state.progress(f"  in process, {state.cores} processes, batches of {batch}: {rate:.1f} images/s")
    return [
        InProcess(round=index, size=size, batch=batch, processes=state.cores, images_per_s=rate)
        for batch, rate in rates.items()
    ]
