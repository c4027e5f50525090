"""Triton model configurations, from one object for GPU and CPU.

Field names and meanings: Triton's ``model_config.proto``, in the version that tritonclient carries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Literal

import numpy as np
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as proto
from tritonclient.grpc.model_config_pb2 import ModelConfig

from onestream.serving.engine.cuda_graphs import batch_sizes, tuned_sizes
from onestream.serving.pipeline import GpuOptions, Precision
from onestream.wire.limits import MAX_INPUT_VALUES_PARAMETER, PICTURES_PARAMETER
from onestream.wire.plain_text import one_line
from onestream.wire.priority import PRIORITIES
from onestream.wire.tensor_names import IMAGE

Device = Literal["cpu", "gpu"]

CONFIG_FOR: dict[Device, Path] = {"cpu": Path("configs") / "cpu.pbtxt", "gpu": Path("config.pbtxt")}
"""Which configuration in a model's folder is read, on a machine with a GPU and on any other."""

INSTANCES_PARAMETER = "cpu_instances"
"""Parameter by which ``onestream serve`` gives a model one instance per core: *cores*, or *cores+1* for one more."""

QUEUE_PARAMETER = "cpu_queue"
"""Parameter with which a model asks it for a queue in proportion to the cores (value *cores*)."""

PRECISION_PARAMETER = "precision"
"""Parameter that says what a CPU runs the network in, where that is not float32; for a GPU the parameter *gpu* does."""

_ON_GPU: dict[Precision, str] = {"fp32": "float32", "tf32": "TF32", "fp16": "float16", "int8": "int8"}
_QUEUE_PER_CORE = 32
"""Images of which a core does 100 in a second wait a third of a second in a full queue."""

_CUDNN_SEARCHES = ("EXHAUSTIVE", "HEURISTIC", "DEFAULT")
"""In the order of their numbers in Triton's onnxruntime backend."""

_DATA_TYPES = {
    "uint8": proto.TYPE_UINT8,
    "int32": proto.TYPE_INT32,
    "int64": proto.TYPE_INT64,
    "bool": proto.TYPE_BOOL,
    "float16": proto.TYPE_FP16,
    "float32": proto.TYPE_FP32,
    "float64": proto.TYPE_FP64,
    "string": proto.TYPE_STRING,
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A model's input or output; ``dims`` are without the batch, -1 where they vary."""

    name: str
    dtype: str
    dims: tuple[int, ...]
    ragged: bool = False
    labels_file: str = ""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where and how a model runs on one kind of machine. ``parameters`` come on top of the model's.

    On GPUs there are ``instances`` on each of ``gpus``, their numbers; none means all that are visible.

    ``max_queue_size`` is 0 for an unbounded queue without priorities, better for a model with one instance, since with
    a bound Triton 2.51 can miss the moment when the instance becomes free, and waits 500 ms
    (``WaitForPayloadSlotAvailable`` in its dynamic_batch_scheduler.cc).

    ``file`` is that of the network in the folder of a version, where it is not the one that the backend looks for.
    ``cuda_provider`` are options of ONNX Runtime's CUDA provider (README.md of triton-inference-server's
    onnxruntime_backend).
    """

    backend: str
    kind: Literal["cpu", "gpu"]
    max_batch_size: int
    instances: int = 1
    max_queue_size: int = 0
    cuda_graphs: bool = False
    file: str = ""
    gpus: tuple[int, ...] = ()
    parameters: dict[str, str] = field(default_factory=dict)
    cuda_provider: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Warmup:
    """One request that Triton executes on every instance before it is ready.

    ``tensors`` are all inputs. ``file`` is the name of a file in the model's ``warmup`` folder, with this ``content``,
    for those of them that are encoded images, which are ragged. Those named in ``ones`` have these shapes, and hold 1
    everywhere, which a network may divide by; the others hold zeros, one where any size may come.
    """

    tensors: tuple[Tensor, ...]
    file: str = ""
    content: bytes = b""
    ones: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def files(self) -> dict[str, bytes]:
        """What lies in the model's ``warmup`` folder."""
        found = {
            _ones_file(number): np.ones(self.ones[tensor.name], tensor.dtype).tobytes()
            for number, tensor in enumerate(self.tensors)
            if tensor.name in self.ones
        }
        return found | ({self.file: self.content} if self.file else {})


@dataclass(frozen=True, slots=True)
class Model:
    """A model that executes. ``placements`` hold what differs between machines, everything else is shared.

    ``warmup`` is None for one that asks other models, which Triton does not allow before the server is ready. In a
    bounded queue no request waits longer than ``max_queue_ms``, or than its caller says.
    """

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    placements: dict[Device, Placement]
    max_queue_ms: int
    warmup: Warmup | None
    parameters: dict[str, str] = field(default_factory=dict)

    def config(self, device: Device) -> ModelConfig:
        """The configuration for one kind of machine."""
        placement = self.placements[device]
        config = proto.ModelConfig(name=self.name, backend=placement.backend, max_batch_size=placement.max_batch_size)
        config.default_model_filename = placement.file
        _add_tensors(config, self.inputs, self.outputs)
        if placement.backend == "python":
            # Of a batch of none Triton 2.51 tells its Python backend the other dimensions only: one that begins with 0
            # is never answered, and one above the largest batch fails all that share the batch.
            for tensor in config.input:
                tensor.reshape.shape.extend((1, *tensor.dims))
        # No preferred size and no delay: a batch is whatever waits when an instance becomes free.
        config.dynamic_batching.SetInParent()
        if placement.max_queue_size:
            config.dynamic_batching.priority_levels = len(PRIORITIES)
            config.dynamic_batching.default_priority_level = PRIORITIES["normal"]
            queue = config.dynamic_batching.default_queue_policy
            queue.timeout_action = proto.ModelQueuePolicy.REJECT
            queue.default_timeout_microseconds = self.max_queue_ms * 1000
            queue.allow_timeout_override = True
            queue.max_queue_size = placement.max_queue_size
        group = config.instance_group.add(count=placement.instances)
        group.kind = proto.ModelInstanceGroup.KIND_GPU if placement.kind == "gpu" else proto.ModelInstanceGroup.KIND_CPU
        # Where none is named, Triton places instances on all (NormalizeInstanceGroup in its model_config_utils.cc).
        group.gpus.extend(placement.gpus)
        if placement.kind == "gpu" and placement.backend != "python":
            # There is no pool of pinned memory (``memory_pool``), and to allocate it for each batch costs more.
            config.optimization.input_pinned_memory.enable = False
            config.optimization.output_pinned_memory.enable = False
        if placement.cuda_graphs:
            _add_graphs(config, self.inputs, group)
        if placement.cuda_provider:
            provider = config.optimization.execution_accelerators.gpu_execution_accelerator.add(name="cuda")
            provider.parameters.update(placement.cuda_provider)
            # The backend takes this one from here alone: without it, the exhaustive search overrides the option above
            # (LoadModel in its onnxruntime.cc, r24.07 to r26.06).
            search = _CUDNN_SEARCHES.index(placement.cuda_provider["cudnn_conv_algo_search"])
            config.parameters["cudnn_conv_algo_search"].string_value = str(search)
        for key, value in sorted({**self.parameters, **placement.parameters}.items()):
            config.parameters[key].string_value = value
        if self.warmup is not None:
            _add_warmup(config, self.warmup)
        return config


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an ensemble; the maps go from the model's tensor names to the ensemble's."""

    model: str
    inputs: dict[str, str]
    outputs: dict[str, str]


@dataclass(frozen=True, slots=True)
class StreamModel:
    """A decoupled model for streams: any number of requests in, any number of responses out.

    Requests carry the id of their stream and come in their order, since there is one instance and no batching. Triton's
    sequence scheduler would add nothing but places to run out of: it keeps one for every client that left early, and a
    server that is told to stop waits for them. On a GPU it is on ``gpu``, its number, alone.
    """

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    kinds: dict[Device, Literal["cpu", "gpu"]]
    gpu: int = 0
    parameters: dict[str, str] = field(default_factory=dict)

    def config(self, device: Device) -> ModelConfig:
        """The configuration for one kind of machine."""
        config = proto.ModelConfig(name=self.name, backend="python", max_batch_size=0)
        _add_tensors(config, self.inputs, self.outputs)
        config.model_transaction_policy.decoupled = True
        on_gpu = self.kinds[device] == "gpu"
        group = config.instance_group.add(count=1)
        group.kind = proto.ModelInstanceGroup.KIND_GPU if on_gpu else proto.ModelInstanceGroup.KIND_CPU
        if on_gpu:
            # With none named there would be an instance on each, and a stream's messages would be dealt out among them.
            group.gpus.append(self.gpu)
        for key, value in sorted(self.parameters.items()):
            config.parameters[key].string_value = value
        return config


@dataclass(frozen=True, slots=True)
class Ensemble:
    """Models in a row. It has no instances of its own, so it is the same on every machine."""

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    steps: tuple[Step, ...]
    max_batch_size: int
    parameters: dict[str, str] = field(default_factory=dict)

    def config(self) -> ModelConfig:
        """The configuration."""
        config = proto.ModelConfig(name=self.name, platform="ensemble", max_batch_size=self.max_batch_size)
        _add_tensors(config, self.inputs, self.outputs)
        for step in self.steps:
            message = config.ensemble_scheduling.step.add(model_name=step.model, model_version=-1)
            message.input_map.update(step.inputs)
            message.output_map.update(step.outputs)
        for key, value in sorted(self.parameters.items()):
            config.parameters[key].string_value = value
        return config


def queue_for(cores: int) -> int:
    """The number of requests that may wait before a step on a CPU, unless the pipeline says it."""
    return _QUEUE_PER_CORE * cores


def header(source: str) -> str:
    """The first line of a generated file, a comment: ``source`` names the pipeline file."""
    return f"# Generated by `onestream build` from {one_line(source)}. Change that file, not this one.\n"


def to_text(config: ModelConfig, *, source: str) -> str:
    """The text of a ``config.pbtxt``, with a line that names the file it was generated from."""
    return header(source) + text_format.MessageToString(config)


def from_text(text: str) -> ModelConfig:
    """Read a ``config.pbtxt``."""
    return text_format.Parse(text, proto.ModelConfig())


def pictures_of(config: ModelConfig) -> list[str]:
    """The inputs of a model that are encoded images, beside ``image``."""
    return [name for name in config.parameters[PICTURES_PARAMETER].string_value.split(",") if name]


def bytes_beside_images(config: ModelConfig) -> int:
    """The most bytes of numbers that a request to a model has beside its images."""
    numbers = {number: name for name, number in _DATA_TYPES.items() if name != "string"}
    stated = config.parameters[MAX_INPUT_VALUES_PARAMETER].string_value
    most = int(stated) if stated.isdecimal() else 0
    return sum(
        (most if -1 in one.dims else prod(one.dims)) * np.dtype(numbers[one.data_type]).itemsize
        for one in config.input
        if one.name not in (IMAGE, *pictures_of(config)) and one.data_type in numbers
    )


def precision_of(models: Sequence[str], config_of: Callable[[str], ModelConfig | None]) -> str:
    """What a server runs a network in, such as *int8*, as the first of ``models`` or of their steps says it.

    *float32* where none says it. ``config_of`` gives a model's configuration, None of one that is not there.
    """
    configs = [config for model in models if (config := config_of(model)) is not None]
    # After a rollout a form is an ensemble of one model.
    steps = [step.model_name for config in configs for step in config.ensemble_scheduling.step]
    configs += [config for step in steps if (config := config_of(step)) is not None]

    def stated(parameter: str) -> str:
        return next(filter(None, (config.parameters[parameter].string_value for config in configs)), "")

    if on_gpu := stated("gpu"):
        return _ON_GPU[GpuOptions.model_validate_json(on_gpu).network_precision]
    return stated(PRECISION_PARAMETER) or "float32"


def _add_warmup(config: ModelConfig, warmup: Warmup) -> None:
    request = config.model_warmup.add(name="photo" if warmup.file else "zeros", batch_size=1)
    for number, tensor in enumerate(warmup.tensors):
        value = request.inputs[tensor.name]
        value.data_type = _DATA_TYPES[tensor.dtype]
        if warmup.file and tensor.ragged:
            value.dims.append(len(warmup.content))
            value.input_data_file = warmup.file
            continue
        if tensor.name in warmup.ones:
            value.dims.extend(warmup.ones[tensor.name])
            value.input_data_file = _ones_file(number)
        else:
            value.dims.extend(max(size, 1) for size in tensor.dims)
            value.zero_data = True


def _ones_file(number: int) -> str:
    return f"ones_{number}"


def _add_graphs(config: ModelConfig, inputs: tuple[Tensor, ...], group: proto.ModelInstanceGroup) -> None:
    """CUDA graphs of Triton's TensorRT backend for every batch, and the profiles of our plans (``engine.plan``).

    Without a lower bound, which needs the inputs' sizes, only batches of exactly these sizes would have one. Preferred
    batch sizes are not set: 20 that wait would go as 16 and 4, and they are one graph of 32.
    """
    config.optimization.cuda.graphs = True
    sizes = batch_sizes(config.max_batch_size)
    for below, size in zip((0, *sizes), sizes, strict=False):
        spec = config.optimization.cuda.graph_spec.add(batch_size=size)
        spec.graph_lower_bound.batch_size = below + 1
        for tensor in inputs:
            spec.input[tensor.name].dim.extend(tensor.dims)
            spec.graph_lower_bound.input[tensor.name].dim.extend(tensor.dims)
    # With none named there is a context for the first alone.
    group.profile.extend(str(number) for number, _ in enumerate(tuned_sizes(config.max_batch_size)))


def _add_tensors(config: ModelConfig, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> None:
    for tensor in inputs:
        config.input.add(
            name=tensor.name, data_type=_DATA_TYPES[tensor.dtype], dims=tensor.dims, allow_ragged_batch=tensor.ragged
        )
    for tensor in outputs:
        config.output.add(
            name=tensor.name, data_type=_DATA_TYPES[tensor.dtype], dims=tensor.dims, label_filename=tensor.labels_file
        )
