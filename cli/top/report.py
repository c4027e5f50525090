"""Reports what a server did between two readings of its metrics, by pipeline, model and step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from onestream.cli.top.reading import Reading, Series, counted

PARTS = ("preprocess", "model", "postprocess")
"""The models of an ensemble NAME are NAME_preprocess, …, in this order."""

_STEP_ORDER = ("preprocess", "decode", "resize", "crop", "normalize", "copy", "network", "read", "postprocess")
# To Triton a failed request of an ensemble fails twice: when it is answered and when it is let go.
_FAILURES_OF_ENSEMBLE_REQUEST = 2
# Shorter waits are no sign of a bottleneck.
_WORTH_A_HINT_MS = 1.0


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of a model. ``share`` is its part, 0 to 1, of the time of all steps of its pipeline."""

    name: str
    batches: int
    milliseconds: float
    share: float = 0.0

    @property
    def ms_per_batch(self) -> float | None:
        """Mean time of a batch in it; None where there was none."""
        return _ratio(self.milliseconds, self.batches)


@dataclass(frozen=True, kw_only=True)
class Video:
    """The streams of a model: how many are open at the interval's end, and the frames decoded and dropped in it."""

    streams: int
    decoded: int
    dropped: int


@dataclass(frozen=True, kw_only=True)
class Model:
    """The work of one model. Counts are of the interval, ``pending`` is of its end.

    ``parts`` are the names of an ensemble's models. Its ``bad_images`` are those of its parts, and among its failures
    too. So are its ``objects``, found by class, and ``dropped_candidates``, which were not finite. ``batch_size``,
    ``queue_ms`` and ``pending`` are None for it: its parts batch and queue. Of a model of video streams ``inferences``
    and ``latency_ms`` are of frames, where Triton's own are of messages.
    """

    name: str
    inferences: int
    latency_ms: float | None
    queue_ms: float | None
    batch_size: float | None
    pending: int | None
    failures: dict[str, int]
    bad_images: dict[str, int]
    objects: dict[str, int]
    dropped_candidates: int
    steps: list[Step]
    parts: tuple[str, ...] = ()
    video: Video | None = None


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU, by its UUID; None is what the server does not tell."""

    uuid: str
    utilization: float | None
    memory_used_bytes: float | None
    memory_total_bytes: float | None
    power_w: float | None


@dataclass(frozen=True, kw_only=True)
class Report:
    """An interval of ``seconds``. ``models`` are pipelines by name, each before its parts."""

    seconds: float
    models: list[Model]
    cpu_utilization: float | None
    memory_used_bytes: float | None
    memory_total_bytes: float | None
    gpus: list[Gpu] = field(default_factory=list)

    @property
    def pipelines(self) -> list[tuple[Model, list[Model]]]:
        """Each pipeline, or model of no pipeline, with its parts."""
        by_name = {model.name: model for model in self.models}
        owned = {part for model in self.models for part in model.parts}
        return [(model, [by_name[part] for part in model.parts]) for model in self.models if model.name not in owned]

    @property
    def bottleneck(self) -> Model | None:
        """The model before which requests waited longest; None where none waited for long."""
        waited = [model for model in self.models if (model.queue_ms or 0.0) >= _WORTH_A_HINT_MS]
        return max(waited, key=lambda model: model.queue_ms or 0.0, default=None)


def report(before: Reading, after: Reading) -> Report:
    """The report of the time between two readings of the same server, the earlier first."""
    values = _Values(counted(before, after) | dict(after.gauges))
    names = values.labels("nv_inference_count", "model")
    parts = {name: tuple(f"{name}_{part}" for part in PARTS if f"{name}_{part}" in names) for name in names}
    owned = {part for owner in names for part in parts[owner]}
    models = []
    for name in sorted(names - owned):
        models += _shared([_of_frames(values, _model(values, one, parts[one])) for one in (name, *parts[name])])
    return Report(
        seconds=after.at_s - before.at_s,
        models=models,
        cpu_utilization=values.one("nv_cpu_utilization"),
        memory_used_bytes=values.one("nv_cpu_memory_used_bytes"),
        memory_total_bytes=values.one("nv_cpu_memory_total_bytes"),
        gpus=[_gpu(values, uuid) for uuid in sorted(values.labels("nv_gpu_utilization", "gpu_uuid"))],
    )


class _Values:
    """The series of an interval, asked for by name and labels."""

    def __init__(self, values: dict[Series, float]) -> None:
        self._families: dict[str, list[tuple[dict[str, str], float]]] = {}
        for (name, labels), value in values.items():
            self._families.setdefault(name, []).append((dict(labels), value))

    def _matching(self, name: str, labels: dict[str, str]) -> Iterator[tuple[dict[str, str], float]]:
        for found, value in self._families.get(name, []):
            if labels.items() <= found.items():
                yield found, value

    def one(self, name: str, **labels: str) -> float | None:
        """The sum over all other labels, such as a model's versions; None where there is no such series."""
        found = [value for _, value in self._matching(name, labels)]
        return sum(found) if found else None

    def total(self, name: str, **labels: str) -> float:
        """The same, 0 where there is no such series."""
        return self.one(name, **labels) or 0.0

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """The sums by the values of a label, sorted."""
        sums: dict[str, float] = {}
        for found, value in self._matching(name, labels):
            sums[found.get(label, "")] = sums.get(found.get(label, ""), 0.0) + value
        return {key: sums[key] for key in sorted(sums)}

    def by_of(self, name: str, label: str, models: Sequence[str]) -> dict[str, int]:
        """Counts of models together by the values of a label, sorted, without those of 0."""
        sums: Counter[str] = Counter()
        for model in models:
            sums.update({key: round(count) for key, count in self.by(name, label, model=model).items()})
        return {key: sums[key] for key in sorted(sums) if sums[key]}

    def labels(self, name: str, label: str) -> set[str]:
        """All values of a label."""
        return {found[label] for found, _ in self._matching(name, {}) if label in found}


def _model(values: _Values, name: str, parts: tuple[str, ...]) -> Model:
    requests = values.total("nv_inference_request_success", model=name)
    inferences = round(values.total("nv_inference_count", model=name))
    queued_us = values.total("nv_inference_queue_duration_us", model=name)
    failures = values.by("nv_inference_request_failure", "reason", model=name)
    if parts and "OTHER" in failures:
        # Up, since a reading can fall between the two.
        failures["OTHER"] = math.ceil(failures["OTHER"] / _FAILURES_OF_ENSEMBLE_REQUEST)
    own_and_parts = (name, *parts)
    bad_images = values.by_of("onestream_bad_images", "reason", own_and_parts)
    dropped = sum(values.total("onestream_candidates_dropped", model=one) for one in own_and_parts)
    return Model(
        name=name,
        inferences=inferences,
        latency_ms=_ratio(values.total("nv_inference_request_duration_us", model=name) / 1000, requests),
        queue_ms=None if parts else _ratio(queued_us / 1000, requests),
        batch_size=None if parts else _ratio(inferences, values.total("nv_inference_exec_count", model=name)),
        pending=None if parts else round(values.total("nv_inference_pending_request_count", model=name)),
        failures={reason: round(count) for reason, count in failures.items() if count},
        bad_images=bad_images,
        objects=values.by_of("onestream_objects", "label", own_and_parts),
        dropped_candidates=round(dropped),
        steps=_steps(values, name),
        parts=parts,
    )


def _steps(values: _Values, model: str) -> list[Step]:
    microseconds = values.by("onestream_step_microseconds", "step", model=model)
    batches = values.by("onestream_step_batches", "step", model=model)
    order = {name: place for place, name in enumerate(_STEP_ORDER)}
    return [
        Step(name=name, batches=round(batches[name]), milliseconds=microseconds.get(name, 0.0) / 1000)
        for name in sorted(batches, key=lambda name: (order.get(name, len(order)), name))
    ]


def _shared(models: list[Model]) -> list[Model]:
    """The models of one pipeline, their steps with the share that each has in the time of all."""
    total = sum(step.milliseconds for model in models for step in model.steps)
    return [
        replace(model, steps=[replace(step, share=_ratio(step.milliseconds, total) or 0.0) for step in model.steps])
        for model in models
    ]


def _of_frames(values: _Values, model: Model) -> Model:
    """The same model, with its frames in place of its messages where it serves video streams."""
    streams = values.one("onestream_video_streams", model=model.name)
    if streams is None:
        return model
    frames = values.by("onestream_video_frames", "what", model=model.name)
    inferred = frames.get("inferred", 0.0)
    return replace(
        model,
        inferences=round(inferred),
        latency_ms=_ratio(values.total("onestream_video_latency_microseconds", model=model.name) / 1000, inferred),
        queue_ms=None,
        batch_size=None,
        pending=None,
        video=Video(
            streams=round(streams),
            decoded=round(frames.get("decoded", 0.0)),
            dropped=round(frames.get("dropped", 0.0)),
        ),
    )


def _gpu(values: _Values, uuid: str) -> Gpu:
    return Gpu(
        uuid=uuid,
        utilization=values.one("nv_gpu_utilization", gpu_uuid=uuid),
        memory_used_bytes=values.one("nv_gpu_memory_used_bytes", gpu_uuid=uuid),
        memory_total_bytes=values.one("nv_gpu_memory_total_bytes", gpu_uuid=uuid),
        power_w=values.one("nv_gpu_power_usage", gpu_uuid=uuid),
    )


def _ratio(value: float, count: float) -> float | None:
    return value / count if count else None
