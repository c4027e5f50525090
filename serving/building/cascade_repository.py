"""The model repository of a cascade: every file that Triton reads, computed from its stages and their networks.

    NAME              all stages in one model, which asks the networks inside the server
    NAME_STAGE_model  the network of a stage
    NAME_fused        all stages and their networks in one process
    each with         config.pbtxt (GPU), configs/cpu.pbtxt, 1/model.py; the first and the last hold a folder
                      stages/STAGE for each stage, with what else lies beside a model: definition.json, labels.txt

On a machine with a GPU they run on the CPU too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from onestream.preprocess import Definition
from onestream.serving.building.kinds import answer_of, tensors_of
from onestream.serving.building.repository import Terms, files_of, pixels_of, small_pixels, warmup_files
from onestream.serving.building.triton_config import Device, Model, Placement, Tensor, Warmup
from onestream.serving.cascade import SERVED_STAGES, STAGES_PARAMETER, Cascade, ServedStage
from onestream.serving.engine.served import NetworkOutput
from onestream.serving.errors import BadPipeline
from onestream.serving.pipeline import Pipeline
from onestream.wire.tensor_names import BOXES, IMAGE_SIZE, LEFT_OUT, QUADS

_CLASSES_SHOWN = 10
_NETWORK, _FORMS = "onestream.serving.models.image", "onestream.serving.models.cascade"


@dataclass(frozen=True, slots=True)
class PreparedStage:
    """A stage whose network is known: its pipeline, the network's outputs, the text of its labels file."""

    name: str
    pipeline: Pipeline
    outputs: Sequence[NetworkOutput]
    labels: str | None

    @property
    def definition(self) -> Definition:
        """From the picture, or a region of it, to the network's input."""
        return self.pipeline.preprocess


@dataclass(frozen=True, slots=True)
class CascadeRepository:
    """The models of a cascade, before they are written: the two forms, and the networks in the stages' order."""

    cascade: Cascade
    stages: tuple[PreparedStage, ...]
    asking: Model
    fused: Model
    networks: tuple[Model, ...]

    @property
    def model_names(self) -> list[str]:
        """Names of the models, which are those of their folders."""
        return [model.name for model in (self.asking, *self.networks, self.fused)]

    def files(self, *, source: str) -> dict[str, bytes]:
        """Every file by its path in the repository. ``source`` names the cascade file in the headers."""
        found = files_of(self.asking, module=_FORMS, adapter="Cascade", source=source)
        found |= files_of(self.fused, module=_FORMS, adapter="CascadeFused", source=source)
        for model, stage in zip(self.networks, self.stages, strict=True):
            found |= files_of(model, module=_NETWORK, adapter="Network", source=source)
            folders = [f"{form.name}/{STAGES_PARAMETER}/{stage.name}" for form in (self.asking, self.fused)]
            for folder in (model.name, *folders):
                definition = json.dumps(stage.definition.model_dump(mode="json"), indent=2)
                found[f"{folder}/definition.json"] = definition + "\n"
                if stage.labels is not None:
                    found[f"{folder}/labels.txt"] = stage.labels
        contents = {path: text.encode() for path, text in found.items()}
        return contents | warmup_files((self.asking, self.fused))


def plan(cascade: Cascade, stages: Sequence[PreparedStage]) -> CascadeRepository:
    """Compute the repository of a cascade.

    Raises ``BadNetwork`` and ``BadPipeline``, naming the stage, where a network does not suit its stage.
    """
    _check_class_names(stages)
    terms, answers = Terms.of(cascade.limits, cascade.serving), [_answer(stage) for stage in stages]
    served = tuple(
        ServedStage(
            name=stage.name,
            definition=stage.definition,
            definition_digest=stage.definition.digest,
            postprocess=stage.pipeline.postprocess,
            network_outputs=tuple(out.name for out in stage.outputs),
            answer=answer,
        )
        for stage, answer in zip(stages, answers, strict=True)
    )
    parameters = {
        "pipeline": cascade.name,
        STAGES_PARAMETER: SERVED_STAGES.dump_json(served).decode(),
        **terms.limits,
        **terms.per_core,
    }
    placements: dict[Device, Placement] = {"cpu": terms.python_cpu, "gpu": terms.python_cpu}
    results = _results([stage.name for stage in stages], answers)

    def form(name: str, warmup: Warmup | None) -> Model:
        return Model(
            name,
            (terms.image,),
            results,
            placements,
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
            {"cpu": own.python_cpu, "gpu": own.python_cpu},
            max_queue_ms=options.max_queue_ms,
            warmup=Warmup((small_pixels(stage.definition),)),
            parameters={**stamp, "pipeline": cascade.name, **own.per_core},
        )

    return CascadeRepository(
        cascade,
        tuple(stages),
        form(cascade.name, None),
        form(f"{cascade.name}_fused", terms.photo),
        tuple(map(network, stages)),
    )


def _check_class_names(stages: Sequence[PreparedStage]) -> None:
    """Raise ``BadPipeline`` where a stage takes regions of a class that the first one does not know."""
    known = set((stages[0].labels or "").splitlines())
    for stage in stages[1:]:
        region = stage.definition.region
        names = [name for name in (region.classes if region else ()) if isinstance(name, str)]
        if unknown := [name for name in names if name not in known]:
            raise BadPipeline(
                f"stage {stage.name}: region.classes has {unknown[0]!r}, which is no class of stage {stages[0].name}; "
                f"expected {', '.join(sorted(known)[:_CLASSES_SHOWN]) or 'ids, since it has no labels'}"
            )


def _answer(stage: PreparedStage) -> tuple[Tensor, ...]:
    return answer_of(stage.pipeline.postprocess, stage.definition, stage.outputs, stage.labels)


def _results(names: Sequence[str], answers: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """The answer of a cascade: where the regions are, and what each stage gave of them."""
    first = {tensor.name: tensor for tensor in answers[0]}
    found = [first[BOXES] if BOXES in first else first[QUADS], first[IMAGE_SIZE], Tensor(LEFT_OUT, "int32", (1,))]
    for name, answer in zip(names, answers, strict=True):
        prefix = "" if name == names[-1] else f"{name}_"
        for tensor in answer:
            if tensor.name in (BOXES, QUADS, IMAGE_SIZE):
                continue
            # Of the first stage the number of regions is a dimension already; a single value is none.
            dims = tensor.dims if name == names[0] else (-1, *(() if tensor.dims == (1,) else tensor.dims))
            found.append(Tensor(prefix + tensor.name, tensor.dtype, dims))
    return tuple(found)
