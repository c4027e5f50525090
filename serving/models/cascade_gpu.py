"""The fused form of a cascade on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from onestream.postprocess.kinds import Tensors
from onestream.postprocess.parameters import Parameters
from onestream.preprocess.cuda.device import open_device
from onestream.preprocess.geometry import Quads
from onestream.serving.models.base import Adapter
from onestream.serving.models.callers import RequestCaller
from onestream.serving.models.cascade_stream import CascadeStream, networks_in
from onestream.serving.models.gpu_batches import GpuBatches
from onestream.serving.models.stages import OpenStage, StageParameters


def cascade_on_gpu(
    adapter: Adapter,
    stages: Callable[[], Sequence[OpenStage]],
    response: Callable[[Any, Tensors | Exception], Any],
    *,
    looked_at: Callable[[str, Quads], None],
    by_stage: Callable[[Parameters], StageParameters],
) -> GpuBatches[CascadeStream]:
    """What answers batches of pictures, each on a stream of its own, which holds the networks once more.

    ``stages`` are made for each stream; ``response`` is that to a request, by what became of its picture. ``looked_at``
    is that of ``Stages``; ``by_stage`` sorts the parameters of a request.
    """
    device, options = open_device(adapter.gpu_index), adapter.gpu_options

    def open_stream() -> CascadeStream:
        return CascadeStream(
            stages(),
            networks_in(adapter.version_folder, options),
            adapter.limits,
            device=device,
            options=options,
            told=adapter.metrics.step,
            timed=adapter.timed,
            looked_at=looked_at,
        )

    def responses(stream: CascadeStream, requests: Sequence[Any]) -> list[Any]:
        callers = [RequestCaller(request, is_held=False) for request in requests]
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
