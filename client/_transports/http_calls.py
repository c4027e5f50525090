"""Builds HTTP requests, decodes responses and maps errors; no I/O, shared by sync and async."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from onestream.client import fields
from onestream.client._transports.base import (
    Address,
    InferRequest,
    RegionSlice,
    SharedMemoryRegion,
    Tensors,
    microseconds,
)
from onestream.client._transports.refusals import refusal, unreachable
from onestream.client._transports.tensors import decode_tensors, inputs_of
from onestream.client.errors import BadImage, CannotConnect, ClientClosed, OnestreamError, TimedOut, UnexpectedResponse
from onestream.client.fields import MAX_DOCUMENT_BYTES, reading, require_id, too_large
from onestream.wire.priority import PRIORITIES

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
_HTTP_2 = re.compile(r"\\x00\\x00.{1,4}\\x04\\x00")
"""How a server of HTTP/2 begins (RFC 9113, 3.4): the length of a frame in three bytes, the type SETTINGS, no flag."""
_LENGTH = re.compile(r"[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete HTTP answer of any status; ``url`` is the server's. Names of headers are in lower case."""

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Call(Generic[_T]):
    """One request and how its answer is read; ``max_answer_bytes`` is the most that the answer's body may have."""

    method: str
    path: str
    read: Callable[[Answer], _T]
    body: Sequence[bytes] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    max_answer_bytes: int = MAX_DOCUMENT_BYTES

    def all_headers(self, token: str | None) -> dict[str, str]:
        """The headers, with the length of the body, and with a token where one is given."""
        authorization = {} if token is None else {"Authorization": f"Bearer {token}"}
        return {
            **self.headers,
            **authorization,
            "Content-Length": str(sum(len(part) for part in self.body)),
            # An answer that grows when it is unpacked could not be bounded by its length.
            "Accept-Encoding": "identity",
        }

    def allowed_bytes(self, status: int) -> int:
        """The largest body of an answer with this status."""
        return self.max_answer_bytes if status == 200 else MAX_DOCUMENT_BYTES

    def result(self, answer: Answer) -> _T:
        """Decode the answer. Raises the errors of ``onestream.client.errors``."""
        with reading(answer.url):
            return self.read(answer)


def infer(request: InferRequest, *, timeout_s: float) -> Call[Tensors]:
    """All outputs of the model for this request, which the server lets go when it has waited longer than the time."""
    tensors, body = [], []
    for name, datatype, shape, data in inputs_of(request):
        if isinstance(data, RegionSlice):
            where = {"shared_memory_region": data.region_name, "shared_memory_byte_size": data.byte_size}
        else:
            where = {"binary_data_size": len(data)}
            body.append(data)
        tensors.append({"name": name, "datatype": datatype, "shape": shape, "parameters": where})
    own = request.metadata.parameters
    parameters = {
        # Triton 2.51 takes no fractions over HTTP.
        **{name: value if isinstance(value, int) else repr(value) for name, value in own.items()},
        "binary_data_output": True,
        "timeout": microseconds(timeout_s),
        "priority": PRIORITIES[request.metadata.priority],
    }
    request_id = request.metadata.request_id
    head = json.dumps({"id": request_id, "inputs": tensors, "parameters": parameters}).encode()

    def read(answer: Answer) -> Tensors:
        _require_success(answer, request.model)
        return _read_tensors(answer, request_id)

    return Call(
        "POST",
        _model_path(request.model, "infer"),
        read,
        body=[head, *body],
        headers={_HEAD_LENGTH: str(len(head)), **request.metadata.headers},
        max_answer_bytes=request.max_answer_bytes + MAX_DOCUMENT_BYTES,
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
    """One mapping per served version; of every model for ``""``."""
    asked = _get_json(_model_path(model, "stats") if model else "/v2/models/stats", model)

    def read(answer: Answer) -> Sequence[Mapping[str, Any]]:
        rows = fields.sequence(asked.read(answer).get("model_stats"), "'model_stats'")
        return [fields.mapping(row, "statistics of a version") for row in rows]

    return Call(asked.method, asked.path, read)


def register_region(region: SharedMemoryRegion) -> Call[None]:
    """Let the server map the region."""
    body = json.dumps({"key": f"/{region.name}", "offset": 0, "byte_size": region.byte_size})
    return _post_region(region.name, "register", body.encode())


def unregister_region(region_name: str) -> Call[None]:
    """Let the server unmap the region."""
    return _post_region(region_name, "unregister", b"")


def base_url(at: Address) -> str:
    """The address in full."""
    name = f"[{at.host}]" if ":" in at.host else at.host
    return f"{'https' if at.tls else 'http'}://{name}:{at.port}{at.base_path}"


def timed_out(url: str, timeout_s: float) -> TimedOut:
    """No answer came before the deadline."""
    return TimedOut(f"no answer from {url} within {timeout_s:.3g} s")


def cannot_connect(url: str, seen: str) -> CannotConnect:
    """Nothing that speaks HTTP answered there, or the connection broke."""
    return unreachable(
        url,
        seen,
        expected="a Triton server that speaks HTTP there (port 8000 unless told otherwise; for its gRPC port write "
        "grpc://host:8001)",
        authorities="SSL_CERT_FILE",
    )


def broke(url: str, error: Exception) -> CannotConnect:
    """The connection broke before the answer was complete."""
    return cannot_connect(url, f"the connection broke ({error or type(error).__name__})")


def no_http(url: str, answer: str) -> CannotConnect:
    """What answers there does not speak HTTP/1; ``answer`` is how its answer begins, in ASCII."""
    if _HTTP_2.search(answer):
        return cannot_connect(url, "it speaks HTTP/2, as a gRPC port does")
    return cannot_connect(url, f"it does not speak HTTP: {answer:.120}")


def malformed(url: str, seen: str) -> UnexpectedResponse:
    """The error for an answer that breaks the rules of HTTP."""
    return UnexpectedResponse(f"{url} answered in malformed HTTP: {seen:.200}")


def headers_of(url: str, pairs: Iterable[tuple[bytes, bytes]], *, allowed: int) -> dict[str, str]:
    """The headers of an answer, whose names are in lower case.

    Raises UnexpectedResponse for a Content-Length that is more than allowed, or stands beside a transfer in chunks.
    """
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in pairs}
    length = headers.get("content-length")
    if length is not None and "transfer-encoding" in headers:
        raise malformed(url, f"the Content-Length {length!r} beside a transfer in chunks")
    if length is not None and int(length) > allowed:
        raise too_large(url, f"with {length} bytes", allowed_bytes=allowed)
    return headers


def require_within(seen_bytes: int, *, url: str, allowed: int) -> None:
    """Raise UnexpectedResponse where more of a body came than allowed."""
    if seen_bytes > allowed:
        raise too_large(url, f"with more than {allowed} bytes", allowed_bytes=allowed)


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
    return Call("POST", path, read, body=[body])


def _get_json(path: str, model: str | None) -> Call[Mapping[str, Any]]:
    def read(answer: Answer) -> Mapping[str, Any]:
        _require_success(answer, model)
        return _json_object(answer, answer.body)

    return Call("GET", path, read)


def _json_object(answer: Answer, text: bytes) -> Mapping[str, Any]:
    """The JSON object in ``text``. Raises UnexpectedResponse for anything else, also where it is nested too deep."""
    try:
        found = json.loads(str(text, "utf-8"))
    except (ValueError, RecursionError) as error:
        raise UnexpectedResponse(
            f"{answer.url} answered {text[:80]!r}, expected a JSON object ({type(error).__name__}: {error})"
        ) from None
    return fields.mapping(found, "an object of JSON")


def _require_success(answer: Answer, model: str | None) -> None:
    if answer.status != 200:
        raise _refusal(answer, model)
    encoding = answer.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise UnexpectedResponse(f"{answer.url} answered in the encoding {encoding!r:.80}, expected none")


def _refusal(answer: Answer, model: str | None) -> OnestreamError:
    message = answer.body.decode(errors="replace")
    with suppress(UnexpectedResponse):
        message = fields.text(_json_object(answer, answer.body).get("error"), "'error'")
    if answer.status == 413:
        return BadImage("too_large", f"{answer.url} refuses a body of this size (HTTP 413)")
    if answer.status == 504:
        return TimedOut(f"a proxy at {answer.url} had no answer from the server in time (HTTP 504)")
    status = _STATUS_NAMES.get(answer.status, f"HTTP {answer.status}")
    return refusal(status, message, model=model, url=answer.url)


def _read_tensors(answer: Answer, request_id: str) -> Tensors:
    """Outputs from a body that is a JSON head, then the binary tensors in the order of the head."""
    body = memoryview(answer.body)
    stated = answer.headers.get(_HEAD_LENGTH.lower(), str(min(len(body), MAX_DOCUMENT_BYTES)))
    if not _LENGTH.fullmatch(stated) or int(stated) > min(len(body), MAX_DOCUMENT_BYTES):
        raise UnexpectedResponse(
            f"{answer.url} answered {len(body)} bytes with a head of {stated!r:.80}, expected at most all of them and "
            f"{MAX_DOCUMENT_BYTES}"
        )
    at = int(stated)
    head = _json_object(answer, answer.body[:at])
    require_id(head.get("id", ""), request_id)
    outputs = []
    for value in fields.sequence(head.get("outputs"), "'outputs'"):
        output = fields.mapping(value, "an output")
        name = fields.text(output.get("name"), "the name of an output")
        parameters = fields.mapping(output.get("parameters"), f"the parameters of output {name!r}")
        end = at + fields.whole(parameters.get("binary_data_size"), f"the binary_data_size of output {name!r}")
        if end > len(body):
            raise UnexpectedResponse(f"output {name!r} ends at byte {end} of an answer of {len(body)} bytes")
        datatype = fields.text(output.get("datatype"), f"the datatype of output {name!r}")
        shape = fields.sequence(output.get("shape"), f"the shape of output {name!r}")
        outputs.append((name, datatype, shape, body[at:end]))
        at = end
    if at != len(body):
        raise UnexpectedResponse(f"{answer.url} answered {len(body) - at} bytes behind the last output")
    return decode_tensors(outputs)


def _model_path(model: str, action: str) -> str:
    return f"/v2/models/{quote(model, safe='')}/{action}"
