"""The GPU's part of the adapters: pixels that stay there, and the fused form on CUDA streams."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from onestream.postprocess.postprocessing import Tensors
from onestream.preprocess import BadImage, PreprocessError
from onestream.preprocess.cuda.device import Device, open_device
from onestream.preprocess.cuda.step_timer import StepTimer
from onestream.serving.engine import open_engine
from onestream.serving.engine.fused import fused_network
from onestream.serving.engine.network_files import NETWORK_FILE, float_network
from onestream.serving.models.base import Adapter, Image, image_size, run_isolated
from onestream.serving.models.one_stream import OneStream
from onestream.serving.models.pixel_sources import open_source
from onestream.serving.models.workers import Workers
from onestream.wire.tensor_names import PIXELS


def device_pixels(adapter: Adapter) -> Callable[[list[Image]], list[Any]]:
    """A function from images to ``pixels`` tensors on the GPU, or a ``BadImage`` for each that is refused."""
    from onestream.preprocess.backends.cvcuda import as_tensor

    device = open_device(adapter.gpu_index)
    stream = device.stream()
    timer = StepTimer(stream)
    height, width = adapter.definition.output_spec.size_hw
    assert height is not None
    assert width is not None
    shape = (adapter.max_batch_size, height, width, adapter.definition.output_spec.channels)
    target = stream.allocate(shape, np.uint8)
    source = open_source(
        adapter.definition, adapter.limits, options=adapter.gpu_options, stream=stream, target=target, timer=timer
    )

    def run(images: list[Image]) -> list[Any]:
        timer.start()
        filled = source.fill(images)
        # Triton copies the pixels by a stream of its own.
        stream.sync()
        for step, milliseconds in timer.milliseconds().items():
            adapter.metrics.step(step, milliseconds)
        results: list[Any] = [filled.bad.get(index) for index in range(len(images))]
        for row, index in enumerate(filled.good):
            results[index] = pb_utils.Tensor.from_dlpack(PIXELS, as_tensor(target.rows(row, row + 1), "NHWC"))
        return results

    return run


class FusedOnGpu:
    """Batches of the fused form, each on a stream of its own, answered by the threads that run them."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        options = adapter.gpu_options
        self._device = open_device(adapter.gpu_index)
        self._engine = open_engine(
            fused_network(float_network(adapter.version_folder / NETWORK_FILE), adapter.parameters["postprocess"]),
            options=options,
            device=self._device,
            definition=adapter.definition,
            progress=lambda line: pb_utils.Logger.log_info(f"{adapter.name}: {line}"),
        )
        self._postprocess = adapter.load_postprocess(has_tail=True)

        def open_stream() -> OneStream:
            return OneStream(adapter.definition, adapter.limits, self._engine, device=self._device, options=options)

        self._workers: Workers[OneStream, Sequence[Any]] = Workers(options.batches_in_flight, open_stream, self._run)

    def submit(self, requests: Sequence[Any]) -> None:
        """Hand over a batch; returns when the next may come."""
        self._workers.submit(requests)

    def close(self) -> None:
        """Answer what was handed over and release the engine."""
        self._workers.close()
        self._engine.close()

    def _run(self, stream: OneStream, requests: Sequence[Any]) -> None:
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
                pb_utils.Logger.log_error(f"{self._adapter.name}: an answer could not be sent: {error}")
        if broken:
            # A CUDA context does not recover from an error; the supervisor starts this process again.
            os._exit(1)

    def _responses(self, stream: OneStream, requests: Sequence[Any]) -> list[Any]:
        samples = run_isolated(lambda images: self._outputs(stream, images), requests)
        return [
            self._adapter.refuse(request, sample) if isinstance(sample, BadImage) else self._adapter.respond(sample)
            for request, sample in zip(requests, samples, strict=True)
        ]

    def _outputs(self, stream: OneStream, images: list[Image]) -> list[Tensors | BadImage]:
        """The outputs of each image with a leading batch dimension, or why it has none."""
        result = stream.run(images)
        for step, milliseconds in result.step_ms.items():
            self._adapter.metrics.step(step, milliseconds)
        found: dict[int, Tensors | BadImage] = dict(result.bad)
        if result.good:
            sizes = [image_size(images[index]) for index in result.good]
            found |= zip(result.good, self._postprocess(result.outputs, sizes), strict=True)
        return [found[index] for index in range(len(images))]

    def _failed(self, error: Exception) -> Any:
        what = str(error) if isinstance(error, PreprocessError) else type(error).__name__
        pb_utils.Logger.log_error(f"{self._adapter.name}: a batch failed: {error}")
        return pb_utils.InferenceResponse(
            error=pb_utils.TritonError(f"the batch failed on the GPU: {what}", pb_utils.TritonError.INTERNAL)
        )


def usable(device: Device) -> bool:
    """Whether a GPU still answers in this process."""
    try:
        device.core.sync()
    except Exception:  # the bindings' own errors, and any other, mean the same here
        return False
    return True
