"""Which forms of a pipeline are built: *ensemble*, NAME step by step, and *fused*, NAME_fused in one process.

Both names are served always. Where a form is left out, its name is an ensemble over the other one, which has no process
and no memory of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from onestream.serving.building.repository import Repository, ServedModel
from onestream.serving.built.triton_config import INSTANCES_PARAMETER, QUEUE_PARAMETER, Ensemble, Model, Step
from onestream.serving.built.versions import built_versions, has_both_forms
from onestream.serving.errors import BadPipeline, BadVersion
from onestream.serving.pipeline import FORMS, ServingOptions

VIDEO = "video"
_OF_PROCESSES = (INSTANCES_PARAMETER, QUEUE_PARAMETER, "threads")
"""Parameters of which an ensemble has no use."""


def planned(served: Sequence[ServedModel], options: ServingOptions) -> Repository:
    """The repository with the forms that the options name, of all models that a pipeline can have, NAME first."""
    wanted = {*options.forms, *(VIDEO for one in served if one.forms == (VIDEO,))}
    kept = [one for one in served if wanted.intersection(one.forms)]
    whole, fused = served[0], next(one for one in served if one.forms == ("fused",))
    if "ensemble" not in wanted:
        kept.insert(0, _standing_for(whole, fused))
    if "fused" not in wanted:
        kept.append(_standing_for(fused, whole))
    names = {one.model.name for one in kept}
    return Repository(tuple(kept), options, tuple(one.model.name for one in served if one.model.name not in names))


def check(folder: Path, name: str, version: int, forms: Collection[str]) -> None:
    """Raise ``BadVersion`` where a pipeline in one form alone would be a version among others."""
    others = [number for number in built_versions(folder, name) if number != version]
    if others and (set(forms) != set(FORMS) or not has_both_forms(folder, name)):
        raise BadVersion(
            f"versions of a pipeline, of which {folder} holds {', '.join(map(str, others))}, are exchanged in both "
            f"forms; expected serving.forms: [{', '.join(FORMS)}] in each"
        )


def check_left_out(repository: Repository, folder: Path) -> None:
    """Raise ``BadPipeline`` where the folder holds models of a form that is left out: a server would load them."""
    if found := [name for name in repository.left_out if (folder / name / "config.pbtxt").exists()]:
        raise BadPipeline(
            f"{folder} holds {', '.join(found)} of an earlier build, which serving.forms leaves out; remove these "
            "folders, or give another one: --repository DIR"
        )


def network_files(repository: Repository, files: Sequence[Path]) -> list[Path]:
    """Of the files that a network can have, those in models that are built; that in NAME_fused is always one."""
    return [file for file in files if file.parents[1].name not in repository.left_out]


def _standing_for(left_out: ServedModel, other: ServedModel) -> ServedModel:
    """An ensemble with the name and the tensors of a form that is left out, over the other form."""
    model, over = left_out.model, other.model
    assert isinstance(model, Model | Ensemble)
    whole = Step(over.name, {one.name: one.name for one in over.inputs}, {one.name: one.name for one in over.outputs})
    sizes = (
        [model.max_batch_size]
        if isinstance(model, Ensemble)
        else [place.max_batch_size for place in model.placements.values()]
    )
    # That of the process says more, such as the limits, which are otherwise asked of a step.
    told = over if isinstance(model, Ensemble) else model
    ensemble = Ensemble(
        model.name,
        tuple(replace(one, ragged=False) for one in model.inputs),
        model.outputs,
        over.steps if isinstance(over, Ensemble) else (whole,),
        min(sizes),
        {name: value for name, value in told.parameters.items() if name not in _OF_PROCESSES},
    )
    return replace(left_out, model=ensemble, adapter=None)
