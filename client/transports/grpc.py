"""The inference protocol over gRPC, on the stubs that ``tritonclient`` generates from Triton's ``.proto`` files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import grpc  # type: ignore[import-untyped]
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from client.errors import (
    CannotConnect,
    ClientClosed,
    OnestreamError,
    TimedOut,
)
from client.transports.base import IMAGE_INPUT, InferRequest, Region, RegionSlice, Tensors
from client.transports.grpc_conversation import GrpcConversation, outputs_of
from client.transports.refusals import readable, refusal

_MADE_HERE = re.compile(
    r"failed to connect|errors resolving|dns resolution|socket closed|connection reset|broken pipe|goaway"
    r"|recvmsg|endpoint closing|end of tcp stream|keepalive|handshake",
    re.IGNORECASE,
)
"""UNAVAILABLE with one of these words comes from this side's gRPC library: no server said it."""


class GrpcTransport:
    """One HTTP/2 connection, shared by all threads; calls travel over it at the same time."""

    def __init__(self, host: str, port: int, *, tls: bool, connect_timeout_s: float, token: str | None = None) -> None:
        """``host`` without brackets, also for IPv6; ``token`` only with ``tls``. Connects at the first call."""
        self._target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._scheme = "grpcs" if tls else "grpc"
        options = [
            # The size limit is max_body_bytes, which the client checks; gRPC's own default is 4 MiB.
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
            # In gRPC this is also how long one attempt to connect may take.
            ("grpc.min_reconnect_backoff_ms", int(connect_timeout_s * 1000)),
            # The defaults wait up to two minutes before a restarted server is tried again.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1000),
            # A proxy of the environment must not see requests for this machine; HTTP ignores it, too.
            ("grpc.enable_http_proxy", 0),
            # Each transport has its own connection, so closing or overloading one leaves others alone.
            ("grpc.use_local_subchannel_pool", 1),
        ]
        self._channel = (
            grpc.secure_channel(self._target, credentials(token), options=options)
            if tls
            else grpc.insecure_channel(self._target, options=options)
        )
        self._stub = GRPCInferenceServiceStub(self._channel)
        self._closed = False

    @property
    def url(self) -> str:
        """The address in full."""
        return f"{self._scheme}://{self._target}"

    def infer(self, request: InferRequest, *, timeout_s: float) -> Tensors:
        """All outputs of the model for this request."""
        tensor = messages.ModelInferRequest.InferInputTensor(name=IMAGE_INPUT, datatype="UINT8", shape=request.shape)
        message = messages.ModelInferRequest(model_name=request.model, id=request.request_id)
        if isinstance(request.image, RegionSlice):
            tensor.parameters["shared_memory_region"].string_param = request.image.region_name
            tensor.parameters["shared_memory_byte_size"].int64_param = request.image.byte_size
        else:
            message.raw_input_contents.append(request.image)
        message.inputs.append(tensor)
        response = self._call(self._stub.ModelInfer, message, timeout_s, model=request.model)
        return outputs_of(response)

    def converse(self, model: str, input_name: str, contents: Iterator[bytes]) -> GrpcConversation:
        """Begin a conversation with a model: ``contents`` is read by another thread, and may block, until it ends."""
        try:
            return GrpcConversation(
                self._stub,
                model,
                input_name,
                contents,
                url=self.url,
                translate=lambda error: self._translate(error, 0.0, model),
            )
        except ValueError:
            if self._closed:
                raise ClientClosed(f"the client of {self.url} is closed") from None
            raise

    def is_ready(self, model: str | None, *, timeout_s: float) -> bool:
        """Whether the server (``None``) or the model says that it is ready."""
        if model is None:
            answer = self._call(self._stub.ServerReady, messages.ServerReadyRequest(), timeout_s)
        else:
            answer = self._call(self._stub.ModelReady, messages.ModelReadyRequest(name=model), timeout_s, model=model)
        return bool(answer.ready)

    def server_metadata(self, *, timeout_s: float) -> Mapping[str, Any]:
        """``name``, ``version`` and ``extensions`` of the server."""
        return _to_dict(self._call(self._stub.ServerMetadata, messages.ServerMetadataRequest(), timeout_s))

    def model_config(self, model: str, *, timeout_s: float) -> Mapping[str, Any]:
        """The model's configuration."""
        request = messages.ModelConfigRequest(name=model)
        return _to_dict(self._call(self._stub.ModelConfig, request, timeout_s, model=model).config)

    def model_statistics(self, model: str, *, timeout_s: float) -> Sequence[Mapping[str, Any]]:
        """One mapping per served version."""
        request = messages.ModelStatisticsRequest(name=model)
        answer = self._call(self._stub.ModelStatistics, request, timeout_s, model=model)
        return [_to_dict(row) for row in answer.model_stats]

    def register_region(self, region: Region, *, timeout_s: float) -> None:
        """Let the server map the region."""
        request = messages.SystemSharedMemoryRegisterRequest(
            name=region.name, key=f"/{region.name}", offset=0, byte_size=region.byte_size
        )
        self._call(self._stub.SystemSharedMemoryRegister, request, timeout_s)

    def unregister_region(self, region_name: str, *, timeout_s: float) -> None:
        """Let the server unmap the region."""
        request = messages.SystemSharedMemoryUnregisterRequest(name=region_name)
        self._call(self._stub.SystemSharedMemoryUnregister, request, timeout_s)

    def close(self) -> None:
        """Close the channel, which ends every call in progress."""
        self._closed = True
        self._channel.close()

    def _call(self, method: Callable[..., Any], message: object, timeout_s: float, *, model: str | None = None) -> Any:
        try:
            return method(message, timeout=timeout_s)
        except grpc.RpcError as error:
            raise self._translate(error, timeout_s, model) from None
        except ValueError:
            # gRPC raises a bare ValueError for a call on a closed channel.
            if self._closed:
                raise ClientClosed(f"the client of {self.url} is closed") from None
            raise

    def _translate(self, error: Any, timeout_s: float, model: str | None) -> OnestreamError:
        code, details = error.code(), error.details() or ""
        if self._closed:
            return ClientClosed(f"the client of {self.url} was closed during the call")
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            subject = f"model {model!r} at {self.url}" if model else self.url
            return TimedOut(f"no answer from {subject} within {timeout_s:.3g} s")
        if code is grpc.StatusCode.UNAVAILABLE and _MADE_HERE.search(details):
            return CannotConnect(
                f"cannot reach {self.url}: {readable(details)}; expected a Triton server that speaks gRPC there "
                "(port 8001 unless told otherwise; for its HTTP port write http://host:8000)"
            )
        return refusal(code.name, details, model=model, url=self.url)


def credentials(token: str | None) -> grpc.ChannelCredentials:
    """TLS that trusts the system's authorities, with a token for every call where one is given."""
    tls = grpc.ssl_channel_credentials()
    if token is None:
        return tls
    return grpc.composite_channel_credentials(tls, grpc.access_token_call_credentials(token))


def _to_dict(message: Any) -> dict[str, Any]:
    fields: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    return fields
