"""Fits instance counts and queues to the machine that serves.

A committed repository cannot know how many cores it will meet. Models on a CPU, on a machine with a GPU too, whose
``cpu_instances`` parameter says *cores* get one process per core, with *cores+1* one more, and those whose
``cpu_queue`` says *cores* a queue in proportion, so that it is worked off in the same time everywhere: in a view of the
repository, which has links to its files, and own configurations. On a GPU decoders get threads by the cores.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from onestream.serving.built.triton_config import (
    CONFIG_FOR,
    INSTANCES_PARAMETER,
    QUEUE_PARAMETER,
    Device,
    from_text,
    queue_for,
    to_text,
)
from onestream.serving.pipeline import GpuOptions
from onestream.serving.server.triton.installation import gpus_visible

_LEAST_START_S, _START_OF_A_MODEL_S = 120.0, 10.0
_MOST_WAITING = 10.0
"""Times the limit of a start on an idle machine, at most."""


def startup_limit_s(models: int) -> float:
    """Seconds that a start may take unless a user says otherwise: by its models, and by what else runs here now."""
    # The load is that of the whole machine, whatever part of it a container may use.
    waiting = min(os.getloadavg()[0] / (os.cpu_count() or 1), _MOST_WAITING)
    return round(max(_LEAST_START_S, models * _START_OF_A_MODEL_S) * max(1.0, waiting))


def usable_cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Cores that this process may use, which in a container can be fewer than the machine has.

    ``quota`` is where the kernel says how much time it gives (cgroup v2): a container with a limit of 4 CPUs on a
    machine of 64 may run on all of them, for 4 seconds a second.
    """
    cores = len(os.sched_getaffinity(0))
    try:
        allowed_us, period_us = map(int, quota.read_text().split())
    except (OSError, ValueError):
        # No such file, or "max" for no limit.
        return cores
    return max(1, min(cores, math.ceil(allowed_us / period_us)))


def instances_for(cores: int) -> int:
    """One per core, and two on a single core: one with a bounded queue can stall (``triton_config.Placement``)."""
    return max(2, cores)


def fit_instances(repository: Path, view: Path, *, cores: int, device: Device = "cpu") -> Path:
    """The folder to serve from: ``repository`` itself where its counts fit, else ``view``, which is then filled.

    ``device`` says which configurations are read. ``view`` must not exist. The repository is not changed.
    """
    file = CONFIG_FOR[device]
    read = {path.relative_to(repository).parts[0]: _read(path) for path in repository.glob(f"*/{file}")}
    unfit = {name: config for name, config in read.items() if config is not None and _adapt(config, cores)}
    if not unfit:
        return repository
    for model in sorted(path for path in repository.iterdir() if path.is_dir()):
        copy = view / model.name
        link_entries(model, copy, but=[file.parts[0]] if model.name in unfit else [])
        if model.name in unfit:
            (copy / file).parent.mkdir(exist_ok=True)
            (copy / file).write_text(to_text(unfit[model.name], source=f"{model.name}, for {cores} cores"))
    return view


def _read(path: Path) -> ModelConfig | None:
    try:
        return from_text(path.read_text())
    except (text_format.ParseError, UnicodeDecodeError):
        # Triton reads it next and says what is wrong with it.
        return None


def _adapt(config: ModelConfig, cores: int) -> bool:
    """Change what asks for it to fit the cores; tell whether anything had to be changed."""
    kinds = {group.kind for group in config.instance_group}
    before = ModelConfig()
    before.CopyFrom(config)
    if ModelInstanceGroup.KIND_GPU in kinds and _parameter(config, "gpu"):
        _fit_decoders(config, cores)
    if ModelInstanceGroup.KIND_CPU not in kinds:
        return bool(config != before)
    instances = _parameter(config, INSTANCES_PARAMETER)
    if instances in ("cores", "cores+1"):
        config.instance_group[0].count = instances_for(cores) if instances == "cores" else cores + 1
    if _parameter(config, QUEUE_PARAMETER) == "cores":
        config.dynamic_batching.default_queue_policy.max_queue_size = queue_for(cores)
    return bool(config != before)


def _fit_decoders(config: ModelConfig, cores: int) -> None:
    try:
        options = GpuOptions.model_validate_json(config.parameters["gpu"].string_value)
    except ValueError:
        # The model says at its load what is wrong.
        return
    if options.decode_threads == "auto":
        fitted = options.model_copy(update={"decode_threads": options.threads_for(cores, gpus=gpus_visible())})
        config.parameters["gpu"].string_value = fitted.model_dump_json()


def _parameter(config: ModelConfig, name: str) -> str | None:
    return config.parameters[name].string_value if name in config.parameters else None


def link_entries(folder: Path, view: Path, *, but: Collection[str] = ()) -> None:
    """Make the folder ``view`` with a link to every entry of ``folder`` whose name is not among ``but``."""
    view.mkdir(parents=True)
    for entry in folder.iterdir():
        if entry.name not in but:
            (view / entry.name).symlink_to(entry.resolve())
