"""The inference protocol over gRPC, on the messages that ``tritonclient`` generates from Triton's ``.proto`` files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from secrets import randbelow
from typing import Any, TypeVar

import grpc  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2 as messages

from onestream.client._transports import grpc_calls
from onestream.client._transports.base import Address, Tensors
from onestream.client._transports.grpc_calls import Call, outputs_of, parsed
from onestream.client._transports.refusals import refusal
from onestream.client._transports.transport import Calls
from onestream.client.errors import OnestreamError

_T = TypeVar("_T")


class GrpcTransport(grpc_calls.Endpoint, Calls):
    """One HTTP/2 connection, shared by all threads; calls travel over it at the same time."""

    calls = grpc_calls

    def __init__(self, at: Address) -> None:
        super().__init__(at)
        self._channel = self._open(grpc)

    def converse(self, model: str, input_name: str, contents: Iterator[bytes]) -> GrpcConversation:
        """Begin a conversation with a model: ``contents`` is read by another thread, and may block, until it ends."""
        try:
            return GrpcConversation(
                self._channel.stream_stream(
                    grpc_calls.path("ModelStreamInfer"),
                    request_serializer=messages.ModelInferRequest.SerializeToString,
                ),
                model,
                input_name,
                contents,
                url=self.url,
                translate=lambda error: self._translated(error, 0.0, model),
            )
        except ValueError:
            if self._closed:
                raise self._is_closed() from None
            raise

    def close(self) -> None:
        """Close the channel, which ends every call in progress."""
        self._closed = True
        self._channel.close()

    def _call(self, call: Call[_T], timeout_s: float) -> _T:
        try:
            answer = self._method(call)(call.message, timeout=timeout_s, metadata=call.metadata)
        except grpc.RpcError as error:
            raise self._translated(error, timeout_s, call.model) from None
        except ValueError:
            # gRPC raises a bare ValueError for a call on a closed channel.
            if self._closed:
                raise self._is_closed() from None
            raise
        return call.result(answer, url=self.url)


class GrpcConversation:
    """Sends messages as requests with one sequence id, which is random: two clients with one would collide unseen."""

    def __init__(
        self,
        method: Callable[..., Any],
        model: str,
        input_name: str,
        contents: Iterator[bytes],
        *,
        url: str,
        translate: Callable[[Any], OnestreamError],
    ) -> None:
        self._model, self._input_name, self._url, self._translate = model, input_name, url, translate
        self._sequence_id = randbelow(2**63 - 1) + 1
        # Not with the metadata triton_grpc_error, by which an error would end the call with its true status: where
        # further messages wait, tritonserver 2.51 dies by it.
        self._call = method(self._request(data) for data in contents)

    def answers(self) -> Iterator[Tensors]:
        """The answers until the server ends the call."""
        try:
            for data in self._call:
                answer = parsed(messages.ModelStreamInferResponse, data)
                # Triton's own: what its model refuses, the model says in an answer.
                if answer.error_message:
                    raise refusal("UNKNOWN", answer.error_message, model=self._model, url=self._url)
                # Triton may close a request with an answer that holds nothing.
                if answer.infer_response.outputs:
                    yield outputs_of(answer.infer_response)
        except grpc.RpcError as error:
            raise self._translate(error) from None

    def cancel(self) -> None:
        """End the call; the model can see that it was cancelled."""
        self._call.cancel()

    def _request(self, data: bytes) -> Any:
        message = messages.ModelInferRequest(model_name=self._model)
        message.parameters["sequence_id"].int64_param = self._sequence_id
        message.inputs.append(
            messages.ModelInferRequest.InferInputTensor(name=self._input_name, datatype="UINT8", shape=[len(data)])
        )
        message.raw_input_contents.append(data)
        return message
