"""The inference protocol over gRPC, on the messages that ``tritonclient`` generates from Triton's ``.proto`` files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import grpc  # type: ignore[import-untyped]
from tritonclient.grpc.service_pb2 import ModelInferRequest

from onestream.client._transports import grpc_calls
from onestream.client._transports.base import DEFAULT_MAX_ANSWER_BYTES
from onestream.client._transports.grpc_calls import Call
from onestream.client._transports.grpc_conversation import GrpcConversation
from onestream.client._transports.transport import Calls
from onestream.client.errors import ClientClosed, OnestreamError

_T = TypeVar("_T")


class GrpcTransport(Calls):
    """One HTTP/2 connection, shared by all threads; calls travel over it at the same time."""

    calls = grpc_calls

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: bool,
        connect_timeout_s: float,
        token: str | None = None,
        max_answer_bytes: int = DEFAULT_MAX_ANSWER_BYTES,
    ) -> None:
        """``host`` without brackets, also for IPv6; ``token`` only with ``tls``. Connects at the first call."""
        self._target = grpc_calls.address(host, port)
        self._scheme = "grpcs" if tls else "grpc"
        options = grpc_calls.channel_options(connect_timeout_s, max_answer_bytes=max_answer_bytes)
        self._channel = (
            grpc.secure_channel(self._target, grpc_calls.credentials(token), options=options)
            if tls
            else grpc.insecure_channel(self._target, options=options)
        )
        self._closed = False

    @property
    def url(self) -> str:
        """The address in full."""
        return f"{self._scheme}://{self._target}"

    def converse(self, model: str, input_name: str, contents: Iterator[bytes]) -> GrpcConversation:
        """Begin a conversation with a model: ``contents`` is read by another thread, and may block, until it ends."""
        try:
            return GrpcConversation(
                self._channel.stream_stream(
                    grpc_calls.path("ModelStreamInfer"), request_serializer=ModelInferRequest.SerializeToString
                ),
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

    def close(self) -> None:
        """Close the channel, which ends every call in progress."""
        self._closed = True
        self._channel.close()

    def _call(self, call: Call[_T], timeout_s: float) -> _T:
        try:
            # Without a deserializer: what cannot be read is found where all answers are read.
            method = self._channel.unary_unary(
                grpc_calls.path(call.method), request_serializer=type(call.message).SerializeToString
            )
            answer = method(call.message, timeout=timeout_s, metadata=call.metadata)
        except grpc.RpcError as error:
            raise self._translate(error, timeout_s, call.model) from None
        except ValueError:
            # gRPC raises a bare ValueError for a call on a closed channel.
            if self._closed:
                raise ClientClosed(f"the client of {self.url} is closed") from None
            raise
        return call.result(answer, url=self.url)

    def _translate(self, error: Any, timeout_s: float, model: str | None) -> OnestreamError:
        return grpc_calls.translate(error, url=self.url, timeout_s=timeout_s, model=model, closed=self._closed)
