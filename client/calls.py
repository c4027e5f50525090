"""What every client does apart from waiting: check what is asked, and read what was answered."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from secrets import token_hex
from typing import Any

from client.errors import CannotConnect, OnestreamError, TimedOut, UnexpectedResponse, UnsupportedInput
from client.results import Classification, Label, ServerInfo
from client.transports.base import ConversingTransport, Tag, Tensors
from client.video.reconnect import NEVER, Reconnect
from client.video.sources import VideoInput, source_of
from client.video.stream import Stream
from wire.priority import Priority
from wire.video import Mode, Packet

DEFAULT_URL = "127.0.0.1:8001"
"""Where Triton serves gRPC on this machine unless told otherwise."""

DEFAULT_MAX_BODY_BYTES = 32 * 1024 * 1024
"""The largest image sent to a model whose configuration states no ``max_body_bytes``: 32 MiB."""

READY_PAUSE_S = 0.1
"""Between two questions whether a server is ready."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._~:/+=@-]{1,128}")
_TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def positive(name: str, value: float) -> float:
    """``value``. Raises ValueError where it is not more than 0."""
    if not value > 0:
        raise ValueError(f"{name}={value!r}, expected more than 0")
    return value


def tag_of(request_id: str | None, traceparent: str | None, priority: Priority) -> Tag:
    """What a request says beside its image, with a random id where the caller gave none. Raises ValueError."""
    if request_id is not None and not _REQUEST_ID.fullmatch(request_id):
        raise ValueError(
            f"request_id={request_id!r:.150}, expected 1 to 128 letters, digits or any of . _ ~ : / + = @ -"
        )
    if traceparent is not None and not _TRACEPARENT.fullmatch(traceparent):
        raise ValueError(
            f"traceparent={traceparent!r:.150}, expected W3C's 00-TRACE_ID-PARENT_ID-FLAGS (32, 16, 2 digits of 0-9a-f)"
        )
    return Tag(token_hex(8) if request_id is None else request_id, traceparent, priority)


@contextmanager
def blamed_on(tag: Tag) -> Iterator[None]:
    """Write the request's id into every error of ours that leaves the block."""
    try:
        yield
    except OnestreamError as error:
        error.request_id = tag.request_id
        raise


def check_many(images: object, *, in_flight: int, timeout_s: float | None) -> None:
    """Refuse what is one image, and options out of range."""
    if isinstance(images, (str, bytes, bytearray, memoryview, os.PathLike)):
        raise UnsupportedInput(
            f"classify_many got one {type(images).__name__}, expected an iterable of images; for one image use classify"
        )
    positive("in_flight", in_flight)
    if timeout_s is not None:
        positive("timeout_s", timeout_s)


def body_limit(config: Mapping[str, Any]) -> int:
    """The largest encoded image, in bytes, that a model with this configuration takes."""
    stated = config.get("parameters", {}).get("max_body_bytes", {}).get("string_value", "")
    return int(stated) if stated.isdecimal() else DEFAULT_MAX_BODY_BYTES


def step_names(config: Mapping[str, Any]) -> list[str]:
    """The models that a model with this configuration calls; none where it is no ensemble."""
    return [step["model_name"] for step in config.get("ensemble_scheduling", {}).get("step", ())]


def classification(model: str, tensors: Tensors, request_id: str, latency_ms: float) -> Classification:
    """The typed result in the outputs of a classification pipeline. Raises UnexpectedResponse for other outputs."""
    return Classification(labels=_labels(model, tensors), model=model, request_id=request_id, latency_ms=latency_ms)


def server_info(url: str, fields: Mapping[str, Any]) -> ServerInfo:
    """Who answers at ``url``, from the server's metadata."""
    return ServerInfo(
        url=url,
        name=str(fields.get("name", "")),
        version=str(fields.get("version", "")),
        extensions=tuple(fields.get("extensions", ())),
    )


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
) -> Stream:
    """The stream that ``Client.stream`` promises, over ``transport`` if that can hold a conversation."""
    opened = source_of(source)
    if not isinstance(transport, ConversingTransport):
        raise ValueError(f"video streams go over gRPC, and this client uses {url}; Triton's port for it is 8001")
    if mode not in (None, "block", "drop_oldest"):
        raise ValueError(f"mode={mode!r}, expected 'block' or 'drop_oldest'")
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
    )


def _labels(model: str, tensors: Tensors) -> tuple[Label, ...]:
    """Typed labels from the outputs of a classification pipeline, each of shape ``[1, k]``.

    A server without strings (TensorRT alone) sends no ``labels``; a class is then named by its id.
    """
    names = ("scores", "class_ids", "labels") if "labels" in tensors else ("scores", "class_ids")
    shapes = [list(tensors[name].shape) for name in names if name in tensors]
    first = shapes[0] if len(shapes) == len(names) else []
    if len(first) != 2 or first[0] != 1 or first[1] < 1 or any(shape != first for shape in shapes):
        seen = {name: list(array.shape) for name, array in tensors.items()}
        raise UnexpectedResponse(
            f"model {model!r} answered {seen or 'nothing'}, expected scores, class_ids, usually labels, each of shape "
            "[1, k]; for a pipeline of another kind use infer"
        )
    labels = tensors["labels"][0] if "labels" in tensors else [b"%d" % class_id for class_id in tensors["class_ids"][0]]
    return tuple(
        Label(label=label.decode(errors="replace"), class_id=int(class_id), score=float(score))
        for score, class_id, label in zip(tensors["scores"][0], tensors["class_ids"][0], labels, strict=True)
    )
