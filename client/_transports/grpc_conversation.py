"""Talks to a decoupled model over gRPC: one bidirectional call with one sequence id."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from secrets import randbelow
from typing import Any

import grpc  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2 as messages

from onestream.client._transports.base import Tensors
from onestream.client._transports.grpc_messages import outputs_of, stream_response
from onestream.client._transports.refusals import refusal
from onestream.client.errors import OnestreamError


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
            for answer in map(stream_response, self._call):
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
