"""Triton's own options in a pipeline file, merged into the configurations that a build generates.

``serving.triton`` holds fields of Triton's ``ModelConfig`` by the role of a model, as a config.pbtxt names them. What
the pipeline promises, such as inputs, outputs and batches, is not among them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from onestream.preprocess.user_files import instead
from onestream.serving.built.triton_config import INSTANCES_PARAMETER, Device
from onestream.serving.errors import BadPipeline
from onestream.serving.pipeline import ServingOptions
from onestream.wire.kinds import KIND_PARAMETER

WHOLE = "ensemble"
"""The role of ``NAME`` itself; those of ``NAME_preprocess`` and the others are the rest of their names."""

_TENSORS = "preprocess, network and postprocess say the tensors"
_ENGINE = "serving.gpu.engine chooses what runs a network"
_ORDER = "a priority is in the request; see serving.max_queue_size"
_REFUSED = {
    "name": "it is the pipeline's name and the role",
    "platform": _ENGINE,
    "backend": _ENGINE,
    "runtime": _ENGINE,
    "default_model_filename": _ENGINE,
    "cc_model_filenames": _ENGINE,
    "max_batch_size": "use serving.max_batch_size and serving.gpu.max_batch_size",
    "input": _TENSORS,
    "output": _TENSORS,
    "batch_input": _TENSORS,
    "batch_output": _TENSORS,
    "ensemble_scheduling": "the steps are the pipeline's",
    "sequence_batching": "requests are independent; streams are for video",
    "model_transaction_policy": "streams are for video",
    "dynamic_batching.priority_levels": _ORDER,
    "dynamic_batching.default_priority_level": _ORDER,
    "dynamic_batching.default_queue_policy": "use serving.max_queue_size and serving.max_queue_ms",
    "instance_group.kind": "serving.gpu says what is on a GPU",
    "instance_group.passive": "such an instance answers no request; use count",
    "optimization.execution_accelerators": "use serving.gpu.engine and serving.gpu.precision",
}
"""Fields by their path in a role, and what to use in their place."""

_OF_STEPS = dict.fromkeys(
    ("instance_group", "dynamic_batching", "optimization", "model_warmup", "response_cache"),
    "an ensemble runs nothing itself; use the roles of its steps",
)
_OF_STREAMS = dict.fromkeys(
    ("instance_group", "dynamic_batching", "response_cache"), "streams have one instance, which takes them in order"
)
_CACHED = (
    "Triton's cache looks at the inputs alone, and a request's parameters change this answer; use a role that gives "
    "no answer, such as preprocess or model"
)


@dataclass(frozen=True, slots=True)
class RoleOptions:
    """Fields of ``ModelConfig`` for one model; ``place`` is where they stand in the pipeline file."""

    place: str
    fields: Mapping[str, Any]


def role_of(model: str, pipeline: str) -> str:
    """The role of a model in a pipeline, such as *fused*."""
    return WHOLE if model == pipeline else model.removeprefix(f"{pipeline}_")


def options_for(role: str, device: Device, options: ServingOptions) -> tuple[RoleOptions, ...]:
    """A role's options on one kind of machine, those for every kind first."""
    return tuple(one for name, machine, one in _given(options) if name == role and machine in (None, device))


def check(options: ServingOptions, form: str) -> None:
    """Raise ``BadPipeline`` for a field that ``ModelConfig`` lacks or that is not for users, and in another form."""
    for _, _, one in _given(options):
        if form != "python":
            raise BadPipeline(f"{one.place}: Triton's own options are for the form python, not {form}")
        _check_fields(one.fields, ModelConfig.DESCRIPTOR, one.place, _REFUSED)


def check_roles(options: ServingOptions, roles: Mapping[str, bool]) -> None:
    """Raise ``BadPipeline`` for an unknown role. ``roles`` say which models have a configuration for each machine."""
    for role, device, one in _given(options):
        allowed = [name for name, has_devices in roles.items() if device is None or has_devices]
        if role not in allowed:
            raise BadPipeline(f"{one.place}: no such role{instead(role, allowed)}")


def merge(config: ModelConfig, options: Collection[RoleOptions], *, reserved: Collection[str]) -> ModelConfig:
    """The configuration with options: a list takes the place of the generated one, a parameter is added.

    ``reserved`` are the names of parameters that the models read. Raises ``BadPipeline`` where a field is not the
    user's, is malformed or does not suit this model.
    """
    for one in options:
        config = _merged(config, one, reserved)
    return config


def _given(options: ServingOptions) -> Iterator[tuple[str, Device | None, RoleOptions]]:
    """Every role that is named, with the machine that its options are for, None for both."""
    yield from _roles("serving.triton", None, options.triton)
    yield from _roles("serving.cpu.triton", "cpu", options.cpu.triton)
    yield from _roles("serving.gpu.triton", "gpu", options.gpu.triton)


def _roles(
    place: str, device: Device | None, roles: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, Device | None, RoleOptions]]:
    for role, fields in roles.items():
        yield role, device, RoleOptions(f"{place}.{role}", fields)


def _merged(generated: ModelConfig, one: RoleOptions, reserved: Collection[str]) -> ModelConfig:
    refused = _REFUSED | _refused_of(generated)
    _check_fields(one.fields, ModelConfig.DESCRIPTOR, one.place, refused)
    config = ModelConfig()
    config.CopyFrom(generated)
    try:
        json_format.ParseDict(dict(one.fields), config)
    except json_format.ParseError as error:
        raise BadPipeline(f"{one.place}: {' '.join(str(error).split())}") from None
    if taken := sorted(set(one.fields.get("parameters") or ()) & set(reserved)):
        raise BadPipeline(f"{one.place}.parameters.{taken[0]}: onestream sets it; take another name")
    for name, parameter in generated.parameters.items():  # ParseDict empties a map first
        config.parameters[name].CopyFrom(parameter)
    if "instance_group" in one.fields:
        if not config.instance_group:
            raise BadPipeline(f"{one.place}.instance_group: it is empty; expected at least one group")
        _complete_groups(config, generated.instance_group[0], one.place)
    for warmup in config.model_warmup:
        if not warmup.inputs:
            warmup.MergeFrom(ModelConfig().model_warmup.add(inputs=generated.model_warmup[0].inputs))
    batching = config.dynamic_batching.preferred_batch_size if config.HasField("dynamic_batching") else ()
    largest = max((*batching, *(warmup.batch_size for warmup in config.model_warmup)), default=0)
    if largest > config.max_batch_size > 0:
        raise BadPipeline(
            f"{one.place}: a batch of {largest} is above max_batch_size, which is {config.max_batch_size} there; what "
            "differs between machines goes into serving.cpu.triton and serving.gpu.triton"
        )
    return config


def _complete_groups(config: ModelConfig, generated: ModelInstanceGroup, place: str) -> None:
    """Put the instances where the generated ones are, and let ``onestream serve`` leave their number alone."""
    for group in config.instance_group:
        group.kind, group.count = generated.kind, group.count or 1
        if group.gpus and group.kind == ModelInstanceGroup.KIND_CPU:
            raise BadPipeline(
                f"{place}.instance_group.gpus: these instances are on a CPU; GPUs go into serving.gpu.triton, for a "
                "model that runs on one"
            )
        if not group.gpus:
            group.gpus.extend(generated.gpus)
        if not group.profile:
            group.profile.extend(generated.profile)
    config.parameters.pop(INSTANCES_PARAMETER, None)


def _refused_of(config: ModelConfig) -> dict[str, str]:
    """What a model of this kind cannot have."""
    found = {} if config.model_warmup else {"model_warmup": "this model cannot answer before the server is ready"}
    if KIND_PARAMETER in config.parameters:
        found["response_cache"] = _CACHED
    if config.model_transaction_policy.decoupled:
        found |= _OF_STREAMS
    return found | (_OF_STEPS if config.HasField("ensemble_scheduling") else {})


def _check_fields(
    fields: Mapping[Any, Any], message: Descriptor, place: str, refused: Mapping[str, str], path: str = ""
) -> None:
    """Raise ``BadPipeline`` for a field that a message lacks or that is refused, here or deeper."""
    for name, value in fields.items():
        inner = f"{path}{name}"
        field = message.fields_by_name.get(name)
        if reason := refused.get(inner):
            raise BadPipeline(f"{place}.{name}: not an option of a pipeline: {reason}")
        if field is None:
            allowed = [known for known in message.fields_by_name if f"{path}{known}" not in refused]
            raise BadPipeline(f"{place}.{name}: no such field{instead(name, allowed)}")
        values = value if isinstance(value, list) else [value]
        inside = field.message_type
        if inside is not None and inside.GetOptions().map_entry:
            inside = inside.fields_by_name["value"].message_type
            values = [one for mapping in values if isinstance(mapping, dict) for one in mapping.values()]
        for one in values:
            if inside is not None and isinstance(one, dict):
                _check_fields(one, inside, f"{place}.{name}", refused, f"{inner}.")
