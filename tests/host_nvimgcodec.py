"""nvImageCodec with a GPU made of host memory: the CPU's decoder underneath, its pixels queued on a stream.

As its sources and binaries say: which JPEGs are damaged is known at once, pixels come on the caller's stream, but those
of the JPEG hardware when the call is made, whatever is queued; images that are given are used again where they are
large enough; memory of what it decodes is released in the order of the stream, that of ``Image.cuda`` at once.
"""

from __future__ import annotations

import math
import threading
import types
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt
from host_work import Allocation, HostGpuError, Place, Queue, interface_of, queue_of, wait_for_event
from nvidia import nvimgcodec as real

Array = npt.NDArray[Any]


class HostNvimgcodec(types.ModuleType):
    """The module, to stand in the place of the real one in ``preprocess.backends.nvimgcodec``.

    ``rejects`` says of which JPEGs (a ``CodeStream``) the GPU's decoder wants nothing. ``rounded`` changes the levels
    of what it decodes, int16, so that it can be told from the CPU's.
    """

    def __init__(self) -> None:
        super().__init__("nvimgcodec")
        self.rejects: Callable[[Any], bool] = lambda _source: False
        self.rounded: Callable[[Array], Array] = lambda levels: levels
        self.Decoder, self.Image = type("Decoder", (Decoder,), {"module": self}), HostImage

    def __getattr__(self, name: str) -> Any:
        return getattr(real, name)


class Decoder:
    """Decodes on the CPU; gives images on the GPU that it is made for."""

    module: HostNvimgcodec

    def __init__(self, *, device_id: int, max_num_cpu_threads: int, backends: list[Any], options: str) -> None:
        self._on_gpu = device_id != real.NVIMGCODEC_DEVICE_CPU_ONLY
        kinds = {backend.backend_kind for backend in backends}
        self._has_hardware = real.BackendKind.HW_GPU_ONLY in kinds
        self._busy = threading.Lock()
        if (real.BackendKind.CPU_ONLY in kinds) == self._on_gpu:
            raise HostGpuError(f"{kinds} do not fit to device {device_id}")
        if ":fancy_upsampling=1" not in options:
            raise HostGpuError("without fancy upsampling chroma differs visibly")
        self._decoder = real.Decoder(
            device_id=real.NVIMGCODEC_DEVICE_CPU_ONLY,
            max_num_cpu_threads=max_num_cpu_threads,
            backends=[real.Backend(real.BackendKind.CPU_ONLY)],
            options=":fancy_upsampling=1",
        )

    def decode(
        self, srcs: Sequence[Any], *, images: list[Any] | None = None, params: Any = None, cuda_stream: int = 0
    ) -> list[Any]:
        if not self._on_gpu:
            decoded = self._decoder.decode(srcs, params=params)
            return [None if image is None else HostImage(image) for image in decoded]
        if not self._busy.acquire(blocking=False):
            raise HostGpuError("a decoder takes one call at a time")
        with ExitStack() as until_done:
            until_done.callback(self._busy.release)
            return self._on_stream(srcs, images, params, queue_of(cuda_stream))

    def _on_stream(self, srcs: Sequence[Any], images: list[Any] | None, params: Any, stream: Queue) -> list[Any]:
        if images is not None and len(images) != len(srcs):
            raise HostGpuError(f"{len(images)} images to use again for {len(srcs)} files")
        pictures = [self._picture(source, params) for source in srcs]
        found: list[Any] = [None] * len(srcs)
        for at, picture in enumerate(pictures):
            if picture is not None:
                found[at] = images[at] if images else DeviceImage(stream)
                found[at].make_room(picture.shape)
                # nvJPEG waits for an event of each image.
                wait_for_event()
        for image, picture in zip(found, pictures, strict=True):
            if image is not None:
                write = image.overwrite if self._has_hardware else image.receive
                write(picture, by=stream, kernel=True)
        return found

    def _picture(self, source: Any, params: Any) -> npt.NDArray[np.uint8] | None:
        """What nvJPEG makes of a file."""
        if source.codec_name != "jpeg" or self.module.rejects(source):
            return None
        (picture,) = self._decoder.decode([source], params=params)
        if picture is None:
            return None
        return np.clip(self.module.rounded(np.asarray(picture).astype(np.int16)), 0, 255).astype(np.uint8)


class HostImage:
    """An image in memory of the host."""

    def __init__(self, image: Any) -> None:
        self._image, self.__array_interface__ = image, image.__array_interface__

    def cuda(self, synchronize: bool = True, device_id: int = -1, cuda_stream: int = 0) -> DeviceImage:
        assert device_id >= 0
        stream = queue_of(cuda_stream)
        image = DeviceImage(stream, ordered=False)
        pixels = np.asarray(self._image)
        image.make_room(pixels.shape)
        image.receive(pixels, by=stream)
        if synchronize:
            stream.wait()
        return image


class DeviceImage:
    """An image in memory of the GPU."""

    def __init__(self, stream: Queue, *, ordered: bool = True) -> None:
        self._stream, self._ordered = stream, ordered
        self._memory: Allocation | None = None
        self._shape: tuple[int, ...] = ()

    @property
    def capacity(self) -> int:
        return 0 if self._memory is None else self._memory.size

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        assert self._memory is not None
        return {**interface_of(self._memory.pointer, self._shape), "stream": self._stream.handle}

    def make_room(self, shape: tuple[int, ...]) -> None:
        """Memory that is too small is replaced, in the order of the stream."""
        self._shape, size = shape, math.prod(shape)
        self._is_new = self.capacity < size
        if self._is_new:
            self._memory = self._stream.allocate(size, ordered=self._ordered)

    def receive(self, pixels: npt.NDArray[np.uint8], *, by: Queue, kernel: bool = False) -> None:
        """Queue pixels of this shape."""
        assert self._memory is not None
        place = Place(self._memory.pointer, self._shape, pixels.dtype)
        by.put(lambda: np.copyto(place.values(), pixels), name="nvjpeg decode", kernel=kernel)

    def overwrite(self, pixels: npt.NDArray[np.uint8], *, by: Queue, kernel: bool) -> None:
        """Write pixels of this shape now, whatever is queued; to memory that is queued itself as ``receive``."""
        if self._is_new:
            self.receive(pixels, by=by, kernel=kernel)
        else:
            assert self._memory is not None
            np.copyto(Place(self._memory.pointer, self._shape, pixels.dtype).values(), pixels)
