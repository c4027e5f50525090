"""Video streams on a GPU: a CUDA stream for each, and pixels that reach the network without leaving the device."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils

from onestream.postprocess.kinds import AnyPostprocess
from onestream.postprocess.matte.background import Background
from onestream.postprocess.matte.composer_gpu import GpuComposer
from onestream.postprocess.matte.stretch import Levels
from onestream.postprocess.planes_gpu import PlanesTaker
from onestream.preprocess import Definition, Limits
from onestream.preprocess.backends.base import refuse_inexact
from onestream.preprocess.backends.cvcuda import as_tensor
from onestream.preprocess.cuda.device import Device, DeviceArray, Stream, open_device, usable
from onestream.preprocess.cuda.picture_kernels import prepare_resize
from onestream.preprocess.errors import BadImage, BadSample
from onestream.preprocess.video.common.color import ColorRule, Planes
from onestream.preprocess.video.common.orientation import Orientation
from onestream.preprocess.video.gpu.stream_gpu import GpuStreamDecoder
from onestream.preprocess.video.gpu.surfaces import Surface
from onestream.preprocess.video.streams.sampling import Sampling
from onestream.preprocess.video.streams.stream import StreamDecoder, StreamFormat, StreamFrame
from onestream.wire.tensor_names import PIXELS
from onestream.wire.video import Packet


class GpuStreams:
    """Decoders for any number of videos on the GPU of number ``gpu_index``, and what takes their frames from there.

    Each has a CUDA stream of its own. CUDA streams live as long as the process, so a video takes over that of one which
    has ended. ``works_on`` is the postprocessing by which frames are worked on, if any. ``log`` is told which videos
    the CPU decodes, and why. Raises ``BackendMissing`` or ``CannotCompile``
    where this machine or the definition cannot do without the CPU.
    """

    def __init__(
        self,
        definition: Definition,
        *,
        gpu_index: int = 0,
        works_on: AnyPostprocess | None = None,
        log: Callable[[str], None],
    ) -> None:
        self._device = open_device(gpu_index)
        self._definition, self._log = definition, log
        refuse_inexact(definition.pixels(), backend="video on a GPU", own_filter=False)
        prepare_resize(self._device)
        if works_on is not None:
            works_on.prepare_gpu(self._device)
        self._free: list[Stream] = []
        # Threads that gather frames: as many as ask the network.
        self._of_thread = threading.local()

    def decoder(
        self, format: StreamFormat, *, sampling: Sampling, color: ColorRule, limits: Limits, pictures: bool
    ) -> StreamDecoder:
        """A decoder for one video. Raises ``BadSample`` as ``StreamDecoder`` does."""
        stream = self._own_stream()
        try:
            decoder = _Supervised(
                self._definition,
                format,
                stream=stream,
                sampling=sampling,
                color=color,
                limits=limits,
                pictures=pictures,
                log=self._log,
            )
        except BaseException:
            self._free.append(stream)
            raise
        weakref.finalize(decoder, self._free.append, stream)
        return decoder

    def composer(self, background: Background, *, rule: ColorRule) -> GpuComposer:
        """A composer for one video."""
        stream = self._own_stream()
        composer = _SupervisedComposer(background, rule=rule, stream=stream)
        weakref.finalize(composer, self._free.append, stream)
        return composer

    def taker(self) -> PlanesTaker:
        """What brings the frames of one video to the host."""
        stream = self._own_stream()
        taker = _SupervisedTaker(stream)
        weakref.finalize(taker, self._free.append, stream)
        return taker

    def _own_stream(self) -> Stream:
        self._device.enter()
        return self._free.pop() if self._free else self._device.stream()

    def gather(self, pixels: Sequence[DeviceArray | npt.NDArray[np.uint8]]) -> DeviceArray:
        """Pixels of frames of one size as one array (n, height, width, channels), waited for.

        Each is (1, height, width, channels) on the GPU or (height, width, channels) on the host. One that is alone on
        the GPU is not copied.
        """
        self._device.enter()
        if len(pixels) == 1 and isinstance(pixels[0], DeviceArray):
            return pixels[0]
        with _supervised(self._device):
            return self._gathered(pixels)

    def _gathered(self, pixels: Sequence[DeviceArray | npt.NDArray[np.uint8]]) -> DeviceArray:
        if not hasattr(self._of_thread, "stream"):
            self._of_thread.stream = self._device.stream()
        stream: Stream = self._of_thread.stream
        batch = stream.allocate((len(pixels), *pixels[0].shape[-3:]), np.uint8)
        # Kept until they are copied.
        on_host = [np.ascontiguousarray(one) for one in pixels if isinstance(one, np.ndarray)]
        waiting = iter(on_host)
        for row, one in enumerate(pixels):
            if isinstance(one, DeviceArray):
                stream.copy(one, batch.rows(row, row + 1))
            else:
                stream.upload(next(waiting), batch.rows(row, row + 1))
        stream.sync()
        return batch

    def tensor(self, pixels: DeviceArray) -> Any:
        """Pixels (n, height, width, channels) as Triton's tensor; they must outlive its use."""
        self._device.enter()
        return pb_utils.Tensor.from_dlpack(PIXELS, as_tensor(pixels, "NHWC"))


class _Supervised(GpuStreamDecoder):
    """A decoder whose process ends where CUDA failed for good."""

    def feed(self, packet: Packet | None) -> list[StreamFrame]:
        before = self.on_cpu
        with _supervised(self._stream.device, BadSample, BadImage):
            frames = super().feed(packet)
        if self.on_cpu != before:
            _end_if_broken(self._stream.device)
        return frames


class _SupervisedComposer(GpuComposer):
    """A composer whose process ends where CUDA failed for good."""

    def compose(self, surface: Surface, orientation: Orientation, matte: Levels, out: Planes) -> None:
        with _supervised(self._stream.device, ValueError):
            super().compose(surface, orientation, matte, out)


class _SupervisedTaker(PlanesTaker):
    """A taker whose process ends where CUDA failed for good."""

    def take(self, surface: Surface, orientation: Orientation, out: Planes) -> None:
        with _supervised(self._stream.device, ValueError):
            super().take(surface, orientation, out)


@contextmanager
def _supervised(device: Device, *refusals: type[Exception]) -> Iterator[None]:
    """End the process where the block fails because CUDA failed for good; ``refusals`` are of other causes."""
    try:
        yield
    except refusals:
        raise
    except Exception:  # whatever a driver raises
        _end_if_broken(device)
        raise


def _end_if_broken(device: Device) -> None:
    """End the process where CUDA failed for good; the supervisor starts it again."""
    if not usable(device):
        os._exit(1)
