"""What is said over HTTP, without the saying: paths, bodies with binary tensors, and what answers mean."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import quote

from client.errors import BadImage, CannotConnect, ClientClosed, OnestreamError, TimedOut, UnexpectedResponse
from client.transports.base import IMAGE_INPUT, InferRequest, Region, RegionSlice, Tensors, microseconds
from client.transports.refusals import refusal
from client.transports.tensors import decode_tensor
from wire.priority import PRIORITIES

_T = TypeVar("_T")

_STATUS_NAMES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    422: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
}
_HEAD_LENGTH = "Inference-Header-Content-Length"
# Servers of `onestream serve` take no other: web pages may not send it to other origins.
_BODY_TYPE = {"Content-Type": "application/octet-stream"}


class Headers(Protocol):
    """Headers of an answer; names are compared without case."""

    def get(self, name: str, default: str) -> str:
        """The value of a header."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete HTTP answer of any status; ``url`` is the server's."""

    url: str
    status: int
    headers: Headers
    body: bytes


@dataclass(frozen=True, slots=True)
class Call(Generic[_T]):
    """One request and how its answer is read; ``read`` raises the errors of ``client.errors``."""

    method: str
    path: str
    read: Callable[[Answer], _T]
    body: Sequence[bytes] = ()
    headers: Mapping[str, str] = field(default_factory=dict)

    def all_headers(self, token: str | None) -> dict[str, str]:
        """The headers, with the length of the body, and with a token where one is given."""
        authorization = {} if token is None else {"Authorization": f"Bearer {token}"}
        return {**self.headers, **authorization, "Content-Length": str(sum(len(part) for part in self.body))}


def infer(request: InferRequest, *, timeout_s: float) -> Call[Tensors]:
    """All outputs of the model for this request, which the server lets go when it has waited longer than the time."""
    tensor: dict[str, Any] = {"name": IMAGE_INPUT, "datatype": "UINT8", "shape": request.shape}
    if isinstance(request.image, RegionSlice):
        tensor["parameters"] = {
            "shared_memory_region": request.image.region_name,
            "shared_memory_byte_size": request.image.byte_size,
        }
        data = b""
    else:
        tensor["parameters"] = {"binary_data_size": len(request.image)}
        data = request.image
    parameters = {
        "binary_data_output": True,
        "timeout": microseconds(timeout_s),
        "priority": PRIORITIES[request.tag.priority],
    }
    fields = {"id": request.tag.request_id, "inputs": [tensor], "parameters": parameters}
    head = json.dumps(fields).encode()

    def read(answer: Answer) -> Tensors:
        _require_success(answer, request.model)
        return _read_tensors(answer)

    return Call(
        "POST",
        _model_path(request.model, "infer"),
        read,
        body=[head, data],
        headers={
            _HEAD_LENGTH: str(len(head)),
            **_BODY_TYPE,
            **request.tag.headers,
        },
    )


def is_ready(model: str | None) -> Call[bool]:
    """Whether the server (``None``) or the model says that it is ready."""
    path = "/v2/health/ready" if model is None else _model_path(model, "ready")
    return Call("GET", path, lambda answer: answer.status == 200)


def server_metadata() -> Call[Mapping[str, Any]]:
    """``name``, ``version`` and ``extensions`` of the server."""
    return _get_json("/v2", None)


def model_config(model: str) -> Call[Mapping[str, Any]]:
    """The model's configuration."""
    return _get_json(_model_path(model, "config"), model)


def model_statistics(model: str) -> Call[Sequence[Mapping[str, Any]]]:
    """One mapping per served version."""
    asked = _get_json(_model_path(model, "stats"), model)

    def read(answer: Answer) -> Sequence[Mapping[str, Any]]:
        rows = asked.read(answer).get("model_stats")
        if not isinstance(rows, list):
            raise UnexpectedResponse(f"{answer.url} answered statistics without a 'model_stats' list")
        return rows

    return Call(asked.method, asked.path, read)


def register_region(region: Region) -> Call[None]:
    """Let the server map the region."""
    fields = {"key": f"/{region.name}", "offset": 0, "byte_size": region.byte_size}
    return _post_region(region.name, "register", json.dumps(fields).encode())


def unregister_region(region_name: str) -> Call[None]:
    """Let the server unmap the region."""
    return _post_region(region_name, "unregister", b"")


def base_url(host: str, port: int, *, tls: bool, base_path: str) -> str:
    """The address in full; ``host`` is without brackets, also for IPv6."""
    name = f"[{host}]" if ":" in host else host
    return f"{'https' if tls else 'http'}://{name}:{port}{base_path.rstrip('/')}"


def timed_out(url: str, timeout_s: float) -> TimedOut:
    """No answer came before the deadline."""
    return TimedOut(f"no answer from {url} within {timeout_s:.3g} s")


def cannot_connect(url: str, seen: str) -> CannotConnect:
    """Nothing that speaks HTTP answered there, or the connection broke."""
    return CannotConnect(
        f"cannot reach {url}: {seen}; expected a Triton server that speaks HTTP there (port 8000 unless "
        "told otherwise; for its gRPC port write grpc://host:8001)"
    )


def broke(url: str, error: Exception) -> CannotConnect:
    """The connection broke before the answer was complete."""
    return cannot_connect(url, f"the connection broke ({error or type(error).__name__})")


def closed_during_call(url: str) -> ClientClosed:
    """The client was closed while this call waited."""
    return ClientClosed(f"the client of {url} was closed during the call")


def closed(url: str) -> ClientClosed:
    """The client was closed before this call."""
    return ClientClosed(f"the client of {url} is closed")


def _post_region(region_name: str, action: str, body: bytes) -> Call[None]:
    def read(answer: Answer) -> None:
        _require_success(answer, None)

    path = f"/v2/systemsharedmemory/region/{region_name}/{action}"
    return Call("POST", path, read, body=[body], headers=_BODY_TYPE)


def _get_json(path: str, model: str | None) -> Call[Mapping[str, Any]]:
    def read(answer: Answer) -> Mapping[str, Any]:
        _require_success(answer, model)
        try:
            fields = json.loads(answer.body)
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            raise UnexpectedResponse(f"{answer.url}{path} answered {answer.body[:80]!r}, expected a JSON object")
        return fields

    return Call("GET", path, read)


def _require_success(answer: Answer, model: str | None) -> None:
    if answer.status != 200:
        raise _refusal(answer, model)


def _refusal(answer: Answer, model: str | None) -> OnestreamError:
    try:
        message = str(json.loads(answer.body)["error"])
    except (ValueError, KeyError, TypeError):
        message = answer.body[:200].decode(errors="replace")
    if answer.status == 413:
        return BadImage("too_large", f"{answer.url} refuses a body of this size (HTTP 413)")
    if answer.status == 504:
        return TimedOut(f"a proxy at {answer.url} had no answer from the server in time (HTTP 504)")
    status = _STATUS_NAMES.get(answer.status, f"HTTP {answer.status}")
    return refusal(status, message, model=model, url=answer.url)


def _read_tensors(answer: Answer) -> Tensors:
    """Outputs from a body that is a JSON head, then the binary tensors in the order of the head."""
    body = memoryview(answer.body)
    tensors: Tensors = {}
    try:
        at = int(answer.headers.get(_HEAD_LENGTH, str(len(body))))
        for output in json.loads(answer.body[:at])["outputs"]:
            end = at + output["parameters"]["binary_data_size"]
            name = output["name"]
            tensors[name] = decode_tensor(name, output["datatype"], output["shape"], body[at:end])
            at = end
    except (ValueError, KeyError, TypeError) as error:
        raise UnexpectedResponse(
            f"{answer.url} answered {answer.body[:80]!r}, expected tensors in binary form ({error!r})"
        ) from None
    return tensors


def _model_path(model: str, action: str) -> str:
    return f"/v2/models/{quote(model, safe='')}/{action}"
