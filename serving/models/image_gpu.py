"""The GPU's part of the adapters: pixels that stay there, and the fused form on CUDA streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from onestream.preprocess import BadImage
from onestream.preprocess.cuda.device import open_device
from onestream.preprocess.cuda.step_timer import StepTimer
from onestream.serving.models.base import Adapter, Image
from onestream.serving.models.gpu_batches import GpuBatches
from onestream.serving.models.gpu_steps import GpuSteps, open_fused_engine
from onestream.serving.models.one_stream import OneStream
from onestream.serving.models.pixel_sources import open_source
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


def fused_on_gpu(adapter: Adapter) -> GpuBatches[GpuSteps]:
    """What answers the fused form's batches, each on a stream of its own over one engine."""
    options = adapter.gpu_options
    device = open_device(adapter.gpu_index)
    engine = open_fused_engine(
        adapter.version_folder,
        adapter.parameters["postprocess"],
        options=options,
        device=device,
        definition=adapter.definition,
        progress=lambda line: pb_utils.Logger.log_info(f"{adapter.name}: {line}"),
    )
    postprocess = adapter.load_postprocess(has_tail=True)

    def open_stream() -> GpuSteps:
        stream = OneStream(adapter.definition, adapter.limits, engine, device=device, options=options)
        return GpuSteps(stream, postprocess, adapter.metrics.step)

    def responses(steps: GpuSteps, requests: Sequence[Any]) -> list[Any]:
        return [
            adapter.refuse(request, sample) if isinstance(sample, BadImage) else adapter.respond(sample)
            for request, sample in zip(
                requests, adapter.run_isolated(steps, requests, adapter.parameters_of), strict=True
            )
        ]

    return GpuBatches(
        adapter.name,
        device,
        batches_in_flight=options.batches_in_flight,
        open_stream=open_stream,
        responses=responses,
        closed=engine.close,
    )
