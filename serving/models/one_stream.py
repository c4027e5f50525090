"""One batch on one CUDA stream: decode, resize, network and postprocessing queued in order, waited for once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onestream.preprocess import BadImage, Definition, Limits
from onestream.preprocess.cuda.device import Device
from onestream.preprocess.cuda.step_timer import StepTimer
from onestream.preprocess.headers.reader import Encoded
from onestream.serving.engine import DeviceEngine
from onestream.serving.models.pixel_sources import open_source
from onestream.serving.pipeline import GpuOptions

Outputs = dict[str, npt.NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The results of a batch.

    ``outputs`` hold one row for each index of ``good``, in that order; ``bad`` says by index why the others have none.
    ``step_ms`` is GPU time by step. The arrays are the caller's.
    """

    outputs: Outputs
    good: tuple[int, ...]
    bad: dict[int, BadImage]
    step_ms: dict[str, float]


class OneStream:
    """A pipeline on one stream of a GPU, for one thread at a time, which enters the device. Several overlap.

    ``engine`` holds the network with its postprocessing (``onestream.serving.graph.onnx_postprocess``) and takes a
    definition's pixels.
    """

    def __init__(
        self, definition: Definition, limits: Limits, engine: DeviceEngine, *, device: Device, options: GpuOptions
    ) -> None:
        device.enter()
        self._stream = device.stream()
        self._timer = StepTimer(self._stream)
        self._session = engine.open(self._stream)
        self._source = open_source(
            definition,
            limits,
            options=options,
            stream=self._stream,
            target=self._session.input,
            timer=self._timer,
        )
        self._max_batch_size = engine.max_batch_size
        self._host: Outputs = {
            name: self._stream.pinned(array.shape, array.dtype) for name, array in self._session.outputs.items()
        }

    def run(self, images: Sequence[Encoded]) -> BatchResult:
        """Run a batch. The only wait of ours is the one before the outputs are read.

        Raises ``ValueError`` for more images than the engine takes.
        """
        if len(images) > self._max_batch_size:
            raise ValueError(f"got {len(images)} images; the engine takes {self._max_batch_size}")
        self._timer.start()
        filled = self._source.fill(images)
        count = len(filled.good)
        if not count:
            return BatchResult({}, (), filled.bad, {})
        self._session.enqueue(count)
        self._timer.mark("network")
        for name, array in self._session.outputs.items():
            self._stream.download(array.first(count), self._host[name])
        self._timer.mark("read")
        self._stream.sync()
        outputs = {name: np.array(host[:count]) for name, host in self._host.items()}
        return BatchResult(outputs, filled.good, filled.bad, self._timer.milliseconds())
