"""Preprocessing alone: every way on the GPU and on the host's cores, over batch sizes."""

from __future__ import annotations

import re
from contextlib import ExitStack
from functools import partial

from benchmarks.gpu.agreement import check_samples, refuse
from benchmarks.gpu.competitors import Preprocessor, Setting, settings
from benchmarks.gpu.measure import Batch, Lanes, Workload, reason
from benchmarks.gpu.results import Kept
from benchmarks.gpu.setup import Setup
from onestream.preprocess.backends.base import Sample


def measure_preprocessing(setup: Setup, opened: ExitStack, kept: Kept) -> None:
    """Keep what agrees with the reference, and images per second of all that do; ``opened`` closes what is opened."""
    ready: list[tuple[Setting, Lanes[Preprocessor]]] = []
    pipeline = setup.pipeline
    for setting in settings(
        pipeline.preprocess, pipeline.limits, device=setup.device, cores=setup.cores, batches=setup.plan.batches
    ):
        if not re.search(setup.plan.settings, setting.name):
            continue
        setup.progress(f"{setting.name}: opening, and comparing with the reference")
        try:
            lanes = Lanes(setting.lanes, setting.open, device=setting.device)
            opened.callback(lanes.close)
            for one in setup.expected:
                samples = lanes.ask(partial(_samples, images=one.photos, at_once=max(setting.batches)))
                agreement = check_samples(setting, samples, one, pipeline.preprocess, setup.on_cpu)
                kept.add(agreement=[agreement])
                refuse(agreement)
        except Exception as error:  # missing packages, no memory, a disagreement: the others are still measured
            setup.missing[f"preprocess: {setting.name}"] = reason(error)
        else:
            ready.append((setting, lanes))
    points = [
        Workload("preprocess", setting.name, lanes, _process, photos, batch, in_flight, setting.family)
        for photos in setup.photos
        for batch in sorted({batch for setting, _ in ready for batch in setting.batches})
        for setting, lanes in ready
        if batch in setting.batches
        for in_flight in setting.in_flight
    ]
    setup.measure("preprocess", points, kept)


def _process(state: Preprocessor, images: Batch) -> None:
    state.process(images)


def _samples(state: Preprocessor, *, images: Batch, at_once: int) -> list[Sample]:
    """The samples of photos, repeated where a batch takes more: what is compared is decoded as what is measured."""
    repeated = [*images] * max(1, at_once // len(images))
    found = [
        sample
        for first in range(0, len(repeated), at_once)
        for sample in state.samples(repeated[first : first + at_once])
    ]
    return found[: len(images)]
