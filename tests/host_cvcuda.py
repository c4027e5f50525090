"""CV-CUDA in host memory: the few names that our code calls, each doing in NumPy what CV-CUDA documents.

Operators take a stream and run when it is waited for. They hold the batches and tensors that they are given until then,
as CV-CUDA does; a batch that is cleared meanwhile holds its images no more.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from enum import Enum
from functools import wraps
from typing import Any

import numpy as np
import numpy.typing as npt
from host_work import HostGpuError, Place, Queue, host_values, interface_of, queue_of, wait_for_event

Array = npt.NDArray[Any]


class Format(Enum):
    RGB8 = "RGB8"
    BGR8 = "BGR8"
    U8 = "U8"

    @property
    def channels(self) -> int:
        return 1 if self is Format.U8 else 3


class Interp(Enum):
    NEAREST = 0
    LINEAR = 1


class ColorConversion(Enum):
    RGB2GRAY = 0
    RGB2BGR = 1


class Image:
    """Keeps what it was made of."""

    def __init__(self, buffer: Any, format: Format) -> None:
        self.place, self.format, self._buffer = Place.of(buffer), format, buffer
        *_, channels = self.place.shape
        if len(self.place.shape) != 3 or channels != format.channels or self.place.dtype != np.uint8:
            raise HostGpuError(f"{self.place.dtype} {self.place.shape} is not an image in {format.name}")
        if self.place.strides is not None and self.place.strides[1:] != (channels, 1):
            raise HostGpuError("the pixels of a row must follow each other without gaps")


class ImageBatchVarShape(list[Image]):
    """Takes no more than its capacity; its list lies on the GPU, so a change of it waits for an event."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity

    def pushback(self, images: Image | list[Image]) -> None:
        wait_for_event()
        self += images if isinstance(images, list) else [images]
        if len(self) > self.capacity:
            raise HostGpuError(f"{len(self)} images are pushed into a batch with capacity {self.capacity}")


class Tensor:
    """Keeps what it was made of."""

    def __init__(self, buffer: Any, layout: str) -> None:
        self.place, self.layout, self._buffer = Place.of(buffer), layout, buffer
        if len(self.place.shape) != len(layout):
            raise HostGpuError(f"a tensor {self.place.shape} cannot be {layout}")

    def cuda(self) -> Any:
        # NumPy 1 complains for ever about the name that Triton gives to a capsule it has used.
        import torch

        return torch.from_numpy(host_values(self.place, self._buffer))


def as_stream(handle: int) -> Queue:
    return queue_of(handle)


def as_images(buffers: list[Any], format: Format) -> ImageBatchVarShape:
    batch = ImageBatchVarShape(len(buffers))
    batch.extend(Image(buffer, format) for buffer in buffers)
    wait_for_event()
    return batch


def on_stream(operator: Callable[..., Callable[[], None]]) -> Callable[..., None]:
    """An operator that checks its arguments at once and returns what its stream does later.

    The arguments are held until then.
    """

    @wraps(operator)
    def enqueue(*arguments: Any, stream: Queue | None = None, **options: Any) -> None:
        if not isinstance(stream, Queue):
            raise HostGpuError(f"{operator.__name__} without a stream")
        work = operator(*arguments, **options)
        held = arguments, options

        def run(_held: Any = held) -> None:
            work()

        stream.put(run, name=operator.__name__, kernel=True)

    return enqueue


def fake_cvcuda() -> types.ModuleType:
    """A module to stand in ``sys.modules["cvcuda"]``."""
    module: Any = types.ModuleType("cvcuda")
    own = (Format, Interp, ColorConversion, ImageBatchVarShape, Image, as_stream, as_images, cvtcolor, hq_resize_into)
    vars(module).update({one.__name__: one for one in own}, as_image=Image, as_tensor=Tensor)
    module.set_cache_limit_inbytes = lambda _size: None
    return module


def cvtcolor(batch: ImageBatchVarShape, code: ColorConversion, *, stream: Queue | None = None) -> ImageBatchVarShape:
    if not isinstance(stream, Queue):
        raise HostGpuError("cvtcolor without a stream")
    if {image.format for image in batch} - {Format.RGB8}:
        raise HostGpuError(f"{code.name} of {[image.format.name for image in batch]}")
    format = {ColorConversion.RGB2GRAY: Format.U8, ColorConversion.RGB2BGR: Format.BGR8}[code]
    converted = ImageBatchVarShape(len(batch))
    for image in batch:
        converted.pushback(Image(_Allocated(stream, (*image.place.shape[:2], format.channels)), format))
    _convert(batch, converted, format, stream=stream)
    return converted


class _Allocated:
    """An image that CV-CUDA allocates."""

    def __init__(self, stream: Queue, shape: tuple[int, ...]) -> None:
        self._memory = stream.allocate(int(np.prod(shape)))
        self.__cuda_array_interface__ = interface_of(self._memory.pointer, shape)


@on_stream
def _convert(source: ImageBatchVarShape, target: ImageBatchVarShape, format: Format) -> Callable[[], None]:
    factors = np.array([0.299, 0.587, 0.114], np.float32)
    pairs = [(to.place, image.place) for to, image in zip(target, source, strict=True)]

    def run() -> None:
        for to, image in pairs:
            rgb = image.values()
            to.values()[...] = np.rint(rgb @ factors)[:, :, None] if format is Format.U8 else rgb[:, :, ::-1]

    return run


@on_stream
def hq_resize_into(
    target: ImageBatchVarShape,
    source: ImageBatchVarShape,
    *,
    antialias: bool,
    roi: list[tuple[float, float, float, float]],
    interpolation: Interp,
) -> Callable[[], None]:
    if not 0 < len(target) == len(source) == len(roi):
        raise HostGpuError(f"{len(source)} images and {len(roi)} regions for {len(target)} targets")
    if {image.format for image in source} != {image.format for image in target}:
        raise HostGpuError("the formats of a batch and its targets must agree")
    wait_for_event()
    pairs = [(to.place, image.place) for to, image in zip(target, source, strict=True)]

    def run() -> None:
        for (to, image), (top, left, bottom, right) in zip(pairs, roi, strict=True):
            pixels = image.values().astype(np.float32)
            rows = _weights(top, bottom, image.shape[0], to.shape[0], interpolation, antialias)
            columns = _weights(left, right, image.shape[1], to.shape[1], interpolation, antialias)
            # Each channel by itself: a sum of floats must not depend on which of the channels it is.
            channels = [np.ascontiguousarray(pixels[:, :, channel]) for channel in range(pixels.shape[2])]
            moved = np.stack([rows @ channel @ columns.T for channel in channels], axis=2)
            to.values()[...] = np.clip(np.rint(moved), 0, 255).astype(np.uint8)

    return run


def _weights(low: float, high: float, side: int, out: int, interpolation: Interp, antialias: bool) -> Array:
    """(out, side): the resampling filter of one axis; pixels beyond the border repeat it (OpHQResize.cu)."""
    step = (high - low) / out
    centres = low + (np.arange(out) + 0.5) * step
    weights = np.zeros((out, side), np.float32)
    if interpolation is Interp.NEAREST:
        weights[np.arange(out), np.clip(np.floor(centres).astype(int), 0, side - 1)] = 1
        return weights
    radius = max(step, 1.0) if antialias else 1.0
    for row, centre in enumerate(centres):
        pixels = np.arange(int(np.floor(centre - radius - 0.5)), int(np.ceil(centre + radius + 0.5)) + 1)
        factors = np.clip(1 - np.abs(pixels + 0.5 - centre) / radius, 0, None)
        np.add.at(weights[row], np.clip(pixels, 0, side - 1), factors / factors.sum())
    return weights
