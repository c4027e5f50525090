"""A pipeline's repository for the unmodified Triton container: C++ backends, and no Python of ours while it serves.

    NAME              ensemble: NAME_preprocess, NAME_model
    NAME_preprocess   backend dali: 1/dali.py, which the backend serializes when it loads
    NAME_model        backend tensorrt or onnxruntime, softmax and top-k in the graph

    with              config.pbtxt (GPU), configs/cpu.pbtxt, definition.json

What this form cannot promise is in the README.md that is written beside the models.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import onnx
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from onestream.postprocess.labels import names_in
from onestream.serving.building import pipeline_repository, repository
from onestream.serving.building.dali_backend.serialize import pipeline_file
from onestream.serving.built.triton_config import (
    Device,
    Ensemble,
    Model,
    Placement,
    Step,
    Tensor,
    from_text,
    to_text,
)
from onestream.serving.engine.cuda_graphs import tuned_sizes
from onestream.serving.engine.precision import to_float16
from onestream.serving.engine.served import cast_first, outputs
from onestream.serving.engine.table import ENGINES
from onestream.serving.errors import BadPipeline
from onestream.serving.graph.onnx_postprocess import with_labels, with_postprocess
from onestream.serving.pipeline import Pipeline
from onestream.wire.tensor_names import IMAGE, LABELS, PIXELS

README = """\
# Models for the unmodified Triton container

Written by `onestream build --form dali-backend`. Nothing of onestream is needed to serve them: every `NAME` is an
ensemble of `NAME_preprocess` (Triton's DALI backend; `1/dali.py` is serialized when it loads) and `NAME_model`
(TensorRT or ONNX Runtime; softmax and top-k are part of the network).

## Serve

YY.MM is one Triton release, 26.03 or newer. Where its DALI is older than 2.2, images are decoded whole, and WebP files
with an EXIF orientation come out wrong:

    docker run --rm nvcr.io/nvidia/tritonserver:YY.MM-py3 python3 -c 'import nvidia.dali as d; print(d.__version__)'

Where a `NAME_model/build_plan.sh` is there, make its plan first, on the GPU that will serve. A plan fits one TensorRT
version and one kind of GPU:

    docker run --rm --gpus all -v "$PWD:/models" nvcr.io/nvidia/tensorrt:YY.MM-py3 sh /models/NAME_model/build_plan.sh

With a GPU:

    docker run --rm --gpus all -v "$PWD:/models:ro" -p 127.0.0.1:8000-8002:8000-8002 \\
        nvcr.io/nvidia/tritonserver:YY.MM-py3 tritonserver --model-repository=/models

Without one, leave out `--gpus all` and add `--model-config-name=cpu` at the end; `configs/cpu.pbtxt` says how many
instances run.

## What a request gives

`image`, UINT8 [1, bytes], is one encoded file; many images are many requests, which Triton batches. `scores` and
`class_ids` come back best first. `labels` come with ONNX Runtime. TensorRT has no strings: use `class_ids` with the
lines of `NAME_model/labels.txt`, counted from 0. Triton's `label_filename` cannot do that, since it names by position
and the positions are ranks here.

## What this form cannot promise

- **On a GPU a bad image fails every request of its batch.** On a CPU images run one by one, and it fails alone.
- **Errors are Triton's own**: a bad image, too, is answered with UNKNOWN or INTERNAL, in the words of DALI and with
  file paths of the server. Do not pass them on.
- **Limits come late and fail like a bad image.** Bytes and pixels are checked before decoding, but Triton has read the
  whole body by then: bound it in a proxy. `limits.formats` is not checked: what DALI decodes is accepted.
- **Unclear metadata may turn an image or fail it**: a second EXIF block, a malformed orientation entry, and in WebP an
  EXIF block with JPEG's prefix or after a chunk of odd length.
- **Nobody checks at load that the files belong together.** Each model carries the definition and its digest
  (`definition.json` and `parameters` of its configuration); build again rather than mix.
- **Without a GPU driver every batch must hold one image** (`preferred_batch_size: 1` in `configs/cpu.pbtxt`): the DALI
  backend copies larger ones with CUDA and fails all of them.

Use it where the container may not be changed and the images are known to be good. Otherwise the default form
(`onestream build`) isolates bad images, tells errors apart and is watched by `onestream serve`.
"""


Form = Literal["python", "dali-backend"]
"""*python*: our models in Triton's Python backend. *dali-backend*: the C++ backends of the unmodified container."""

_FORM_PARAMETER = "form"
_CPU_NETWORK, _GPU_NETWORK = "model.onnx", "gpu.onnx"
_PLAN_SCRIPT = """\
#!/bin/sh
# Makes 1/model.plan for the GPU of this machine, with the TensorRT of this container. Options of trtexec may be added.
set -e
cd "$(dirname "$0")/1"
PATH="$PATH:/opt/tensorrt/bin:/usr/src/tensorrt/bin"
exec trtexec --onnx={network} --saveEngine=model.plan --skipInference --stronglyTyped{tf32} \\
{profiles}    "$@"
"""
_PROFILE = (
    "--profile={} --minShapes={tensor}:1x{dims} --optShapes={tensor}:{}x{dims} --maxShapes={tensor}:{most}x{dims}"
)


@dataclass(frozen=True, slots=True)
class StockRepository:
    """The models of one pipeline for the unmodified container, before they are written.

    ``networks`` are the ONNX files of ``NAME_model`` by name.
    """

    pipeline: Pipeline
    ensemble: Ensemble
    models: tuple[Model, Model]
    labels: str | None
    networks: dict[str, bytes]

    @property
    def model_names(self) -> list[str]:
        """Names of the models, which are those of their folders: the ensemble, then its steps."""
        return [self.ensemble.name, *(model.name for model in self.models)]

    def files(self, *, source: str) -> dict[str, bytes]:
        """Every file by its path in the repository. ``source`` names the pipeline file in the headers."""
        name, gpu = self.pipeline.name, self.pipeline.serving.gpu
        preprocess, network = self.models
        found = {
            "README.md": README,
            f"{name}/config.pbtxt": to_text(self.ensemble.config(), source=source),
            f"{name}/1/.gitkeep": "",
            f"{preprocess.name}/1/dali.py": pipeline_file(self.pipeline, source=source),
        }
        for model in self.models:
            found[f"{model.name}/config.pbtxt"] = to_text(self._config(model, "gpu"), source=source)
            found[f"{model.name}/configs/cpu.pbtxt"] = to_text(self._config(model, "cpu"), source=source)
        if ENGINES[gpu.engine].needs_plan:
            (pixels,) = network.inputs
            # Those that the configuration names (``triton_config``).
            profiles = enumerate(tuned_sizes(gpu.max_batch_size))
            shape = {"tensor": PIXELS, "dims": "x".join(map(str, pixels.dims)), "most": gpu.max_batch_size}
            found[f"{network.name}/build_plan.sh"] = _PLAN_SCRIPT.format(
                network=_GPU_NETWORK,
                profiles="".join(f"    {_PROFILE.format(number, tuned, **shape)} \\\n" for number, tuned in profiles),
                tf32="" if gpu.precision == "tf32" else " --noTF32",
            )
        contents = {path: text.encode() for path, text in found.items()}
        contents |= {f"{network.name}/1/{file}": content for file, content in self.networks.items()}
        for folder, own in (
            (name, repository.beside(self.pipeline.preprocess)),
            (preprocess.name, repository.beside(self.pipeline.preprocess) | repository.warmup_files(preprocess)),
            (network.name, repository.beside(self.pipeline.preprocess, self.labels)),
        ):
            contents |= {f"{folder}/{path}": content for path, content in own.items()}
        return contents

    def _config(self, model: Model, device: Device) -> ModelConfig:
        config = model.config(device)
        if device == "cpu":
            # The DALI backend copies the inputs of a larger batch with CUDA, which fails where there is no driver.
            # And no image's result then depends on its batch.
            config.dynamic_batching.preferred_batch_size.append(1)
        elif model is self.models[1] and _GPU_NETWORK in self.networks:
            # A plan has the name that Triton's backend looks for.
            needs_plan = ENGINES[self.pipeline.serving.gpu.engine].needs_plan
            config.default_model_filename = "" if needs_plan else _GPU_NETWORK
        return config


def plan(pipeline: Pipeline, network: onnx.ModelProto, *, labels: str | None) -> StockRepository:
    """Compute the stock form of a pipeline from its served network. ``labels`` is the text of the labels file.

    Raises as ``onestream.serving.building.pipeline_repository.plan``, and ``BadNetwork`` where postprocessing cannot be
    appended to the network.
    """
    if pipeline.postprocess.takes_image_size:
        raise BadPipeline(
            f"postprocess {pipeline.postprocess.kind} maps results back to each picture, for which the unmodified "
            "container has no model; build the form python, or write postprocess: {kind: raw}"
        )
    options, gpu = pipeline.serving, pipeline.serving.gpu
    engine = ENGINES[gpu.engine]
    # The default form has the same tensors, and refuses a precision that this one can run.
    planned = pipeline_repository.plan(_with_precision(pipeline, "fp32"), outputs(network), labels=labels)
    whole = planned.served[0].model
    assert isinstance(whole, Ensemble)
    preprocess, runs = planned.models[:2]
    networks, results = _networks(pipeline, whole.outputs, labels, network)
    stamp = {**whole.parameters, _FORM_PARAMETER: "dali-backend"}
    instances = preprocess.placements["cpu"].instances
    models = (
        replace(
            preprocess,
            placements={
                "gpu": Placement(
                    "dali",
                    "gpu",
                    gpu.max_batch_size,
                    gpus=gpu.gpu_numbers,
                    parameters={"num_threads": str(gpu.decoder_threads)},
                ),
                "cpu": Placement("dali", "cpu", options.max_batch_size, instances, parameters={"num_threads": "1"}),
            },
            parameters=stamp,
        ),
        replace(
            runs,
            outputs=results,
            placements={
                "gpu": replace(
                    runs.placements["gpu"],
                    parameters={},
                    cuda_provider=engine.on_triton(gpu).cuda_provider,
                ),
                "cpu": Placement(
                    options.cpu.engine,
                    "cpu",
                    options.max_batch_size,
                    instances,
                    parameters={"intra_op_thread_count": str(options.cpu_threads)},
                ),
            },
            parameters=stamp,
        ),
    )
    ensemble = Ensemble(
        pipeline.name,
        whole.inputs,
        results,
        (
            Step(preprocess.name, {IMAGE: IMAGE}, {PIXELS: PIXELS}),
            Step(runs.name, {PIXELS: PIXELS}, {tensor.name: tensor.name for tensor in results}),
        ),
        # One request is one image; the steps batch those of many requests.
        1,
        stamp,
    )
    return StockRepository(pipeline, ensemble, models, labels, networks)


def _with_precision(pipeline: Pipeline, precision: Literal["fp32"]) -> Pipeline:
    gpu = pipeline.serving.gpu.model_copy(update={"precision": precision})
    return pipeline.model_copy(update={"serving": pipeline.serving.model_copy(update={"gpu": gpu})})


def _networks(
    pipeline: Pipeline, results: tuple[Tensor, ...], labels: str | None, served: onnx.ModelProto
) -> tuple[dict[str, bytes], tuple[Tensor, ...]]:
    """The ONNX files of a pipeline by name, and their outputs; ``results`` are those of the default form."""
    gpu = pipeline.serving.gpu
    engine = ENGINES[gpu.engine]
    has_labels = pipeline.postprocess.ranks_classes and engine.takes_text

    def finished(network: onnx.ModelProto) -> onnx.ModelProto:
        tailed = with_postprocess(network, pipeline.postprocess)
        names = None if labels is None else names_in(labels)
        return with_labels(tailed, names) if has_labels else tailed

    found = {_CPU_NETWORK: finished(served)}
    if engine.needs_plan or gpu.precision == "fp16":
        on_gpu = finished(to_float16(served) if gpu.precision == "fp16" else served)
        found[_GPU_NETWORK] = cast_first(on_gpu) if engine.needs_plan else on_gpu
    if pipeline.postprocess.ranks_classes and not has_labels:
        results = tuple(tensor for tensor in results if tensor.name != LABELS)
    return {name: model.SerializeToString() for name, model in found.items()}, results


def install(stock: StockRepository, folder: Path, *, source: str) -> list[Path]:
    """Write what is missing or differs, and remove a plan made of another network; returns what was written."""
    written = repository.write(stock.files(source=source), folder, pipeline=stock.pipeline.name)
    version = folder / f"{stock.pipeline.name}_model" / "1"
    if _GPU_NETWORK not in stock.networks:
        (version / _GPU_NETWORK).unlink(missing_ok=True)
    if _GPU_NETWORK not in stock.networks or version / _GPU_NETWORK in written:
        (version / "model.plan").unlink(missing_ok=True)
    return written


def check_folder(folder: Path, form: Form) -> None:
    """Raise ``BadPipeline`` where a folder holds pipelines of the other form: no server could load both."""
    for path in sorted(folder.glob("*/config.pbtxt")):
        try:
            parameters = from_text(path.read_text(encoding="utf-8")).parameters
        except (OSError, UnicodeDecodeError, text_format.ParseError):
            continue
        found = parameters[_FORM_PARAMETER].string_value or "python"
        if parameters["pipeline"].string_value and found != form:
            raise BadPipeline(
                f"{folder} holds {path.parent.name}, built with --form {found}; give --form {form} another folder: "
                "--repository DIR"
            )
