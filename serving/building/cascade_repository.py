"""The model repository of a cascade: every file that Triton reads, computed from its stages and their networks.

    NAME              all stages in one model, which asks the networks inside the server
    NAME_STAGE_model  the network of a stage
    NAME_fused        all stages and their networks in one process
    NAME_video        streams, where the cascade takes them; it asks the networks as NAME does
    each with         config.pbtxt (GPU), configs/cpu.pbtxt, 1/model.py; all but the networks hold a folder
                      stages/STAGE for each stage, with what else lies beside a model: definition.json, labels.txt

On a machine with a GPU NAME_fused runs there, and Triton's ONNX Runtime runs the networks, where the cascade asks for
that engine; everything else is on the CPU.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from onestream.postprocess.kinds.base import place_of
from onestream.postprocess.labels import names_in
from onestream.postprocess.network import NetworkOutput
from onestream.preprocess import Definition
from onestream.preprocess.backends.table import BACKENDS
from onestream.serving.building import forms
from onestream.serving.building.repository import (
    Repository,
    ServedModel,
    Terms,
    answer_of,
    beside,
    on_gpu,
    pixels_of,
    small_pixels,
    stream_model,
    tensors_of,
)
from onestream.serving.built.triton_config import Model, Placement, Tensor, Warmup
from onestream.serving.built.versions import VERSION_OF
from onestream.serving.cascade import SERVED_STAGES, Cascade, ServedStage
from onestream.serving.engine.table import ENGINES
from onestream.serving.errors import BadPipeline
from onestream.serving.pipeline import GpuOptions, Pipeline
from onestream.wire.kinds import KIND_PARAMETER, STAGES_PARAMETER
from onestream.wire.tensor_names import BOXES, IMAGE_SIZE, LEFT_OUT, QUADS

_CLASSES_SHOWN = 10
_NETWORK, _FORMS = "onestream.serving.models.image", "onestream.serving.models.cascade"
_VIDEO = "onestream.serving.video.cascade"
_NOT_ON_GPU = (
    (
        "decode",
        "cpu",
        "it sends a network's pixels, and regions are cut from the whole picture; expected gpu or hybrid",
    ),
    ("resize", "hq", "regions are resized as the CPU does it; expected exact"),
    ("precision", "fp16", "Triton runs the networks of NAME as they are, which is float32; expected fp32 or tf32"),
)


@dataclass(frozen=True, slots=True)
class PreparedStage:
    """A stage whose network is known: its pipeline, the network's outputs, the text of its labels file.

    ``classes`` is how many the network has, where it says that.
    """

    name: str
    pipeline: Pipeline
    outputs: Sequence[NetworkOutput]
    labels: str | None
    classes: int | None

    @property
    def class_ids(self) -> Collection[int] | None:
        """The ids that a detector's classes have in the answer; None where they are unknown."""
        ids = self.pipeline.postprocess.id_of_class
        if ids is not None:
            return ids
        return None if self.classes is None else range(self.classes)

    @property
    def definition(self) -> Definition:
        """From the picture, or a region of it, to the network's input."""
        return self.pipeline.preprocess


def plan(cascade: Cascade, stages: Sequence[PreparedStage], *, version_of: str | None = None) -> Repository:
    """Compute the repository of a cascade. ``version_of`` names the one that it is a later version of.

    Raises ``BadNetwork`` and ``BadPipeline``, naming the stage, where a network does not suit its stage.
    """
    _check_classes(stages)
    _check_gpu(cascade.serving.gpu)
    terms, answers = Terms.of(cascade.limits, cascade.serving), [stage_answer(stage) for stage in stages]
    served = tuple(
        ServedStage(
            name=stage.name,
            definition=stage.definition,
            definition_digest=stage.definition.digest,
            postprocess=stage.pipeline.postprocess,
            network_outputs=tuple(out.name for out in stage.outputs),
            answer=answer,
            gpu_batch=stage.pipeline.serving.gpu.max_batch_size,
        )
        for stage, answer in zip(stages, answers, strict=True)
    )
    named = {"pipeline": cascade.name} | ({} if version_of is None else {VERSION_OF: version_of})
    parameters = {
        **named,
        KIND_PARAMETER: stages[-1].pipeline.postprocess.kind_of_cascade,
        STAGES_PARAMETER: SERVED_STAGES.dump_json(served).decode(),
        **terms.limits,
        **terms.per_core,
    }
    uses_gpu = runs_on_gpu(cascade.serving.gpu)
    results = _results([stage.name for stage in stages], answers)

    def form(name: str, gpu: Placement, warmup: Warmup | None) -> Model:
        return Model(
            name,
            (terms.image,),
            results,
            {"cpu": terms.python_cpu, "gpu": gpu},
            max_queue_ms=cascade.serving.max_queue_ms,
            warmup=warmup,
            parameters=parameters,
        )

    def network(stage: PreparedStage) -> Model:
        options = stage.pipeline.serving
        own = Terms.of(cascade.limits, options)
        stamp = {"definition": stage.definition.canonical_json(), "definition_digest": stage.definition.digest}
        return Model(
            f"{stage.pipeline.name}_model",
            (pixels_of(stage.definition),),
            tensors_of(stage.outputs),
            {"cpu": own.python_cpu, "gpu": on_gpu(options)[1] if uses_gpu else own.python_cpu},
            max_queue_ms=options.max_queue_ms,
            warmup=Warmup((small_pixels(stage.definition),)),
            parameters={**stamp, **named, **own.per_core},
        )

    own: dict[str, bytes] = {}
    for stage in stages:
        own |= beside(stage.definition, stage.labels, folder=f"{STAGES_PARAMETER}/{stage.name}/")
    fused_gpu = on_gpu(cascade.serving)[0] if uses_gpu else terms.python_cpu
    of_network = (_NETWORK, "Network")
    models = [
        ServedModel(form(cascade.name, terms.python_cpu, None), (_FORMS, "Cascade"), own, ("ensemble",)),
        *(
            ServedModel(network(one), of_network, beside(one.definition, one.labels), ("ensemble", forms.VIDEO))
            for one in stages
        ),
        ServedModel(form(f"{cascade.name}_fused", fused_gpu, terms.photo), (_FORMS, "CascadeFused"), own, ("fused",)),
    ]
    if cascade.video is not None:
        # On the CPU, as the asking form is.
        video = stream_model(cascade.name, results, cascade.video, parameters, network_batch=1)
        models.append(ServedModel(video, (_VIDEO, "CascadeVideo"), own, (forms.VIDEO,)))
    return forms.planned(models, cascade.serving)


def runs_on_gpu(options: GpuOptions) -> bool:
    """Whether a cascade runs on the GPU of a machine that has one: a plan of TensorRT takes pictures of one size."""
    return not ENGINES[options.engine].needs_plan


def _check_gpu(options: GpuOptions) -> None:
    """Raise ``BadPipeline`` where a cascade would run on a GPU and cannot do so as the options say."""
    if not runs_on_gpu(options):
        return
    if BACKENDS[options.backend].pictures_on != "gpu":
        able = " or ".join(name for name, row in BACKENDS.items() if row.pictures_on == "gpu")
        raise BadPipeline(
            f"serving.gpu.backend: {options.backend} is not for a cascade: it gives a network's pixels, and regions "
            f"are cut from the whole picture; expected {able}"
        )
    for name, value, reason in _NOT_ON_GPU:
        if getattr(options, name) == value:
            raise BadPipeline(f"serving.gpu.{name}: {value} is not for a cascade: {reason}")


def _check_classes(stages: Sequence[PreparedStage]) -> None:
    """Raise ``BadPipeline`` where a stage takes regions of a class that the first one does not know."""
    first = stages[0]
    names, ids = set(names_in(first.labels) if first.labels else ()), first.class_ids
    for stage in stages[1:]:
        region = stage.definition.region
        for wanted in region.classes if region else ():
            if isinstance(wanted, str) and wanted not in names:
                expected = ", ".join(sorted(names)[:_CLASSES_SHOWN]) or "ids, since it has no labels"
            elif isinstance(wanted, int) and ids is not None and wanted not in ids:
                expected = f"one of its {len(ids)} ids, {min(ids)} to {max(ids)}"
            else:
                continue
            raise BadPipeline(
                f"stage {stage.name}: region.classes has {wanted!r}, which is no class of stage {first.name}; "
                f"expected {expected}"
            )


def stage_answer(stage: PreparedStage) -> tuple[Tensor, ...]:
    """What a stage gives of one picture or region. Raises as ``answer_of``."""
    return answer_of(stage.pipeline.postprocess, stage.definition, stage.outputs, stage.labels)


def _results(names: Sequence[str], answers: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """The answer of a cascade: where the regions are, and what each stage gave of them."""
    first = {tensor.name: tensor for tensor in answers[0]}
    found = [first[place_of(first)], first[IMAGE_SIZE], Tensor(LEFT_OUT, "int32", (1,))]
    for name, answer in zip(names, answers, strict=True):
        prefix = "" if name == names[-1] else f"{name}_"
        for tensor in answer:
            if tensor.name in (BOXES, QUADS, IMAGE_SIZE, LEFT_OUT):
                continue
            # Of the first stage the number of regions is a dimension already; a single value is none.
            dims = tensor.dims if name == names[0] else (-1, *(() if tensor.dims == (1,) else tensor.dims))
            found.append(Tensor(prefix + tensor.name, tensor.dtype, dims))
    return tuple(found)
