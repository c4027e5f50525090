"""Builds TensorRT plans for this machine's GPU before Triton starts.

Triton's TensorRT backend loads whatever ``model.plan`` it finds, and crashes or fails on one of another GPU or version.
So it is given a view of the repository, links to its files, in which each ``1/model.plan`` is one of the engine cache;
where GPUs differ, one for each compute capability, which the model's configuration names.
The plans of fused forms, which their own processes find there, are built too: a build takes longer than a start may.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from google.protobuf import text_format
from pydantic import BaseModel, ConfigDict, ValidationError
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from onestream.preprocess.user_files import describe
from onestream.serving.built.triton_config import from_text, to_text
from onestream.serving.child_process import describe_exit, tied
from onestream.serving.engine.network_files import NETWORK_FILE, gpu_network
from onestream.serving.engine.table import ENGINES
from onestream.serving.pipeline import GpuOptions, Precision
from onestream.serving.server.errors import ModelLoadFailed, StopRequested
from onestream.serving.server.fit import link_entries

PLAN_FILE = "model.plan"
_CONFIG = "config.pbtxt"
_PLANNED = {name for name, engine in ENGINES.items() if engine.needs_plan}
_POLL_S = 0.1


class PlanRequest(BaseModel):
    """One plan that a repository needs.

    ``model`` and ``version`` are the folders that hold ``network``. ``postprocess`` is the parameter of a fused form,
    None for a model that Triton's TensorRT backend runs. ``gpus`` are the numbers of those that it is for, none for all
    of this machine; with TensorRT for RTX any ``compute_capability`` can be asked for instead.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    version: str
    network: Path
    max_batch_size: int
    precision: Precision = "fp32"
    postprocess: str | None = None
    gpus: tuple[int, ...] = ()
    compute_capability: tuple[int, int] | None = None


Plans = dict[str, Path]
"""A request's plans by the compute capability of their GPUs, such as *9.0*."""

Build = Callable[[Sequence[PlanRequest], Callable[[str], None], Callable[[], bool]], Sequence[Plans]]
"""Makes sure of plans: requests, progress, whether to stop; returns the plans in order."""


def fit_plans(
    repository: Path,
    view: Path,
    *,
    models: Sequence[str] = ("*",),
    progress: Callable[[str], None] = lambda _: None,
    stopping: Callable[[], bool] = lambda: False,
    build: Build | None = None,
) -> Path:
    """The folder to serve from on a GPU: ``repository`` itself where Triton needs no plan, else ``view``, then filled.

    ``view`` must not exist. The repository is not changed, and may be read-only. ``models`` are those to be loaded;
    ``build`` is ``build_apart`` where it is None. Raises ``ModelLoadFailed`` naming the model whose plan cannot be
    built, and ``StopRequested`` soon after ``stopping`` says so.
    """
    requests = plans_needed(repository, models)
    if not requests:
        return repository
    plans = (build or build_apart)(requests, progress, stopping)
    loaded_by_triton = {
        (request.model, request.version): built
        for request, built in zip(requests, plans, strict=True)
        if request.postprocess is None
    }
    if not loaded_by_triton:
        return repository
    for model in sorted(path for path in repository.iterdir() if path.is_dir()):
        plans_of = {version: built for (name, version), built in loaded_by_triton.items() if name == model.name}
        files = _plan_files(plans_of)
        link_entries(model, view / model.name, but=[*plans_of, *([_CONFIG] if len(files) > 1 else [])])
        if len(files) > 1:
            config = _read(model / _CONFIG)
            config.cc_model_filenames.update(files)
            (view / model.name / _CONFIG).write_text(to_text(config, source=f"{model.name}, for several kinds of GPU"))
        for version, built in plans_of.items():
            link_entries(model / version, view / model.name / version, but=files.values())
            for capability, plan in built.items():
                (view / model.name / version / files[capability]).symlink_to(plan.resolve())
    return view


def _plan_files(plans_of: dict[str, Plans]) -> dict[str, str]:
    """Names for a model's plans by compute capability: Triton's default where there is one capability."""
    capabilities = sorted({capability for built in plans_of.values() for capability in built})
    if len(capabilities) == 1:
        return {capabilities[0]: PLAN_FILE}
    return {capability: f"model-{capability}.plan" for capability in capabilities}


def plans_needed(repository: Path, models: Sequence[str] = ("*",)) -> list[PlanRequest]:
    """The plans that the GPU configurations of a repository need.

    A model that onestream did not generate keeps the plan that it brings, and so does one without a network.
    Configurations that Triton cannot read are left to it.
    """
    configs = {path.parent.name: _read(path) for path in sorted(repository.glob(f"*/{_CONFIG}"))}
    found = []
    for name in _with_steps(configs, models):
        config = configs[name]
        options = _options(name, config)
        fused = config.parameters["postprocess"].string_value or None
        on_gpu = any(group.kind == ModelInstanceGroup.KIND_GPU for group in config.instance_group)
        by_triton = config.backend in _PLANNED or config.platform == "tensorrt_plan"
        by_python = config.backend == "python" and on_gpu and fused is not None and options.engine in _PLANNED
        if not by_triton and not by_python:
            continue
        ours = "definition_digest" in config.parameters
        found += [
            PlanRequest(
                model=name,
                version=network.parent.name,
                network=gpu_network(network, options.network_precision).resolve(),
                max_batch_size=max(1, config.max_batch_size),
                precision=options.network_precision,
                postprocess=fused if by_python else None,
                gpus=tuple(gpu for group in config.instance_group for gpu in group.gpus),
            )
            for network in sorted((repository / name).glob(f"*/{NETWORK_FILE}"))
            if network.parent.name.isdigit() and (ours or not network.with_name(PLAN_FILE).exists())
        ]
    return found


def build_apart(
    requests: Sequence[PlanRequest], progress: Callable[[str], None], stopping: Callable[[], bool]
) -> list[Plans]:
    """Make sure of plans in another process (``onestream.serving.server.plan_process``), which ends with this thread.

    Raises ``ModelLoadFailed`` or ``StopRequested``.
    """
    command = tied(
        sys.executable,
        "-m",
        "onestream.serving.server.plan_process",
        *(request.model_dump_json() for request in requests),
    )
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=complaints)
        try:
            plans = _read_answers(process, requests, progress, stopping)
            returncode = process.wait()
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        if len(plans) < len(requests):
            complaints.seek(0)
            last = complaints.read().decode(errors="replace").strip().splitlines()[-1:]
            reason = f"the TensorRT build {describe_exit(returncode)}"
            raise ModelLoadFailed({requests[len(plans)].model: ": ".join([reason, *last])})
    return plans


def _read_answers(
    process: subprocess.Popen[bytes],
    requests: Sequence[PlanRequest],
    progress: Callable[[str], None],
    stopping: Callable[[], bool],
) -> list[Plans]:
    """The plans that a building process names until it ends."""
    assert process.stdout is not None
    plans: list[Plans] = []
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if stopping():
                raise StopRequested
            if not selector.select(_POLL_S):
                continue
            content = os.read(process.stdout.fileno(), 1 << 16)
            if not content:
                return plans
            *lines, rest = (rest + content).split(b"\n")
            for line in lines:
                answer = json.loads(line)
                model = requests[min(len(plans), len(requests) - 1)].model
                if "error" in answer:
                    raise ModelLoadFailed({model: answer["error"]})
                if "plans" in answer:
                    plans.append({capability: Path(path) for capability, path in answer["plans"].items()})
                else:
                    progress(f"{model}: {answer['progress']}")


def _options(name: str, config: ModelConfig) -> GpuOptions:
    try:
        return GpuOptions.model_validate_json(config.parameters["gpu"].string_value or "{}")
    except ValidationError as error:
        raise ModelLoadFailed(
            {name: f"its parameter 'gpu' is none of this version: {describe(error, GpuOptions)}"}
        ) from None


def _with_steps(configs: dict[str, ModelConfig], models: Sequence[str]) -> list[str]:
    """Names of the models that are loaded when these are asked for: an ensemble brings its steps."""
    names = list(configs) if "*" in models else [name for name in models if name in configs]
    for name in names:
        for step in configs[name].ensemble_scheduling.step:
            if step.model_name in configs and step.model_name not in names:
                # The loop goes on over what is appended.
                names.append(step.model_name)
    return names


def _read(path: Path) -> ModelConfig:
    try:
        return from_text(path.read_text(encoding="utf-8"))
    except (text_format.ParseError, UnicodeDecodeError):
        return ModelConfig()
