"""Builds gRPC requests, decodes responses, opens channels and maps errors, for sync and async alike."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc  # type: ignore[import-untyped]
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as messages

from onestream.client._transports.base import (
    Address,
    InferRequest,
    RegionSlice,
    SharedMemoryRegion,
    Tensors,
    microseconds,
)
from onestream.client._transports.refusals import readable, refusal, unreachable
from onestream.client._transports.tensors import decode_tensors, inputs_of
from onestream.client.errors import ClientClosed, OnestreamError, TimedOut, UnexpectedResponse
from onestream.client.fields import MAX_DOCUMENT_BYTES, reading, require_id, too_large
from onestream.wire.priority import PRIORITIES

_T = TypeVar("_T")

_INFERENCE, _ANSWER = messages.ModelInferResponse, messages.ModelStreamInferResponse
_CONTENTS = _INFERENCE.RAW_OUTPUT_CONTENTS_FIELD_NUMBER
_TENSORS = {_INFERENCE: (_CONTENTS,), _ANSWER: (_ANSWER.INFER_RESPONSE_FIELD_NUMBER, _CONTENTS)}
"""Where the tensors are in an answer: the field of contents, and the field around it."""
_VARINT, _LENGTH, _FIXED = 0, 2, {1: 8, 5: 4}
"""How fields are encoded: as a number, as bytes after their count, or in so many bytes."""
_LONGEST_VARINT = 10

_OTHER_ADDRESSES = (
    " (gRPC tells the failure of one address only; at another of this name the certificate may not be trusted)"
)
_MADE_HERE = re.compile(
    r"failed to connect|errors resolving|dns resolution|socket closed|connection reset|broken pipe|goaway"
    r"|recvmsg|endpoint closing|end of tcp stream|keepalive|handshake",
    re.IGNORECASE,
)
"""UNAVAILABLE with one of these words comes from this side's gRPC library: no server said it."""

_TOO_LARGE = re.compile(
    r"client: received message larger than max|received (?:initial |trailing )?metadata size exceeds",
    re.IGNORECASE,
)
"""RESOURCE_EXHAUSTED with one of these words comes from this side's gRPC library; it says what was seen and allowed."""

_MALFORMED = re.compile(
    r"received http2 header with status|trying to connect an http1|failed parsing http/2|parsing 'grpc-status'"
    r"|data frame with end_stream|no status received|compression algorithm '\w+' is disabled",
    re.IGNORECASE,
)
"""INTERNAL or UNKNOWN with one of these words comes from there, too: what arrived is no answer of gRPC."""


@dataclass(frozen=True, slots=True)
class Call(Generic[_T]):
    """One call of the service's ``method``, and how the bytes of its answer are read.

    ``model`` is None for calls about the server. ``max_answer_bytes`` is the most that the answer may have.
    """

    method: str
    message: Any
    read: Callable[[bytes], _T]
    model: str | None = None
    metadata: Sequence[tuple[str, str]] = ()
    max_answer_bytes: int = MAX_DOCUMENT_BYTES

    def result(self, answer: bytes, *, url: str) -> _T:
        """Decode the answer of the server at ``url``. Raises the errors of ``onestream.client.errors``."""
        with reading(url):
            if len(answer) > self.max_answer_bytes:
                raise too_large(url, f"with {len(answer)} bytes", allowed_bytes=self.max_answer_bytes)
            return self.read(answer)


def infer(request: InferRequest, *, timeout_s: float) -> Call[Tensors]:
    """All outputs of the model for this request, which the server lets go when it has waited longer than the time."""
    message = messages.ModelInferRequest(model_name=request.model, id=request.metadata.request_id)
    for name, value in request.metadata.parameters.items():
        if isinstance(value, int):
            message.parameters[name].int64_param = value
        else:
            message.parameters[name].double_param = value
    message.parameters["timeout"].int64_param = microseconds(timeout_s)
    message.parameters["priority"].uint64_param = PRIORITIES[request.metadata.priority]
    for name, datatype, shape, data in inputs_of(request):
        tensor = messages.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape)
        if isinstance(data, RegionSlice):
            tensor.parameters["shared_memory_region"].string_param = data.region_name
            tensor.parameters["shared_memory_byte_size"].int64_param = data.byte_size
        else:
            message.raw_input_contents.append(data)
        message.inputs.append(tensor)
    metadata = tuple(request.metadata.headers.items())
    if metadata:
        # Triton 2.51 takes a header to reach up to the next zero byte, with which a further header begins.
        metadata = (*metadata, ("x-request-id", request.metadata.request_id))

    def read(answer: bytes) -> Tensors:
        response = parsed(messages.ModelInferResponse, answer)
        require_id(response.id, request.metadata.request_id)
        return outputs_of(response)

    return Call(
        "ModelInfer",
        message,
        read,
        request.model,
        metadata,
        max_answer_bytes=request.max_answer_bytes + MAX_DOCUMENT_BYTES,
    )


def parsed(kind: Any, data: bytes) -> Any:
    """The message of this kind in ``data``, in which only tensors are large. Raises UnexpectedResponse otherwise."""
    # Before it is parsed: an empty field of two bytes takes a hundred as an object.
    if len(data) > MAX_DOCUMENT_BYTES and _without_tensors(memoryview(data), _TENSORS[kind]) > MAX_DOCUMENT_BYTES:
        raise UnexpectedResponse(f"over {MAX_DOCUMENT_BYTES} bytes beside tensors, which is what is allowed")
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise UnexpectedResponse(f"{len(data)} bytes that are no {kind.DESCRIPTOR.name}: {error}") from None


def _without_tensors(message: memoryview, tensors: Sequence[int]) -> int:
    """Bytes of a message but those of its tensors, the numbers of whose field and of those around it are given.

    It stops above MAX_DOCUMENT_BYTES. See protobuf.dev/programming-guides/encoding.
    """
    at = count = 0
    while at < len(message) and count <= MAX_DOCUMENT_BYTES:
        begin = at
        tag, at = _varint(message, at)
        length, content = _FIXED.get(tag & 7, 0), 0
        if tag & 7 == _LENGTH:
            length, at = _varint(message, at)
            if tag >> 3 == tensors[0]:
                content = length
        elif tag & 7 == _VARINT:
            _, at = _varint(message, at)
        elif not length:
            raise UnexpectedResponse(f"{len(message)} bytes that are no message: a field of type {tag & 7}")
        if content and tensors[1:]:
            count += _without_tensors(message[at : at + length], tensors[1:])
        at += length
        count += at - begin - content
    return count


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """The number that begins at ``at``, and where it ends."""
    number, place = 0, -1
    for place, byte in enumerate(message[at : at + _LONGEST_VARINT]):
        number |= (byte & 127) << 7 * place
        if byte < 128:
            break
    return number, min(at + place + 1, len(message))


def outputs_of(response: Any) -> Tensors:
    """All outputs of a response."""
    contents = list(response.raw_output_contents)
    if len(response.outputs) != len(contents):
        raise UnexpectedResponse(f"{len(response.outputs)} outputs with {len(contents)} contents")
    return decode_tensors(
        (output.name, output.datatype, output.shape, data)
        for output, data in zip(response.outputs, contents, strict=True)
    )


def is_ready(model: str | None) -> Call[bool]:
    """Whether the server (``None``) or the model says that it is ready."""
    if model is None:
        return Call(
            "ServerReady",
            messages.ServerReadyRequest(),
            lambda answer: bool(parsed(messages.ServerReadyResponse, answer).ready),
        )
    return Call(
        "ModelReady",
        messages.ModelReadyRequest(name=model),
        lambda answer: bool(parsed(messages.ModelReadyResponse, answer).ready),
        model,
    )


def server_metadata() -> Call[Mapping[str, Any]]:
    """``name``, ``version`` and ``extensions`` of the server."""
    return Call(
        "ServerMetadata",
        messages.ServerMetadataRequest(),
        lambda answer: _to_dict(parsed(messages.ServerMetadataResponse, answer)),
    )


def model_config(model: str) -> Call[Mapping[str, Any]]:
    """The model's configuration."""
    return Call(
        "ModelConfig",
        messages.ModelConfigRequest(name=model),
        lambda answer: _to_dict(parsed(messages.ModelConfigResponse, answer).config),
        model,
    )


def model_statistics(model: str) -> Call[Sequence[Mapping[str, Any]]]:
    """One mapping per served version; of every model for ``""``."""
    request = messages.ModelStatisticsRequest(name=model)

    def read(answer: bytes) -> Sequence[Mapping[str, Any]]:
        return [_to_dict(row) for row in parsed(messages.ModelStatisticsResponse, answer).model_stats]

    return Call("ModelStatistics", request, read, model)


def register_region(region: SharedMemoryRegion) -> Call[None]:
    """Let the server map the region."""
    request = messages.SystemSharedMemoryRegisterRequest(
        name=region.name, key=f"/{region.name}", offset=0, byte_size=region.byte_size
    )
    return Call("SystemSharedMemoryRegister", request, _nothing)


def unregister_region(region_name: str) -> Call[None]:
    """Let the server unmap the region."""
    request = messages.SystemSharedMemoryUnregisterRequest(name=region_name)
    return Call("SystemSharedMemoryUnregister", request, _nothing)


class Endpoint:
    """A channel to one server: how it is opened and called, and what its errors mean, for both halves alike."""

    def __init__(self, at: Address) -> None:
        self._at = at
        self._target = f"[{at.host}]:{at.port}" if ":" in at.host else f"{at.host}:{at.port}"
        self._channel: Any = None
        self._closed = False

    @property
    def url(self) -> str:
        """The address in full."""
        return f"{'grpcs' if self._at.tls else 'grpc'}://{self._target}"

    def _open(self, library: Any) -> Any:
        """A channel of ``grpc`` or ``grpc.aio``; TLS trusts the system's authorities."""
        options = channel_options(self._at)
        if not self._at.tls:
            return library.insecure_channel(self._target, options=options)
        credentials = grpc.ssl_channel_credentials()
        if self._at.token is not None:
            token = grpc.access_token_call_credentials(self._at.token)
            credentials = grpc.composite_channel_credentials(credentials, token)
        return library.secure_channel(self._target, credentials, options=options)

    def _method(self, call: Call[Any]) -> Any:
        """What sends the call, without a deserializer: what cannot be read is found where all answers are read."""
        return self._channel.unary_unary(path(call.method), request_serializer=type(call.message).SerializeToString)

    def _translated(self, error: Any, timeout_s: float, model: str | None) -> OnestreamError:
        """The error that the caller sees for an RpcError."""
        if self._closed:
            return self._closed_during_call()
        return failure(error.code().name, error.details() or "", url=self.url, timeout_s=timeout_s, model=model)

    def _is_closed(self) -> ClientClosed:
        return ClientClosed(f"the client of {self.url} is closed")

    def _closed_during_call(self) -> ClientClosed:
        return ClientClosed(f"the client of {self.url} was closed during the call")


def failure(status: str, details: str, *, url: str, timeout_s: float, model: str | None) -> OnestreamError:
    """The error for a call that ended with this status, a gRPC code name such as ``"UNAVAILABLE"``."""
    if status == "DEADLINE_EXCEEDED":
        subject = f"model {model!r} at {url}" if model else url
        return TimedOut(f"no answer from {subject} within {timeout_s:.3g} s")
    if status == "UNAVAILABLE" and _MADE_HERE.search(details):
        return unreachable(
            url,
            readable(details) + (_OTHER_ADDRESSES if url.startswith("grpcs") else ""),
            expected="a Triton server that speaks gRPC there (port 8001 unless told otherwise; for its HTTP port write "
            "http://host:8000)",
            authorities="GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
        )
    if status == "RESOURCE_EXHAUSTED" and _TOO_LARGE.search(details):
        return UnexpectedResponse(f"{url} answered too much: {readable(details)}")
    if status in ("INTERNAL", "UNKNOWN") and _MALFORMED.search(details):
        return UnexpectedResponse(f"{url} answered what is no answer of gRPC: {readable(details)}")
    return refusal(status, details, model=model, url=url)


def _nothing(_answer: bytes) -> None:
    return None


def _to_dict(message: Any) -> dict[str, Any]:
    fields: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    return fields


def path(method: str) -> str:
    """The name of a method of Triton's service on a channel."""
    return f"/inference.GRPCInferenceService/{method}"


def channel_options(at: Address) -> list[tuple[str, int]]:
    """Reconnecting, and the size of a message; gRPC itself bounds the metadata to 16 KiB."""
    return [
        # The size limit is max_body_bytes, which the client checks; gRPC's own default is 4 MiB.
        ("grpc.max_send_message_length", -1),
        # gRPC counts in 32 bits.
        ("grpc.max_receive_message_length", min(at.max_answer_bytes + MAX_DOCUMENT_BYTES, 2**31 - 1)),
        # A small answer could unpack to a huge one: no compression is offered, and none is undone.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        ("grpc.per_message_decompression", 0),
        # In gRPC this is also how long one attempt to connect may take.
        ("grpc.min_reconnect_backoff_ms", int(at.connect_timeout_s * 1000)),
        # The defaults wait up to two minutes before a restarted server is tried again. Meanwhile calls fail at once, so
        # it must be less than what the usual two retries of a call wait, 0.375 s, with gRPC's jitter of a fifth and the
        # time that connecting takes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 200),
        # A proxy of the environment must not see requests for this machine; HTTP ignores it, too.
        ("grpc.enable_http_proxy", 0),
        # Each transport has its own connection, so closing or overloading one leaves others alone.
        ("grpc.use_local_subchannel_pool", 1),
    ]
