"""The GPU's part of the adapters: pixels that stay there, and the fused forms on CUDA streams."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any, Generic, TypeVar

import numpy as np
import triton_python_backend_utils as pb_utils

from onestream.postprocess.kinds import Tensors
from onestream.postprocess.parameters import Parameters
from onestream.preprocess import PreprocessError
from onestream.preprocess.cuda.device import Device, open_device, usable
from onestream.preprocess.cuda.step_timer import StepTimer
from onestream.preprocess.geometry import Quads
from onestream.preprocess.headers.reader import Checked
from onestream.serving.models.base import Adapter
from onestream.serving.models.cascade_stream import CascadeStream, networks_in
from onestream.serving.models.deadline import RequestCaller
from onestream.serving.models.heavy_pictures import unavailable
from onestream.serving.models.one_stream import GpuSteps, OneStream, open_fused_engine, open_source
from onestream.serving.models.stages import StageParameters
from onestream.serving.models.workers import Workers
from onestream.wire.refusals import WAITED_TOO_LONG

State = TypeVar("State")


class GpuBatches(Generic[State]):
    """Hands batches of requests over to threads, ``batches_in_flight`` at once, each with a stream of its own.

    Args:
        model: its name, for the log.
        device: the GPU.
        batches_in_flight: how many threads there are.
        open_stream: makes what a thread works with.
        responses: one for each caller of a batch. What it raises is the answer to all of them.
        closed: called when all batches are answered; releases what the streams share.
    """

    def __init__(
        self,
        model: str,
        device: Device,
        *,
        batches_in_flight: int,
        open_stream: Callable[[], State],
        responses: Callable[[State, Sequence[RequestCaller]], list[Any]],
        closed: Callable[[], None] = lambda: None,
    ) -> None:
        self._model, self._device = model, device
        self._responses, self._closed = responses, closed
        self._workers: Workers[State, tuple[Sequence[RequestCaller], bool]] = Workers(
            batches_in_flight, open_stream, self._run
        )

    def submit(self, callers: Sequence[RequestCaller], *, is_heavy: bool) -> None:
        """See ``Submitted.submit``. Who stops waiting before a thread is free costs the GPU nothing."""
        self._workers.submit((callers, is_heavy))

    def close(self) -> None:
        """Answer what was handed over, and release what the streams share."""
        self._workers.close()
        self._closed()

    def _run(self, stream: State, batch: tuple[Sequence[RequestCaller], bool]) -> None:
        callers, is_heavy = batch
        senders = [caller.request.get_response_sender() for caller in callers]
        waiting, broken = [True] * len(callers), False
        try:
            # Triton takes 60 µs to tell whether a caller has left: little beside a heavy image, as long as a light one.
            waiting = [caller.is_waiting() if is_heavy else not caller.is_late() for caller in callers]
            served = list(compress(callers, waiting))
            responses = self._responses(stream, served) if served else []
        except Exception as error:  # whatever Triton or a driver raises, every request must get its answer
            responses = [self._failed(error) for is_served in waiting if is_served]
            broken = not usable(self._device)
        answers = iter(responses)
        for sender, is_served in zip(senders, waiting, strict=True):
            response = next(answers) if is_served else unavailable(WAITED_TOO_LONG)
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


def device_pixels(adapter: Adapter, name: str) -> Callable[[list[Checked]], list[Any]]:
    """A function from images to tensors ``name`` on the GPU, or a ``BadImage`` for each that is refused."""
    from onestream.preprocess.backends.cvcuda import as_tensor

    device = open_device(adapter.gpu_index)
    stream = device.stream()
    timer = StepTimer(stream)
    model = adapter.model
    spec = model.definition.output_spec
    height, width = spec.size_hw
    assert height is not None
    assert width is not None
    target = stream.allocate((model.batch, height, width, spec.channels), np.uint8)
    source = open_source(
        model.definition, model.limits, options=model.gpu_options, stream=stream, target=target, timer=timer
    )

    def run(images: list[Checked]) -> list[Any]:
        timer.start()
        filled = source.fill(images)
        # Triton copies the pixels by a stream of its own.
        stream.sync()
        for step, milliseconds in timer.milliseconds().items():
            adapter.metrics.step(step, milliseconds)
        results: list[Any] = [filled.bad.get(index) for index in range(len(images))]
        for row, index in enumerate(filled.good):
            results[index] = pb_utils.Tensor.from_dlpack(name, as_tensor(target.rows(row, row + 1), "NHWC"))
        return results

    return run


def fused_on_gpu(adapter: Adapter) -> GpuBatches[GpuSteps]:
    """What answers the fused form's batches, each on a stream of its own over one engine."""
    model, device = adapter.model, open_device(adapter.gpu_index)
    options = model.gpu_options
    engine = open_fused_engine(model, device, progress=lambda line: pb_utils.Logger.log_info(f"{adapter.name}: {line}"))
    postprocess = model.postprocess(has_tail=True)

    def open_stream() -> GpuSteps:
        stream = OneStream(model.definition, model.limits, engine, device=device, options=options)
        return GpuSteps(stream, postprocess, adapter.metrics.step)

    def responses(steps: GpuSteps, callers: Sequence[RequestCaller]) -> list[Any]:
        return adapter.responses_of(steps, [caller.request for caller in callers])

    return GpuBatches(
        adapter.name,
        device,
        batches_in_flight=options.batches_in_flight,
        open_stream=open_stream,
        responses=responses,
        closed=engine.close,
    )


def cascade_on_gpu(
    adapter: Adapter,
    response: Callable[[Any, Tensors | Exception], Any],
    *,
    looked_at: Callable[[str, Quads], None],
    by_stage: Callable[[Parameters], StageParameters],
) -> GpuBatches[CascadeStream]:
    """What answers batches of pictures, each on a stream of its own, which holds the networks once more.

    ``response`` is that to a request, by what became of its picture. ``looked_at``
    is that of ``Stages``; ``by_stage`` sorts the parameters of a request.
    """
    model, device = adapter.model, open_device(adapter.gpu_index)
    options = model.gpu_options

    def open_stream() -> CascadeStream:
        return CascadeStream(
            model.stages(),
            networks_in(model.version_folder, options),
            model.limits,
            device=device,
            options=options,
            told=adapter.metrics.step,
            timed=adapter.timed,
            looked_at=looked_at,
        )

    def responses(stream: CascadeStream, callers: Sequence[RequestCaller]) -> list[Any]:
        requests = [caller.request for caller in callers]
        single, refused = adapter.single_images(requests, adapter.parameters_of)
        asked = list(single.values())
        found = stream.run(
            [one.image for one in asked],
            [callers[index] for index in single],
            [by_stage(one.parameters) for one in asked],
        )
        results = {**refused, **dict(zip(single, found, strict=True))}
        return [response(request, results[index]) for index, request in enumerate(requests)]

    return GpuBatches(
        adapter.name,
        device,
        batches_in_flight=options.batches_in_flight,
        open_stream=open_stream,
        responses=responses,
    )
