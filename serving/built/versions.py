"""Versions of a pipeline in one repository, and the pin that says which of them its name means.

Version 1 is the pipeline NAME itself. A later version N is built beside it under names of its own, ``NAME_vN`` and its
steps, so that each has its definition, stamps and limits. ``versions.json`` pins the version that is served as NAME;
where there is one in the run folder (``run_folder``), the repository's own does not count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Annotated

from google.protobuf import text_format
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from tritonclient.grpc.model_config_pb2 import ModelConfig

from onestream.serving.built.run_folder import run_folder
from onestream.serving.built.triton_config import from_text
from onestream.serving.errors import BadVersion
from onestream.wire.kinds import STAGES_PARAMETER

VERSIONS_FILE = "versions.json"
VERSION_OF = "version_of"
"""Parameter of every model of version 2 and later: the pipeline that it is a version of."""

FORMS = ("", "_fused")
VIDEO = "_video"


class Pin(BaseModel):
    """The version that is served, and the one that was served before it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Annotated[int, Field(ge=1)] = 1
    previous: Annotated[int, Field(ge=1)] | None = None


_PINS = TypeAdapter(dict[str, Pin])


def version_name(pipeline: str, version: int) -> str:
    """The name under which a version was built, with which the names of its models begin."""
    return pipeline if version == 1 else f"{pipeline}_v{version}"


def served_name(repository: Path, pipeline: str) -> str:
    """The name under which the version was built that a start serves as NAME. Raises ``BadVersion``."""
    return version_name(pipeline, _pins_in_file(repository).get(pipeline, Pin()).version)


def version_forms(pipeline: str, version: int) -> list[str]:
    """The names by which a running server offers exactly this version, while NAME and NAME_fused mean another."""
    return [f"{pipeline}_v{version}{form}" for form in FORMS]


def version_steps(repository: Path, pipeline: str, version: int) -> list[str]:
    """What a version's NAME needs: the steps of its ensemble in their order, or the networks that a cascade asks."""
    name = version_name(pipeline, version)
    steps = [step.model_name for step in _config_of(repository, name).ensemble_scheduling.step]
    return steps or networks_asked(repository, name)


def networks_asked(repository: Path, model: str) -> list[str]:
    """The networks that a model asks by itself, of which Triton knows nothing: those of a cascade or of streams."""
    parameters = {} if is_ensemble(repository, model) else parameters_of(repository, model)
    pipeline, stages = parameters.get("pipeline"), parameters.get(STAGES_PARAMETER)
    if stages is not None and (model == pipeline or "video" in parameters):
        return [f"{pipeline}_{stage['name']}_model" for stage in json.loads(stages)]
    return [f"{pipeline}_model"] if "video" in parameters else []


def has_both_forms(repository: Path, name: str) -> bool:
    """Whether NAME and NAME_fused are models of their own, not one an ensemble over the other."""
    steps = [step.model_name for step in _config_of(repository, name).ensemble_scheduling.step]
    return f"{name}_fused" not in steps and not is_ensemble(repository, f"{name}_fused")


def models_in(repository: Path) -> list[str]:
    """The names of the models of a repository that have a configuration, sorted."""
    return sorted(path.parent.name for path in repository.glob("*/config.pbtxt"))


def built_versions(repository: Path, pipeline: str) -> list[int]:
    """The versions of a pipeline that a repository holds, in order; empty where it does not know the pipeline."""
    later = re.compile(re.escape(pipeline) + r"_v(\d+)")
    found = [
        int(match[1]) for path in repository.glob("*/config.pbtxt") if (match := later.fullmatch(path.parent.name))
    ]
    first = [1] if (repository / pipeline / "config.pbtxt").exists() else []
    return first + sorted(
        number for number in found if number > 1 and version_of(repository, f"{pipeline}_v{number}") == pipeline
    )


def version_of(repository: Path, model: str) -> str | None:
    """The pipeline that a model is a later version of; None for any other model."""
    return parameters_of(repository, model).get(VERSION_OF) or None


def read_pins(repository: Path) -> dict[str, Pin]:
    """The pins of a repository, by pipeline; empty where it has none.

    Raises ``BadVersion`` where the file cannot be read, or pins a version that was not built.
    """
    pins = _pins_in_file(repository)
    for pipeline, pin in pins.items():
        check_built(repository, pipeline, pin.version)
    return pins


def write_pin(repository: Path, pipeline: str, pin: Pin) -> None:
    """Pin a version, at once or not at all. Raises ``BadVersion``, or ``OSError`` where the folder is read-only."""
    path = run_folder(repository) / VERSIONS_FILE
    temporary = path.with_name(f"{VERSIONS_FILE}.part")
    temporary.write_bytes(_PINS.dump_json(read_pins(repository) | {pipeline: pin}, indent=2) + b"\n")
    temporary.replace(path)


def check_built(repository: Path, pipeline: str, version: int) -> None:
    """Raise ``BadVersion`` naming the versions that there are, unless this is one."""
    built = built_versions(repository, pipeline)
    if version not in built:
        known = ", ".join(map(str, built)) or "none"
        raise BadVersion(
            f"{repository} holds no version {version} of {pipeline}, only: {known}; "
            f"make it with `onestream build FILE --version {version}`"
        )


def check_replaceable(repository: Path, pipeline: str, version: int) -> None:
    """Raise ``BadVersion`` where a version was built, and is what a rollout serves or what ``--back`` returns to."""
    pin, built = _pins_in_file(repository).get(pipeline), built_versions(repository, pipeline)
    if pin is None or version not in built or version not in (pin.version, pin.previous):
        return
    served = version == pin.version
    why = "is served" if served else f"is what --back returns to (version {pin.version} is served)"
    free = next(number for number in count(version + 1) if number not in built)
    raise BadVersion(f"version {version} of {pipeline} {why}; build another: --version {free}")


def models_to_load(repository: Path, pins: Mapping[str, Pin], wanted: Sequence[str]) -> tuple[str, ...]:
    """Names to load at a start: ``wanted``, or for ``"*"`` everything but the versions that are not pinned.

    Models that an ensemble needs come with it, and are not named. Networks that a model asks by itself are.
    """
    names = list(wanted)
    if "*" in wanted:
        names = sorted(path.name for path in repository.iterdir() if path.is_dir())
        unneeded = {name for name in names if version_of(repository, name)}
        for pipeline, pin in pins.items():
            if pin.version > 1:
                unneeded |= set(version_steps(repository, pipeline, 1))
        if not unneeded:
            return ("*",)
        names = [name for name in names if name not in unneeded]
    # What a pipeline's names mean asks the networks of its version.
    meant = {
        f"{pipeline}{form}": f"{version_name(pipeline, pin.version)}{form}"
        for pipeline, pin in pins.items()
        for form in (*FORMS, VIDEO)
    }
    needed = (one for name in names for one in (name, *networks_asked(repository, meant.get(name, name))))
    return tuple(dict.fromkeys(needed))


def parameters_of(repository: Path, model: str) -> dict[str, str]:
    """The parameters in a model's configuration; none where there is no readable one."""
    return {name: parameter.string_value for name, parameter in _config_of(repository, model).parameters.items()}


def is_ensemble(repository: Path, model: str) -> bool:
    """Whether a model is an ensemble, which has no process of its own."""
    return bool(_config_of(repository, model).platform == "ensemble")


def _pins_in_file(repository: Path) -> dict[str, Pin]:
    """The pins as they are written, of versions that are there or not. Raises ``BadVersion``."""
    files = [path for folder in (run_folder(repository), repository) if (path := folder / VERSIONS_FILE).exists()]
    if not files:
        return {}
    try:
        return _PINS.validate_json(files[0].read_bytes())
    except (OSError, ValidationError):
        raise BadVersion(
            f'{files[0]} is no list of pinned versions; expected something like {{"classify": {{"version": 2}}}}'
        ) from None


def _config_of(repository: Path, model: str) -> ModelConfig:
    """A model's configuration; an empty one where there is none that can be read."""
    try:
        return from_text((repository / model / "config.pbtxt").read_text(encoding="utf-8"))
    except (OSError, text_format.ParseError, UnicodeDecodeError):
        return ModelConfig()
