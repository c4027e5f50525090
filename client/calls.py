"""Checks calls and reads answers, without waiting: shared by the sync and the async client."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from secrets import token_hex
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from onestream.client import fields
from onestream.client._transports.base import ConversingTransport, RequestMetadata, Tensors
from onestream.client._transports.tensors import byte_size, dtype_of
from onestream.client.errors import (
    BadImage,
    CannotConnect,
    OnestreamError,
    ServerRefused,
    TimedOut,
    UnexpectedResponse,
    UnreadableInput,
    UnsupportedInput,
)
from onestream.client.video.reconnect import NEVER, Reconnect
from onestream.client.video.sound import Sound
from onestream.client.video.sources import VideoInput, source_of
from onestream.client.video.stream import Stream
from onestream.wire.kinds import KIND_PARAMETER
from onestream.wire.limits import (
    DEFAULT_MAX_BODY_BYTES,
    DEFAULT_TIMEOUT_S,
    MAX_BODY_BYTES_PARAMETER,
    MAX_INPUT_VALUES_PARAMETER,
    MAX_PIXELS_PARAMETER,
    MAX_TIMEOUT_S,
    PICTURES_PARAMETER,
    TIMEOUT_PARAMETER,
    is_reserved,
)
from onestream.wire.priority import Priority
from onestream.wire.refusals import too_many_values
from onestream.wire.tensor_names import IMAGE
from onestream.wire.video import MODES, Mode, Packet

READY_PAUSE_S = 0.1
"""The pause between two questions whether a server is ready."""

NOT_READY = (CannotConnect, TimedOut, ServerRefused, UnexpectedResponse)
"""The errors by which a server that is asked whether it is ready says no."""

_UNKNOWN_LENGTH = -1
"""A dimension of any length in a model's configuration."""

_MOST_PARAMETER = 2**63
"""Whole numbers travel in 64 bits."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._~:/+=@-]{1,128}")
_TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


Inputs = Mapping[str, Any]
"""By name what a network takes beside the image: arrays or lists of numbers, without a batch dimension, and images."""


class Options(TypedDict, total=False):
    """Options of a call for one image, as ``Client.classify`` has them."""

    parameters: Mapping[str, float] | None
    timeout_s: float | None
    request_id: str | None
    traceparent: str | None


def positive(name: str, value: float) -> float:
    """``value``. Raises ValueError where it is not more than 0."""
    if not value > 0:
        raise ValueError(f"{name}={value!r}, expected more than 0")
    return value


def checked_parameters(parameters: Mapping[str, float] | None) -> dict[str, float]:
    """Numbers in the place of options of a pipeline; the server knows which it takes.

    Raises ValueError for what is no finite number of 64 bits, and for names that are Triton's own.
    """
    found: dict[str, float] = {}
    for name, value in (parameters or {}).items():
        if not isinstance(name, str) or is_reserved(name):
            raise ValueError(f"parameters has {name!r:.80}, expected names of a pipeline's options, such as top_k")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < _MOST_PARAMETER:
            raise ValueError(f"parameters has {name}={value!r:.80}, expected a finite number")
        found[name] = value
    return found


def request_metadata(
    request_id: str | None,
    traceparent: str | None,
    priority: Priority,
    parameters: Mapping[str, float] | None = None,
) -> RequestMetadata:
    """The metadata of a request, with a random id where the caller gave none. Raises ValueError."""
    if request_id is not None and not _REQUEST_ID.fullmatch(request_id):
        raise ValueError(
            f"request_id={request_id!r:.150}, expected 1 to 128 letters, digits or any of . _ ~ : / + = @ -"
        )
    if traceparent is not None and not _TRACEPARENT.fullmatch(traceparent):
        raise ValueError(
            f"traceparent={traceparent!r:.150}, expected W3C's 00-TRACE_ID-PARENT_ID-FLAGS (32, 16, 2 digits of 0-9a-f)"
        )
    own_id = token_hex(8) if request_id is None else request_id
    return RequestMetadata(own_id, traceparent, priority, checked_parameters(parameters))


@contextmanager
def attach_request_id(metadata: RequestMetadata) -> Iterator[None]:
    """Write the request's id into every error of ours that leaves the block."""
    try:
        yield
    except OnestreamError as error:
        error.request_id = metadata.request_id
        raise


@contextmanager
def named(picture: str) -> Iterator[None]:
    """Let the errors of one of several images of a request begin with its name, as the server's do."""
    try:
        yield
    except BadImage as error:
        raise BadImage(error.code, f"{picture}: {error.reason}") from None
    except UnsupportedInput as error:
        raise UnsupportedInput(f"{picture}: {error}") from None
    except UnreadableInput as error:
        raise UnreadableInput(str(error), name=picture) from None


def check_many(
    images: object, *, in_flight: int, parameters: Mapping[str, float] | None, timeout_s: float | None
) -> None:
    """Refuse what is one image, and options out of range."""
    checked_parameters(parameters)
    if isinstance(images, (str, bytes, bytearray, memoryview, os.PathLike)):
        raise UnsupportedInput(
            f"got one {type(images).__name__}, expected an iterable of images; for one image use classify or predict"
        )
    positive("in_flight", in_flight)
    if timeout_s is not None:
        positive("timeout_s", timeout_s)


def check_read_again(inputs: Inputs | None) -> None:
    """Refuse a file object among the inputs of many images: the first would read it to its end."""
    for name, value in inputs.items() if isinstance(inputs, Mapping) else ():
        if callable(getattr(value, "read", None)):
            raise UnsupportedInput(f"inputs[{name!r}] is a file object; for many images expected its path or its bytes")


@dataclass(frozen=True, slots=True)
class Limits:
    """What holds for the images of a model.

    Attributes:
        body_bytes: the largest encoded image.
        answer_bytes: the largest tensors of an answer.
        timeout_s: how long an image may take where the caller does not say it.
        kind: of the answer; None where the model says none.
        pixels: height × width of the largest image; None where the model states none.
        inputs: the datatype and the dimensions of each input, without the batch, -1 where they vary.
        pictures: those of the inputs that are encoded images, beside ``image``.
        input_values: how many values an input of varying size may have; None where the model states no limit.
    """

    body_bytes: int
    answer_bytes: int
    timeout_s: float = DEFAULT_TIMEOUT_S
    kind: str | None = None
    pixels: int | None = None
    inputs: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    input_values: int | None = None
    pictures: tuple[str, ...] = ()


def limits_of(config: Mapping[str, Any], *, max_answer_bytes: int) -> Limits:
    """The limits of a model with this configuration; its answers are as large as the outputs that it declares.

    ``max_answer_bytes`` holds where they may be larger, or of any size. Raises UnexpectedResponse for what is no
    configuration.
    """
    parameters = fields.mapping(config.get("parameters", {}), "a model's parameters")
    declared = _declared_bytes(fields.sequence(config.get("output", ()), "a model's outputs"))
    return Limits(
        _stated(parameters, MAX_BODY_BYTES_PARAMETER, DEFAULT_MAX_BODY_BYTES),
        max_answer_bytes if declared is None else min(declared, max_answer_bytes),
        min(max(1, _stated(parameters, TIMEOUT_PARAMETER, DEFAULT_TIMEOUT_S)), MAX_TIMEOUT_S),
        _text(parameters, KIND_PARAMETER) or None,
        _stated(parameters, MAX_PIXELS_PARAMETER, 0) or None,
        dict(_declared_input(value) for value in fields.sequence(config.get("input", ()), "a model's inputs")),
        _stated(parameters, MAX_INPUT_VALUES_PARAMETER, 0) or None,
        tuple(filter(None, _text(parameters, PICTURES_PARAMETER).split(","))),
    )


def network_inputs(given: Inputs, limits: Limits, *, pipeline: str) -> Tensors:
    """What a request carries beside its images, with a batch dimension of 1, as a model's ``limits`` declare it.

    Its other pictures are to be encoded, and are not among these.
    Raises UnsupportedInput naming an input that is missing or that the model does not take, numbers of another type or
    shape, and too many of them; TypeError where ``given`` is no mapping.
    """
    declared = limits.inputs
    if not isinstance(given, Mapping):
        raise TypeError(f"inputs is {type(given).__name__}; expected values by the names of the network's inputs")
    others = {name: one for name, one in declared.items() if name != IMAGE}
    if others.keys() != given.keys() and (given or IMAGE in declared):
        takes = ", ".join(
            f"{name} (an image)" if name in limits.pictures else f"{name} ({datatype} {_shape(dims)})"
            for name, (datatype, dims) in others.items()
        )
        has = ", ".join(f"{name!r:.80}" for name in given) or "none"
        raise UnsupportedInput(f"inputs has {has}; beside the image, pipeline {pipeline!r} takes {takes or 'none'}")
    return {
        name: _network_input(name, value, *others[name], limits.input_values)
        for name, value in given.items()
        if name not in limits.pictures
    }


def _network_input(
    name: str, value: object, datatype: str, dims: tuple[int, ...], most_values: int | None
) -> npt.NDArray[Any]:
    dtype, expected = dtype_of(datatype), f"{datatype} {_shape(dims)}, without the batch"
    try:
        array = np.asarray(value)
    except ValueError:
        raise UnsupportedInput(f"inputs[{name!r}] has rows of different lengths; expected {expected}") from None
    seen = f"{array.dtype} {_shape(array.shape)}"
    # Whole numbers may become fractions, but never the other way round. An empty list holds neither.
    is_cut = dtype is not None and array.dtype.kind == "f" and dtype.kind != "f" and array.size > 0
    if dtype is None or array.dtype.kind not in "biuf" or is_cut:
        raise UnsupportedInput(f"inputs[{name!r}] is {seen}; expected {expected}")
    if array.ndim != len(dims) or any(
        dim not in (_UNKNOWN_LENGTH, size) for dim, size in zip(dims, array.shape, strict=True)
    ):
        raise UnsupportedInput(f"inputs[{name!r}] is {seen}; expected {expected}")
    if _UNKNOWN_LENGTH in dims and most_values is not None and array.size > most_values:
        raise UnsupportedInput(f"inputs[{name!r}] has {too_many_values(array.size, most_values)}")
    with np.errstate(over="ignore"):
        cast: npt.NDArray[Any] = array.astype(dtype)
    # Fractions may be rounded, but never to infinity.
    expected_values, kept = (np.isfinite(array), np.isfinite(cast)) if array.dtype.kind == "f" else (array, cast)
    if not np.array_equal(kept, expected_values):
        raise UnsupportedInput(f"inputs[{name!r}] has numbers that {datatype} does not hold")
    return cast[None]


def _shape(dims: Sequence[int]) -> str:
    return "[" + ", ".join("any" if dim == _UNKNOWN_LENGTH else str(dim) for dim in dims) + "]"


def _declared_input(value: object) -> tuple[str, tuple[str, tuple[int, ...]]]:
    declared = fields.mapping(value, "an input of a model")
    dims = fields.sequence(declared.get("dims", ()), "the dims of an input")
    lengths = tuple(
        _UNKNOWN_LENGTH if str(dim) == str(_UNKNOWN_LENGTH) else fields.long(dim, "a dimension of an input")
        for dim in dims
    )
    return fields.text(declared.get("name"), "the name of an input"), (_datatype(declared, "an input"), lengths)


def _datatype(declared: Mapping[str, Any], what: str) -> str:
    """As requests call it."""
    return fields.text(declared.get("data_type", ""), f"the data_type of {what}").removeprefix("TYPE_")


def _stated(parameters: Mapping[str, Any], name: str, default: int) -> int:
    """A whole number among the parameters of a model."""
    stated = _text(parameters, name)
    return fields.long(stated, name) if stated.isdecimal() else default


def _text(parameters: Mapping[str, Any], name: str) -> str:
    """A text among the parameters of a model; empty where it is not there."""
    return fields.text(fields.mapping(parameters.get(name, {}), name).get("string_value", ""), name)


def _declared_bytes(outputs: Sequence[object]) -> int | None:
    """The bytes of one answer with these outputs; None where their configuration does not say."""
    sizes: list[int | None] = []
    for value in outputs:
        output = fields.mapping(value, "an output of a model")
        dims = fields.sequence(output.get("dims", ()), "the dims of an output")
        datatype = _datatype(output, "an output")
        is_open = any(dim in (_UNKNOWN_LENGTH, str(_UNKNOWN_LENGTH)) for dim in dims)
        lengths = [] if is_open else [fields.long(dim, "a dimension of an output") for dim in dims]
        sizes.append(None if is_open else byte_size(datatype, prod(lengths)))
    known = [size for size in sizes if size is not None]
    return sum(known) if known and len(known) == len(sizes) else None


def step_names(config: Mapping[str, Any]) -> list[str]:
    """The models that a model with this configuration calls; none where it is no ensemble."""
    scheduling = fields.mapping(config.get("ensemble_scheduling", {}), "ensemble_scheduling")
    steps = fields.sequence(scheduling.get("step", ()), "the steps of an ensemble")
    named = [fields.mapping(step, "a step of an ensemble").get("model_name") for step in steps]
    return [fields.text(name, "the model_name of a step") for name in named]


def not_ready(model: str | None, url: str, timeout_s: float, seen: OnestreamError | None) -> OnestreamError:
    """The error of a wait that was in vain; ``seen`` is what the last question came to."""
    if isinstance(seen, CannotConnect):
        return seen
    subject = f"model {model!r} at {url}" if model else url
    reason = "" if seen is None else f": {seen}"
    return TimedOut(f"{subject} was not ready within {timeout_s:.3g} s{reason}")


def open_stream(
    transport: object,
    source: VideoInput,
    *,
    url: str,
    pipeline: str,
    mode: Mode | None,
    results: int,
    timeout_s: float,
    reconnect: Reconnect | None,
    tap: Callable[[Packet], None] | None,
    sound: Sound | None,
    parameters: Mapping[str, float] | None,
) -> Stream:
    """The stream that ``Client.stream`` promises, over ``transport`` if that can hold a conversation."""
    opened = source_of(source)
    if not isinstance(transport, ConversingTransport):
        raise ValueError(f"video streams go over gRPC, and this client uses {url}; Triton's port for it is 8001")
    if mode is not None and mode not in MODES:
        raise ValueError(f"mode={mode!r}, expected {' or '.join(map(repr, MODES))}")
    if reconnect is not None and reconnect != NEVER and not opened.can_reconnect:
        raise ValueError(f"{opened.name} cannot be connected to again; expected no reconnect")
    return Stream(
        transport,
        opened,
        pipeline=pipeline,
        mode=mode or ("drop_oldest" if opened.live else "block"),
        results=int(positive("results", results)),
        timeout_s=timeout_s,
        reconnect=reconnect or (Reconnect() if opened.can_reconnect else NEVER),
        tap=tap,
        sound=sound,
        parameters=checked_parameters(parameters),
    )
