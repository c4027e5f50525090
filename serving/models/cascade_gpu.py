"""The fused form of a cascade on a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from onestream.postprocess.postprocessing import Tensors
from onestream.preprocess.cuda.device import Stream, open_device
from onestream.serving.engine import FreeSession, open_free_session
from onestream.serving.models.base import Adapter, single_images
from onestream.serving.models.cascade_stream import CascadeStream
from onestream.serving.models.gpu_batches import GpuBatches
from onestream.serving.models.heavy_pictures import is_wanted
from onestream.serving.models.stages import Stage


def cascade_on_gpu(
    adapter: Adapter,
    stages: Callable[[], Sequence[Stage]],
    response: Callable[[Any, Tensors | Exception], Any],
    *,
    counted: Callable[[str, int], None],
) -> GpuBatches[CascadeStream]:
    """What answers batches of pictures, each on a stream of its own, which holds the networks once more.

    ``stages`` are made for each stream; ``response`` is that to a request, by what became of its picture. ``counted``
    is that of ``Stages``.
    """
    device, options = open_device(adapter.gpu_index), adapter.gpu_options

    def open_session(stage: Stage, stream: Stream) -> FreeSession:
        model = adapter.version_folder / f"{stage.name}.onnx"
        return open_free_session(model, options, stream, definition=stage.definition)

    def open_stream() -> CascadeStream:
        return CascadeStream(
            stages(),
            open_session,
            adapter.limits,
            device=device,
            options=options,
            told=adapter.metrics.step,
            timed=adapter.timed,
            counted=counted,
        )

    def responses(stream: CascadeStream, requests: Sequence[Any]) -> list[Any]:
        began = time.monotonic()
        images, refused = single_images(requests)
        found = stream.run(list(images.values()), [partial(is_wanted, requests[index], began) for index in images])
        results = {**refused, **dict(zip(images, found, strict=True))}
        return [response(request, results[index]) for index, request in enumerate(requests)]

    return GpuBatches(
        adapter.name,
        device,
        batches_in_flight=options.batches_in_flight,
        open_stream=open_stream,
        responses=responses,
    )
