"""Instance counts that fit the machine that serves.

A committed repository cannot know how many cores it will meet. Models whose ``cpu_instances`` parameter says *cores*
get one process per core, one thread each, in a view of the repository: links to its files, and own configurations.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving.links import link_entries
from serving.triton_config import INSTANCES_PARAMETER, from_text, to_text

_CPU_CONFIG = Path("configs") / "cpu.pbtxt"


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
    """One per core, and two on a single core: one instance with a bounded queue can stall (``triton_config.Model``)."""
    return max(2, cores)


def fit_instances(repository: Path, view: Path, *, cores: int) -> Path:
    """The folder to serve from: ``repository`` itself where its counts fit, else ``view``, which is then filled.

    ``view`` must not exist. The repository is not changed.
    """
    count = instances_for(cores)
    unfit = {path.parents[1].name for path in repository.glob(f"*/{_CPU_CONFIG}") if _count(path) not in (None, count)}
    if not unfit:
        return repository
    for model in sorted(path for path in repository.iterdir() if path.is_dir()):
        copy = view / model.name
        link_entries(model, copy, but=[_CPU_CONFIG.parent.name] if model.name in unfit else [])
        if model.name in unfit:
            config = from_text((model / _CPU_CONFIG).read_text())
            config.instance_group[0].count = count
            (copy / _CPU_CONFIG).parent.mkdir()
            (copy / _CPU_CONFIG).write_text(to_text(config, source=f"{model.name}, for {cores} cores"))
    return view


def _count(path: Path) -> int | None:
    """Instances in a configuration that asks for one per core; None in any other."""
    try:
        config: ModelConfig = from_text(path.read_text())
    except text_format.ParseError:
        # Triton reads it next and says what is wrong with it.
        return None
    if config.parameters[INSTANCES_PARAMETER].string_value != "cores":
        return None
    return int(config.instance_group[0].count)
