"""Sources that fill a network's input on a GPU: kernels on the network's own stream, DALI on the GPU, or the CPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from onestream.preprocess import BadImage, Compiled, Definition, Limits, compile
from onestream.preprocess.backends.base import ON_CPU, CompiledForGpu, CompiledOnStream, DecodeOptions
from onestream.preprocess.backends.table import BACKENDS, NetworkInput, Opening
from onestream.preprocess.cuda.device import DeviceArray, Stream
from onestream.preprocess.cuda.step_timer import StepTimer
from onestream.preprocess.headers.reader import Encoded
from onestream.serving.pipeline import GpuOptions


@dataclass(frozen=True, slots=True)
class Filled:
    """The images of a batch that took the first rows of the input, in order, and the errors of the others by index."""

    good: tuple[int, ...]
    bad: dict[int, BadImage]


class PixelSource(ABC):
    """Brings encoded images to a network's input, queued on a stream. For one thread at a time."""

    @abstractmethod
    def fill(self, images: Sequence[Encoded]) -> Filled:
        """Queue the pixels of at most as many images as the input has rows, ordered before the network.

        The stream must be waited for before the next call.
        """


def open_source(
    definition: Definition,
    limits: Limits,
    *,
    options: GpuOptions,
    stream: Stream,
    target: DeviceArray,
    timer: StepTimer,
) -> PixelSource:
    """The source that ``options`` ask for. ``target`` is uint8 (max_batch_size, height, width, channels).

    Raises ``CannotCompile`` where it cannot do the definition exactly.
    """
    pixels, rows = definition.pixels(), target.shape[0]
    if options.decode == "cpu":
        on_cpu = compile(pixels, backend=ON_CPU, limits=limits, max_batch_size=rows, threads=options.decode_threads)
        return _FromCpu(on_cpu, stream, target, timer)
    opened = BACKENDS[options.backend].open(
        pixels,
        limits,
        Opening(
            device="gpu",
            max_batch_size=rows,
            threads=options.decode_threads,
            decode=DecodeOptions(options.decode, options.hw_decoder_load),
            resize=options.resize,
            network=NetworkInput(stream, target, timer),
        ),
    )
    if isinstance(opened, CompiledOnStream):
        return _OnStream(opened)
    return _Copied(cast("CompiledForGpu", opened), stream, target, timer)


class _OnStream(PixelSource):
    """Writes into the target by itself."""

    def __init__(self, backend: CompiledOnStream) -> None:
        self._backend = backend

    def fill(self, images: Sequence[Encoded]) -> Filled:
        queued = self._backend.enqueue(images)
        return Filled(queued.good, queued.bad)


class _Copied(PixelSource):
    """DALI, which has a stream of its own and waits for it: its samples are copied on ours."""

    def __init__(self, backend: CompiledForGpu, stream: Stream, target: DeviceArray, timer: StepTimer) -> None:
        self._backend, self._stream, self._target, self._timer = backend, stream, target, timer
        self._copied: object = None

    def fill(self, images: Sequence[Encoded]) -> Filled:
        tensor, bad = self._backend.run_on_device(images)
        # DALI gives the memory to others when nobody holds the tensor, and the copy on our stream may be pending.
        self._copied = tensor
        self._timer.mark("decode")
        good = tuple(index for index in range(len(images)) if index not in bad)
        if good:
            rows = self._target.first(len(good))
            self._stream.copy(DeviceArray(tensor.data_ptr(), rows.shape, rows.dtype, self._stream.handle, tensor), rows)
            self._timer.mark("copy")
        return Filled(good, bad)


class _FromCpu(PixelSource):
    """The CPU decodes only what the crop keeps and resizes it; a network's pixels are all that crosses."""

    def __init__(self, compiled: Compiled, stream: Stream, target: DeviceArray, timer: StepTimer) -> None:
        self._compiled, self._stream, self._target, self._timer = compiled, stream, target, timer
        self._pinned: npt.NDArray[np.uint8] = stream.pinned(target.shape, np.uint8)

    def fill(self, images: Sequence[Encoded]) -> Filled:
        good: list[int] = []
        bad: dict[int, BadImage] = {}
        for index, sample in enumerate(self._compiled.run(images)):
            if isinstance(sample, BadImage):
                bad[index] = sample
            else:
                self._pinned[len(good)] = sample
                good.append(index)
        self._timer.mark("decode")
        if good:
            self._stream.upload(self._pinned[: len(good)], self._target)
            self._timer.mark("copy")
        return Filled(tuple(good), bad)
