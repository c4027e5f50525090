"""Sends the results of a stream by the response sender of the request that opened it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from onestream.postprocess.kinds import Tensors
from onestream.serving.video.bounds import BadStream
from onestream.serving.video.stream_types import ResponseSink
from onestream.wire.tensor_names import EVENT
from onestream.wire.video import Event


class Sender(ResponseSink):
    """The response sender of the request that opened a stream; a stream that ends with an error is logged."""

    def __init__(self, sender: Any, log_refusal: Callable[[BadStream], None]) -> None:
        self._sender, self._log_refusal = sender, log_refusal
        self._broken = False

    def send(self, event: Event, tensors: Tensors) -> None:
        """See ``ResponseSink.send``."""
        self._try(lambda: self._sender.send(_response(event, tensors)))

    def end(self, event: Event | None, error: BadStream | None) -> None:
        """See ``ResponseSink.end``."""
        if error is not None:
            self._log_refusal(error)
        # Never a TritonError: of a caller that asks for gRPC's own errors, tritonserver 2.51 dies by it.
        said = () if event is None else (_response(event, {}),)
        self._try(lambda: self._sender.send(*said, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL))

    def is_gone(self) -> bool:
        """See ``ResponseSink.is_gone``."""
        return self._broken or bool(self._sender.is_cancelled())

    def _try(self, send: Callable[[], None]) -> None:
        """Shared memory may be full, or Triton may have given the request up: the stream ends at the next tick."""
        try:
            send()
        except Exception as error:
            self._broken = True
            pb_utils.Logger.log_error(f"an answer of a stream could not be sent: {error}")


def _response(event: Event, tensors: Tensors) -> Any:
    said = pb_utils.Tensor(EVENT, np.array([event.to_json().encode()], object))
    return pb_utils.InferenceResponse([said, *(pb_utils.Tensor(name, value) for name, value in tensors.items())])
