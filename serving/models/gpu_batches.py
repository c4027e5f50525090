"""Batches on a GPU: each on a stream of its own, answered by the threads that run them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import triton_python_backend_utils as pb_utils

from onestream.preprocess import PreprocessError
from onestream.preprocess.cuda.device import Device, usable
from onestream.serving.models.workers import Workers

State = TypeVar("State")


class GpuBatches(Generic[State]):
    """Hands batches of requests over to threads, ``batches_in_flight`` at once, each with a stream of its own.

    Args:
        model: its name, for the log.
        device: the GPU.
        batches_in_flight: how many threads there are.
        open_stream: makes what a thread works with.
        responses: one for each request of a batch. What it raises is the answer to all of them.
        closed: called when all batches are answered; releases what the streams share.
    """

    def __init__(
        self,
        model: str,
        device: Device,
        *,
        batches_in_flight: int,
        open_stream: Callable[[], State],
        responses: Callable[[State, Sequence[Any]], list[Any]],
        closed: Callable[[], None] = lambda: None,
    ) -> None:
        self._model, self._device = model, device
        self._responses, self._closed = responses, closed
        self._workers: Workers[State, Sequence[Any]] = Workers(batches_in_flight, open_stream, self._run)

    def submit(self, requests: Sequence[Any]) -> None:
        """Hand over a batch; returns when the next may come."""
        self._workers.submit(requests)

    def close(self) -> None:
        """Answer what was handed over, and release what the streams share."""
        self._workers.close()
        self._closed()

    def _run(self, stream: State, requests: Sequence[Any]) -> None:
        senders = [request.get_response_sender() for request in requests]
        try:
            responses = self._responses(stream, requests)
        except Exception as error:  # whatever a driver raises, every request must get its answer
            responses = [self._failed(error) for _ in requests]
            broken = not usable(self._device)
        else:
            broken = False
        for sender, response in zip(senders, responses, strict=True):
            try:
                sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            except Exception as error:  # one answer that does not arrive must not cost the others theirs
                pb_utils.Logger.log_error(f"{self._model}: an answer could not be sent: {error}")
        if broken:
            # A CUDA context does not recover from an error; the supervisor starts this process again.
            os._exit(1)

    def _failed(self, error: Exception) -> Any:
        what = str(error) if isinstance(error, PreprocessError) else type(error).__name__
        pb_utils.Logger.log_error(f"{self._model}: a batch failed: {error}")
        return pb_utils.InferenceResponse(
            error=pb_utils.TritonError(f"the batch failed on the GPU: {what}", pb_utils.TritonError.INTERNAL)
        )
