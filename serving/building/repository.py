"""A model repository before it is written: its models, and every file that Triton reads of them.

Each model has config.pbtxt (for a GPU), configs/cpu.pbtxt, definition.json and 1/model.py. Networks (``1/model.onnx``;
where that is in int8, ``1/model.float32.onnx`` and ``1/model.tensorrt.onnx`` too) and certificates
(``certificate.json``) are built beside these files and are not committed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from onestream.postprocess.kinds import AnyPostprocess
from onestream.postprocess.labels import names_in
from onestream.postprocess.network import NetworkOutput
from onestream.preprocess import Definition, Limits
from onestream.serving.building import triton_options
from onestream.serving.building.warmup import warmup_within
from onestream.serving.built.triton_config import (
    CONFIG_FOR,
    INSTANCES_PARAMETER,
    PRECISION_PARAMETER,
    QUEUE_PARAMETER,
    Device,
    Ensemble,
    Model,
    Placement,
    StreamModel,
    Tensor,
    Warmup,
    header,
    queue_for,
    to_text,
)
from onestream.serving.built.versions import VERSION_OF, parameters_of
from onestream.serving.engine.table import ENGINE_PARAMETER, ENGINES
from onestream.serving.errors import BadPipeline
from onestream.serving.graph.example_sizes import small_size
from onestream.serving.pipeline import ServingOptions
from onestream.serving.stream_options import VideoOptions
from onestream.wire.kinds import KINDS, DType
from onestream.wire.limits import MAX_BODY_BYTES_PARAMETER, MAX_PIXELS_PARAMETER, TIMEOUT_PARAMETER
from onestream.wire.tensor_names import EVENT, IMAGE, MESSAGE, PIXELS

_COMMITTED_CORES = 2
_DTYPES: dict[DType, str] = {"text": "string", "file": "string"}
"""What Triton calls them, where that is another name."""
_ADAPTER = """\
from {module} import {adapter} as TritonPythonModel

__all__ = ["TritonPythonModel"]
"""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model of a repository. ``adapter`` is the class that Triton's Python runs, by its module, None for an ensemble;
    ``beside`` are other files in the model's folder, by their names; ``forms`` those that need it, and *video*."""

    model: Model | StreamModel | Ensemble
    adapter: tuple[str, str] | None
    beside: Mapping[str, bytes]
    forms: tuple[str, ...]

    @property
    def configs(self) -> dict[Device, ModelConfig]:
        """Its generated configurations by the machine that reads them; an ensemble's is the same on every machine."""
        if isinstance(self.model, Ensemble):
            return {"gpu": self.model.config()}
        return {device: self.model.config(device) for device in CONFIG_FOR}

    def files(self, *, source: str) -> dict[str, bytes]:
        """Every file of the model by its path in the repository, but its configurations."""
        model, found = self.model, dict(self.beside)
        if isinstance(model, Ensemble):
            found["1/.gitkeep"] = b""
        if self.adapter is not None:
            module, adapter = self.adapter
            found["1/model.py"] = (header(source) + _ADAPTER.format(module=module, adapter=adapter)).encode()
        if isinstance(model, Model):
            found |= warmup_files(model)
        return {f"{model.name}/{path}": content for path, content in found.items()}


@dataclass(frozen=True, slots=True)
class Repository:
    """The models of a pipeline or of a cascade, before they are written: first the one that callers ask.

    ``left_out`` are the names of those that the options leave out.
    """

    served: tuple[ServedModel, ...]
    options: ServingOptions
    left_out: tuple[str, ...]

    @property
    def model_names(self) -> list[str]:
        """Names of the models, which are those of their folders."""
        return [one.model.name for one in self.served]

    @property
    def models(self) -> list[Model]:
        """Those with instances of their own, but streams'."""
        return [one.model for one in self.served if isinstance(one.model, Model)]

    def files(self, *, source: str) -> dict[str, bytes]:
        """Every file by its path in the repository. ``source`` names the pipeline file in the headers.

        Raises ``BadPipeline`` where Triton's own options do not suit the models.
        """
        found = {path: content for one in self.served for path, content in one.files(source=source).items()}
        return found | {path: to_text(config, source=source).encode() for path, config in self._configs().items()}

    def _configs(self) -> dict[str, ModelConfig]:
        """Every configuration by its path, with Triton's own options."""
        name = self.model_names[0]
        generated = {triton_options.role_of(one.model.name, name): one for one in self.served}
        triton_options.check_roles(
            self.options, {role: not isinstance(one.model, Ensemble) for role, one in generated.items()}
        )
        configs = {role: one.configs for role, one in generated.items()}
        reserved = {parameter for by in configs.values() for one in by.values() for parameter in one.parameters}
        return {
            f"{config.name}/{CONFIG_FOR[device]}": triton_options.merge(
                config,
                triton_options.options_for(role, device, self.options),
                reserved=reserved | {VERSION_OF, ENGINE_PARAMETER, PRECISION_PARAMETER},
            )
            for role, by in configs.items()
            for device, config in by.items()
        }


def warmup_files(model: Model) -> dict[str, bytes]:
    """The files that a model is warmed up with, by their paths in the model's folder."""
    files = model.warmup.files() if model.warmup else {}
    return {f"warmup/{name}": content for name, content in files.items()}


def beside(definition: Definition, labels: str | None = None, *, folder: str = "") -> dict[str, bytes]:
    """The files beside a model, or in a folder there, that say what it computes."""
    found = {f"{folder}definition.json": json.dumps(definition.model_dump(mode="json"), indent=2) + "\n"}
    if labels is not None:
        found[f"{folder}labels.txt"] = labels
    return {path: text.encode() for path, text in found.items()}


def stream_model(
    name: str,
    results: Sequence[Tensor],
    options: VideoOptions,
    parameters: Mapping[str, str],
    *,
    network_batch: int,
    on_gpu: bool = False,
    gpu: int = 0,
) -> StreamModel:
    """The model of video streams. Results leave with a dimension before their own: the frames."""
    return StreamModel(
        f"{name}_video",
        (Tensor(MESSAGE, "uint8", (-1,)),),
        (Tensor(EVENT, "string", (1,)), *(Tensor(out.name, out.dtype, (-1, *out.dims)) for out in results)),
        {"cpu": "cpu", "gpu": "gpu" if on_gpu else "cpu"},
        gpu=gpu,
        parameters={**parameters, "video": options.model_dump_json(), "network_batch": str(network_batch)},
    )


def _other_than_usual(options: ServingOptions) -> dict[str, str]:
    """The parameters of models on a CPU that say what their network runs by, where it is not the default."""
    usual = ServingOptions()
    stated = {PRECISION_PARAMETER: options.precision, ENGINE_PARAMETER: options.cpu.engine}
    default = {PRECISION_PARAMETER: usual.precision, ENGINE_PARAMETER: usual.cpu.engine}
    return dict(stated.items() - default.items())


@dataclass(frozen=True, slots=True)
class Terms:
    """What the models of a pipeline have in common: parameters, and the place of Python on a CPU."""

    limits: dict[str, str]
    per_core: dict[str, str]
    python_cpu: Placement
    image: Tensor
    photo: Warmup

    @classmethod
    def of(cls, limits: Limits, options: ServingOptions) -> Terms:
        """The terms of a pipeline's limits and options."""
        # One instance stalls behind a bounded queue (``Placement``): only who says a number gets one.
        bound = 0 if options.max_queue_size == "cores" and options.cpu_instances == 1 else options.max_queue_size
        queue = queue_for(_COMMITTED_CORES) if bound == "cores" else bound
        instances = _COMMITTED_CORES if options.cpu_instances == "cores" else options.cpu_instances
        image = Tensor(IMAGE, "uint8", (-1,), ragged=True)
        return cls(
            {
                "limits": limits.model_dump_json(),
                MAX_BODY_BYTES_PARAMETER: str(limits.max_body_bytes),
                MAX_PIXELS_PARAMETER: str(limits.max_pixels),
                TIMEOUT_PARAMETER: str(options.timeout_s),
            },
            {
                INSTANCES_PARAMETER: str(options.cpu_instances),
                QUEUE_PARAMETER: str(bound),
                "threads": str(options.cpu_threads),
            },
            Placement(
                "python",
                "cpu",
                options.max_batch_size,
                instances,
                queue,
                parameters=_other_than_usual(options),
            ),
            image,
            Warmup((image,), *warmup_within(limits)),
        )


def answer_of(
    options: AnyPostprocess, definition: Definition, outputs: Sequence[NetworkOutput], labels: str | None
) -> tuple[Tensor, ...]:
    """What a pipeline answers. ``outputs`` are those of its served network, ``labels`` the text of its labels file.

    Raises ``BadNetwork`` where the outputs do not suit the kind, ``BadPipeline`` where the options name classes or
    labels that are not the network's, or the definition does not suit the kind.
    """
    row = KINDS[options.kind].outputs
    names = None if labels is None else len(names_in(labels))
    lengths = options.suited_to(outputs).lengths(outputs, definition, names)
    answer = tuple(
        Tensor(one.name, _DTYPES.get(one.dtype, one.dtype), one.dims(lengths))
        for one in row
        if one.name not in options.not_given
    )
    return answer or tensors_of(outputs)


def tensors_of(outputs: Sequence[NetworkOutput]) -> tuple[Tensor, ...]:
    """A network's outputs as tensors of Triton's."""
    return tuple(Tensor(out.name, out.dtype, tuple(-1 if dim is None else dim for dim in out.dims)) for out in outputs)


def pixels_of(definition: Definition) -> Tensor:
    """The input of a served network, with -1 for sides that depend on the picture."""
    height, width = (-1 if side is None else side for side in definition.output_spec.size_hw)
    return Tensor(PIXELS, "uint8", (height, width, definition.output_spec.channels))


def small_pixels(definition: Definition) -> Tensor:
    """The same of a small picture, whose sides are all known. Raises ``BadPipeline`` as ``small_size``."""
    pixels = pixels_of(definition)
    return replace(pixels, dims=(*small_size(definition), pixels.dims[2]))


def on_gpu(options: ServingOptions) -> tuple[Placement, Placement]:
    """The places of Python and of the network on a machine with a GPU."""
    gpu = options.gpu.model_copy(update={"precision": options.gpu.network_precision, "triton": {}})
    python = Placement(
        "python",
        "gpu",
        gpu.max_batch_size,
        gpu.instances,
        max_queue_size=0 if gpu.max_queue_size == "auto" else gpu.max_queue_size,
        gpus=gpu.gpu_numbers,
        parameters={"gpu": gpu.model_dump_json()},
    )
    network = ENGINES[gpu.engine].on_triton(gpu, in_int8=options.precision == "int8")
    return python, replace(
        python,
        backend=gpu.engine,
        cuda_graphs=network.cuda_graphs,
        file=network.file,
        cuda_provider=network.cuda_provider,
    )


def changed(files: Mapping[str, bytes], folder: Path) -> dict[Path, bytes]:
    """Of the files of a pipeline, those that are missing in a folder or differ there."""
    found = {folder / relative: content for relative, content in files.items()}
    return {path: content for path, content in found.items() if not path.exists() or path.read_bytes() != content}


def write(files: Mapping[str, bytes], folder: Path, *, pipeline: str, version_of: str | None = None) -> list[Path]:
    """Write the files of a pipeline that are missing or differ; returns their paths. ``version_of`` is as of ``plan``.

    Raises ``BadPipeline``, before anything is written, where a model of another pipeline has the same name: a cascade
    ``sort`` with a stage ``classify`` has a model ``sort_classify_model``, and so has a pipeline ``sort_classify``; and
    where a pipeline ``sort_v2`` would take the place of version 2 of ``sort``.
    """
    for model in dict.fromkeys(path.split("/")[0] for path in files):
        found = parameters_of(folder, model)
        if (first := found.get(VERSION_OF)) not in (None, version_of):
            raise BadPipeline(
                f"{folder / model} belongs to a later version of {first}; rename {pipeline}, or give it another "
                "folder: --repository DIR"
            )
        if (other := found.get("pipeline", pipeline)) != pipeline:
            raise BadPipeline(
                f"{pipeline} and {other} both have a model {model}, and {folder} holds that of {other}; "
                "rename one of them, or give this one another folder: --repository DIR"
            )
    written = []
    for path, content in changed(files, folder).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".part")
        temporary.write_bytes(content)
        temporary.replace(path)
        written.append(path)
    return written


def install_network(serialized: bytes, files: Sequence[Path]) -> None:
    """Put a served network beside the models that run it; all but the first are hard links where that is possible."""
    first = files[0]
    temporary = first.with_name(first.name + ".part")
    temporary.write_bytes(serialized)
    temporary.replace(first)
    for other in files[1:]:
        other.unlink(missing_ok=True)
        try:
            os.link(first, other)
        except OSError:
            shutil.copyfile(first, other)
