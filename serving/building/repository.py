"""The model repository of a pipeline: every file that Triton reads, computed from the pipeline and its network.

    NAME              ensemble: NAME_preprocess, NAME_model, NAME_postprocess
    NAME_fused        the same in one process
    each with         config.pbtxt (GPU), configs/cpu.pbtxt, definition.json, 1/model.py

Networks (``1/model.onnx``; where that is in int8, ``1/model.float32.onnx`` and ``1/model.tensorrt.onnx`` too) and
certificates (``certificate.json``) are built beside these files and are not committed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path

from onestream.postprocess.kinds import AnyPostprocess
from onestream.postprocess.labels import names_in
from onestream.postprocess.network import NetworkOutput
from onestream.preprocess import Definition, Limits
from onestream.serving.built.triton_config import (
    INSTANCES_PARAMETER,
    PRECISION_PARAMETER,
    QUEUE_PARAMETER,
    Device,
    Ensemble,
    Model,
    Placement,
    Step,
    StreamModel,
    Tensor,
    Warmup,
    header,
    queue_for,
    to_text,
)
from onestream.serving.built.versions import VERSION_OF, parameters_of
from onestream.serving.engine.table import ENGINES, names_of
from onestream.serving.errors import BadPipeline
from onestream.serving.graph.example_sizes import small_size
from onestream.serving.pipeline import BACKGROUND_FILE, Pipeline, ServingOptions
from onestream.wire.kinds import KIND_PARAMETER, KINDS, DType
from onestream.wire.limits import MAX_BODY_BYTES_PARAMETER, TIMEOUT_PARAMETER
from onestream.wire.tensor_names import (
    EVENT,
    IMAGE,
    IMAGE_SIZE,
    MESSAGE,
    PIXELS,
    VIDEO,
)

_COMMITTED_CORES = 2
_DTYPES: dict[DType, str] = {"text": "string", "file": "string"}
"""What Triton calls them, where that is another name."""
_WARMUP_FILE = "photo.jpg"
_ADAPTER = """\
from {module} import {adapter} as TritonPythonModel

__all__ = ["TritonPythonModel"]
"""


@dataclass(frozen=True, slots=True)
class Repository:
    """The models of one pipeline, before they are written."""

    pipeline: Pipeline
    models: tuple[Model, ...]
    ensemble: Ensemble
    labels: str | None
    video: StreamModel | None = field(default=None, kw_only=True)
    background: bytes | None = field(default=None, kw_only=True)

    @property
    def model_names(self) -> list[str]:
        """Names of the models, which are those of their folders: the ensemble, then its steps and the fused form."""
        video = [self.video.name] if self.video else []
        return [self.pipeline.name, *(model.name for model in self.models), *video]

    def files(self, *, source: str) -> dict[str, bytes]:
        """Every file by its path in the repository. ``source`` names the pipeline file in the headers."""
        name, definition = self.pipeline.name, json.dumps(self.pipeline.preprocess.model_dump(mode="json"), indent=2)
        found = {
            f"{name}/config.pbtxt": to_text(self.ensemble.config(), source=source),
            f"{name}/definition.json": definition + "\n",
            f"{name}/1/.gitkeep": "",
        }
        for model in self.models:
            role = model.name.removeprefix(f"{name}_")
            adapter = {"model": "Network"}.get(role, role.capitalize())
            found |= files_of(model, module="onestream.serving.models.image", adapter=adapter, source=source)
            found[f"{model.name}/definition.json"] = definition + "\n"
            if self.labels is not None and role != "preprocess":
                found[f"{model.name}/labels.txt"] = self.labels
        if self.video:
            found |= files_of(self.video, module="onestream.serving.video.model", adapter="Video", source=source)
            found[f"{self.video.name}/definition.json"] = definition + "\n"
            if self.labels is not None:
                found[f"{self.video.name}/labels.txt"] = self.labels
        contents = {path: text.encode() for path, text in found.items()}
        contents |= warmup_files(self.models)
        if self.video and self.background is not None:
            contents[f"{self.video.name}/{BACKGROUND_FILE}"] = self.background
        return contents


def files_of(model: Model | StreamModel, *, module: str, adapter: str, source: str) -> dict[str, str]:
    """What Triton reads of a model, by its path in the repository; ``adapter`` is a class in ``module``."""
    return {
        f"{model.name}/config.pbtxt": to_text(model.config("gpu"), source=source),
        f"{model.name}/configs/cpu.pbtxt": to_text(model.config("cpu"), source=source),
        f"{model.name}/1/model.py": header(source) + _ADAPTER.format(module=module, adapter=adapter),
    }


def warmup_files(models: Sequence[Model]) -> dict[str, bytes]:
    """The files that models are warmed up with, by their paths in the repository."""
    return {f"{m.name}/warmup/{m.warmup.file}": warmup_photo() for m in models if m.warmup and m.warmup.file}


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
                parameters={} if options.precision == "float32" else {PRECISION_PARAMETER: options.precision},
            ),
            image,
            Warmup((image,), _WARMUP_FILE, len(warmup_photo())),
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


def plan(
    pipeline: Pipeline,
    outputs: Sequence[NetworkOutput],
    *,
    labels: str | None,
    background: bytes | None = None,
    version_of: str | None = None,
) -> Repository:
    """Compute the repository of a pipeline from its network's outputs.

    ``labels`` is the text of the labels file, ``background`` the content of the file that a matte names.
    ``version_of`` names the pipeline that this one is a later version of (``onestream.serving.built.versions``).

    The pipeline of the result says which activation *auto* is for this network.

    Raises ``BadNetwork`` where the outputs do not suit the postprocessing, ``BadPipeline`` where the labels or the
    activation do not.
    """
    name, definition, options = pipeline.name, pipeline.preprocess, pipeline.serving
    postprocess = pipeline.postprocess
    network_tensors = tensors_of(outputs)
    terms = Terms.of(pipeline.limits, options)
    pixels = pixels_of(definition)
    is_free = -1 in pixels.dims
    if is_free and pipeline.video:
        raise BadPipeline(
            "video: frames of streams share batches, and the definition's output size depends on the picture; end its "
            "geometry with center_crop, pad, letterbox or an exact resize"
        )
    postprocess = postprocess.suited_to(outputs)
    pipeline = pipeline.model_copy(update={"postprocess": postprocess})
    results = answer_of(postprocess, definition, outputs, labels)
    # The size of each picture, for what is mapped back to it.
    size = (Tensor(IMAGE_SIZE, "int32", (2,)),) if postprocess.takes_image_size else ()

    batch = options.max_batch_size
    stamp = {"definition": definition.canonical_json(), "definition_digest": definition.digest, "pipeline": name}
    if version_of is not None:
        stamp[VERSION_OF] = version_of
    limits, per_core, python_cpu, image = terms.limits, terms.per_core, terms.python_cpu, terms.image
    # The names of classes lie in a file beside each model.
    after = {
        "postprocess": postprocess.model_dump_json(exclude={"labels", "characters"}),
        "network_outputs": ",".join(out.name for out in outputs),
        KIND_PARAMETER: postprocess.kind,
    }
    # A machine with a GPU reads config.pbtxt, any other configs/cpu.pbtxt.
    gpu = options.gpu
    if gpu.network_precision not in ENGINES[gpu.engine].precisions_on_triton:
        able = names_of(lambda engine: gpu.network_precision in engine.precisions_on_triton)
        raise BadPipeline(
            f"serving.gpu: Triton's {gpu.engine} backend runs model.onnx as it is, which is float32; precision "
            f"{gpu.network_precision} needs engine {able}, or --form dali-backend"
        )
    # A plan has one size of picture: where sides are free, a machine with a GPU runs everything on its CPU.
    python_gpu, network_gpu = (python_cpu, python_cpu) if is_free else on_gpu(options)
    fused_cpu, fused_per_core = python_cpu, dict[str, str]()
    if options.cpu_instances == "cores" and python_cpu.max_queue_size:
        # Behind a bounded queue a process has nothing to do for a moment after each batch; one more uses that moment.
        fused_cpu = replace(python_cpu, instances=python_cpu.instances + 1)
        fused_per_core = {INSTANCES_PARAMETER: "cores+1"}

    def model(
        role: str,
        inputs: tuple[Tensor, ...],
        produced: tuple[Tensor, ...],
        placements: dict[Device, Placement],
        warmup: Warmup,
        parameters: dict[str, str],
    ) -> Model:
        return Model(
            f"{name}_{role}",
            inputs,
            produced,
            placements,
            max_queue_ms=options.max_queue_ms,
            warmup=warmup,
            parameters={**stamp, **parameters},
        )

    between = {tensor.name: f"preprocess/{tensor.name}" for tensor in size}
    names_classes = labels is not None and postprocess.ranks_classes
    labelled = _with_labels_file(network_tensors) if names_classes else network_tensors
    return Repository(
        pipeline,
        (
            model(
                "preprocess",
                (image,),
                (pixels, *size),
                {"cpu": python_cpu, "gpu": python_gpu},
                terms.photo,
                limits | per_core,
            ),
            model(
                "model",
                (pixels,),
                labelled,
                {"cpu": python_cpu, "gpu": network_gpu},
                Warmup((small_pixels(definition),)),
                per_core,
            ),
            model(
                "postprocess",
                (*network_tensors, *size),
                results,
                # It takes what the steps before it let through, without a limit of its own.
                {
                    "cpu": Placement("python", "cpu", batch, python_cpu.instances if postprocess.takes_long else 1),
                    "gpu": Placement("python", "cpu", gpu.max_batch_size),
                },
                Warmup((*network_tensors, *size)),
                after
                | ({INSTANCES_PARAMETER: per_core[INSTANCES_PARAMETER]} if postprocess.takes_long else {})
                | ({"limits": limits["limits"]} if postprocess.takes_image_size else {}),
            ),
            model(
                "fused",
                (image,),
                results,
                {"cpu": fused_cpu, "gpu": fused_cpu if is_free else python_gpu},
                terms.photo,
                limits | per_core | fused_per_core | after,
            ),
        ),
        Ensemble(
            name,
            (Tensor(IMAGE, "uint8", (-1,)),),
            results,
            (
                Step(f"{name}_preprocess", {IMAGE: IMAGE}, {PIXELS: PIXELS} | between),
                Step(f"{name}_model", {PIXELS: PIXELS}, {out.name: f"network/{out.name}" for out in outputs}),
                Step(
                    f"{name}_postprocess",
                    {out.name: f"network/{out.name}" for out in outputs} | between,
                    {tensor.name: tensor.name for tensor in results},
                ),
            ),
            min(batch, gpu.max_batch_size),
            {
                **stamp,
                **{name: limits[name] for name in (MAX_BODY_BYTES_PARAMETER, TIMEOUT_PARAMETER)},
                KIND_PARAMETER: postprocess.kind,
            },
        ),
        labels,
        video=_video(pipeline, results, stamp | after, network_batch=min(batch, gpu.max_batch_size))
        if pipeline.video
        else None,
        background=background,
    )


def _video(
    pipeline: Pipeline, results: tuple[Tensor, ...], parameters: dict[str, str], *, network_batch: int
) -> StreamModel:
    """The model of a pipeline's video streams. Results leave with a dimension before their own: the frames."""
    options = pipeline.video
    assert options is not None
    if options.output:
        if not pipeline.postprocess.leaves_with_pictures:
            results = ()
            parameters = {name: value for name, value in parameters.items() if name != KIND_PARAMETER}
        results = (Tensor(VIDEO, "uint8", (-1,)), *results)
    return StreamModel(
        f"{pipeline.name}_video",
        (Tensor(MESSAGE, "uint8", (-1,)),),
        (Tensor(EVENT, "string", (1,)), *(Tensor(out.name, out.dtype, (-1, *out.dims)) for out in results)),
        {"cpu": "cpu", "gpu": "cpu" if options.decode == "cpu" else "gpu"},
        gpu=next(iter(pipeline.serving.gpu.gpu_numbers), 0),
        parameters={**parameters, "video": options.model_dump_json(), "network_batch": str(network_batch)},
    )


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
    gpu = options.gpu.model_copy(update={"precision": options.gpu.network_precision})
    python = Placement(
        "python",
        "gpu",
        gpu.max_batch_size,
        max_queue_size=gpu.max_queue_size,
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


def _with_labels_file(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    first = tensors[0]
    return (Tensor(first.name, first.dtype, first.dims, labels_file="labels.txt"), *tensors[1:])


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
    for relative, content in files.items():
        path = folder / relative
        if path.exists() and path.read_bytes() == content:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".part")
        temporary.write_bytes(content)
        temporary.replace(path)
        written.append(path)
    return written


def install_network(serialized: bytes, first: Path, second: Path) -> list[Path]:
    """Put a served network beside the two models that run it; the second is a hard link where that is possible."""
    temporary = first.with_name(first.name + ".part")
    temporary.write_bytes(serialized)
    temporary.replace(first)
    second.unlink(missing_ok=True)
    try:
        os.link(first, second)
    except OSError:
        shutil.copyfile(first, second)
    return [first, second]


def warmup_photo() -> bytes:
    """A small real JPEG that every instance decodes before it is ready."""
    return (resources.files("onestream.serving") / "data" / "warmup.jpg").read_bytes()
