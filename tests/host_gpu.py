"""A GPU made of host memory, for testing what our code asks of one where there is none.

``HostDevice`` and ``HostStream`` have the interface of ``onestream.preprocess.cuda.device``; ``fake_cvcuda`` is a
module with the few names of CV-CUDA that the backend calls, each doing in NumPy what CV-CUDA documents: pixels,
regions, rows and constants are checked for real, the vendor's kernels are not. ``tests/gpu`` runs the same on a GPU.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import tempfile
import types
from collections.abc import Sequence
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx

from onestream.preprocess.cuda.device import DeviceArray
from onestream.serving.engine import DeviceEngine, DeviceSession, EngineTensor, OnnxRuntimeEngine
from onestream.serving.engine.served import outputs
from onestream.serving.pipeline import GpuOptions
from onestream.wire.tensor_names import PIXELS

Array = npt.NDArray[Any]


class HostDevice:
    """One GPU that always answers."""

    index = 0
    name = "host memory"
    compute_capability = (0, 0)

    def __init__(self) -> None:
        self.syncs = 0
        self.core = types.SimpleNamespace(sync=lambda: None)

    def enter(self) -> None:
        pass

    def stream(self) -> HostStream:
        return HostStream(self)

    def kernel(self, source: str, name: str) -> Any:
        return compiled_kernel(source, name)


class HostEvent:
    """The number of things done before it."""

    def __init__(self) -> None:
        self.at = 0

    def milliseconds_since(self, earlier: HostEvent) -> float:
        return float(self.at - earlier.at)


class HostStream:
    """Does at once what a stream would do later, and counts it in ``queued``."""

    def __init__(self, device: HostDevice) -> None:
        self.device, self.handle, self.queued = device, 7, 0

    def sync(self) -> None:
        self.device.syncs += 1

    def event(self) -> HostEvent:
        return HostEvent()

    def record(self, event: HostEvent) -> None:
        event.at = self.queued

    def allocate(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        # Poisoned, so that what nobody writes shows.
        memory = np.full(int(np.prod(shape)) * np.dtype(dtype).itemsize, 0xA5, np.uint8)
        return DeviceArray(memory.ctypes.data, tuple(shape), np.dtype(dtype), self.handle, memory)

    def pinned(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        return np.full(shape, 77, dtype)

    def fill(self, array: DeviceArray, value: int) -> None:
        self.queued += 1
        assert array.strides is None
        ctypes.memset(array.pointer, value, array.nbytes)

    def launch(self, kernel: Any, grid: tuple[int, int], block: tuple[int, int], arguments: Sequence[Any]) -> None:
        self.queued += 1
        sizes = [ctypes.c_uint(size) for size in (*grid, *block)]
        typed = [ctypes.c_int(int(one)) if isinstance(one, np.int32) else ctypes.c_void_p(one) for one in arguments]
        kernel(*sizes, *typed)

    def upload(self, source: Array, target: DeviceArray) -> None:
        assert source.flags.c_contiguous
        self._move(source.ctypes.data, target.pointer, source.nbytes, target.nbytes)

    def download(self, source: DeviceArray, target: Array) -> None:
        assert target.flags.c_contiguous
        self._move(source.pointer, target.ctypes.data, source.nbytes, target.nbytes)

    def copy(self, source: DeviceArray, target: DeviceArray) -> None:
        self._move(source.pointer, target.pointer, source.nbytes, target.nbytes)

    def _move(self, source: int, target: int, size: int, room: int) -> None:
        assert size <= room
        self.queued += 1
        ctypes.memmove(target, source, size)


@cache
def compiled_kernel(source: str, name: str) -> Any:
    """A CUDA kernel, compiled by the C++ compiler of this machine: a function that runs its threads in turn."""
    found = re.search(rf"{name}\((.*?)\)", source, re.DOTALL)
    assert found is not None
    names = ", ".join(re.split(r"\W+", parameter.strip())[-1] for parameter in found[1].split(","))
    text = f"""
    struct Dim {{ unsigned x, y; }};
    static thread_local Dim blockIdx, blockDim, threadIdx;
    #define __global__
    #define __device__
    {source}
    extern "C" void run(unsigned grid_x, unsigned grid_y, unsigned block_x, unsigned block_y, {found[1]}) {{
        blockDim = {{block_x, block_y}};
        for (blockIdx.y = 0; blockIdx.y < grid_y; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < grid_x; blockIdx.x++)
                for (threadIdx.y = 0; threadIdx.y < block_y; threadIdx.y++)
                    for (threadIdx.x = 0; threadIdx.x < block_x; threadIdx.x++)
                        {name}({names});
    }}
    """
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "kernel.so"
        command = ["c++", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(library)]
        subprocess.run(command, input=text, text=True, check=True)
        return ctypes.CDLL(str(library)).run


def view(array: DeviceArray) -> Array:
    """The content of a ``DeviceArray`` of a ``HostStream``."""

    class Memory:
        __array_interface__ = {
            key: value
            for key, value in array.__cuda_array_interface__.items()
            if key in ("shape", "typestr", "data", "strides")
        } | {"version": 3}
        owner = array.owner

    return np.asarray(Memory())


class HostEngine(DeviceEngine):
    """ONNX Runtime on the CPU behind the interface of engines on a GPU."""

    def __init__(self, model: bytes, *, max_batch_size: int) -> None:
        self._engine = OnnxRuntimeEngine(model, threads=1)
        self.max_batch_size = max_batch_size
        served = onnx.load_from_string(model)
        dims = [dim.dim_value for dim in served.graph.input[0].type.tensor_type.shape.dim[1:]]
        self.input = EngineTensor(PIXELS, "uint8", tuple(dims))
        self.outputs = tuple(EngineTensor(out.name, out.dtype, tuple(map(int, out.dims))) for out in outputs(served))

    def open(self, stream: HostStream) -> HostSession:
        return HostSession(self, stream)


class HostSession(DeviceSession):
    """Runs at once."""

    def __init__(self, engine: HostEngine, stream: HostStream) -> None:
        self._engine, self._stream = engine, stream
        rows = engine.max_batch_size
        self.input = stream.allocate((rows, *engine.input.dims), np.uint8)
        self.outputs = {out.name: stream.allocate((rows, *out.dims), out.dtype) for out in engine.outputs}

    def enqueue(self, batch: int) -> None:
        results = self._engine._engine.run(view(self.input)[:batch])
        for name, value in results.items():
            self._stream.upload(np.ascontiguousarray(value), self.outputs[name])


def install() -> None:
    """Put host memory in the place of a GPU in this process, before anything that uses one is imported."""
    sys.modules["cvcuda"] = fake_cvcuda()
    import onestream.preprocess.cuda.device
    import onestream.serving.engine
    from onestream.preprocess.backends import cvcuda as backend
    from onestream.preprocess.backends.nvimgcodec import ImageDecoder

    onestream.preprocess.cuda.device.open_device = lambda _index=0: HostDevice()
    onestream.serving.engine.open_engine = _open_engine
    backend.ImageDecoder = lambda _stream, *, options, threads: ImageDecoder(None, options=options, threads=threads)


def _open_engine(model: bytes, options: GpuOptions, *_device: Any, **_options: Any) -> HostEngine:
    return HostEngine(model, max_batch_size=options.max_batch_size)


class _Image:
    def __init__(self, pixels: Array) -> None:
        assert pixels.dtype == np.uint8
        assert pixels.ndim == 3
        self.pixels = pixels


class _Batch(list[_Image]):
    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._capacity = capacity

    def pushback(self, images: _Image | list[_Image]) -> None:
        self += images if isinstance(images, list) else [images]
        assert len(self) <= self._capacity


class _Tensor(NamedTuple):
    values: Array
    layout: str

    def cuda(self) -> Any:
        # NumPy 1 complains for ever about the name that Triton gives to a capsule it has used.
        import torch

        return torch.from_numpy(self.values)


class Format(Enum):
    RGB8 = 3
    U8 = 1


class Interp(Enum):
    NEAREST = 0
    LINEAR = 1


class ColorConversion(Enum):
    RGB2GRAY = 0


def fake_cvcuda() -> types.ModuleType:
    """A module to stand in ``sys.modules["cvcuda"]``."""
    module = types.ModuleType("cvcuda")
    for name, value in {
        "Format": Format,
        "Interp": Interp,
        "ColorConversion": ColorConversion,
        "ImageBatchVarShape": _Batch,
        "Image": _Image,
        "as_stream": int,
        "set_cache_limit_inbytes": lambda _size: None,
        "as_image": _as_image,
        "as_images": lambda buffers, format: _batch_of([_as_image(buffer, format) for buffer in buffers]),
        "as_tensor": lambda array, layout: _Tensor(view(array), layout),
        "cvtcolor": _cvtcolor,
        "hq_resize_into": _hq_resize_into,
        "crop_flip_normalize_reformat_into": _crop_flip_normalize_reformat_into,
    }.items():
        setattr(module, name, value)
    return module


def _as_image(buffer: Any, format: Format) -> _Image:
    pixels = view(buffer) if isinstance(buffer, DeviceArray) else np.asarray(buffer)
    assert pixels.shape[2] == format.value
    return _Image(pixels)


def _batch_of(images: list[_Image]) -> _Batch:
    batch = _Batch(len(images))
    batch.pushback(images)
    return batch


def _cvtcolor(batch: _Batch, code: ColorConversion, *, stream: int) -> _Batch:
    assert stream == 7
    assert code is ColorConversion.RGB2GRAY
    factors = np.array([0.299, 0.587, 0.114], np.float32)
    return _batch_of([_Image(np.rint(image.pixels @ factors).astype(np.uint8)[:, :, None]) for image in batch])


def _hq_resize_into(
    target: _Batch,
    source: _Batch,
    *,
    antialias: bool,
    roi: list[tuple[float, float, float, float]],
    interpolation: Interp,
    stream: int,
) -> None:
    assert stream == 7
    assert len(target) == len(source) == len(roi)
    for to, image, (top, left, bottom, right) in zip(target, source, roi, strict=True):
        rows = _weights(top, bottom, image.pixels.shape[0], to.pixels.shape[0], interpolation, antialias)
        columns = _weights(left, right, image.pixels.shape[1], to.pixels.shape[1], interpolation, antialias)
        moved = np.einsum("yh,hwc,xw->yxc", rows, image.pixels.astype(np.float32), columns, optimize=True)
        to.pixels[...] = np.clip(np.rint(moved), 0, 255).astype(np.uint8)


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


def _crop_flip_normalize_reformat_into(
    target: _Tensor,
    source: _Batch,
    rectangles: _Tensor,
    flips: _Tensor,
    base: _Tensor,
    scale: _Tensor,
    *,
    stream: int,
) -> None:
    assert stream == 7
    output, layout = target.values, target.layout
    assert len(output) == len(source)
    assert rectangles.values.shape[1:] == (1, 1, 4)
    for row, image in enumerate(source):
        x, y, width, height = rectangles.values[row, 0, 0]
        assert flips.values[row] not in (-1, 0, 1)
        cut = image.pixels[y : y + height, x : x + width].astype(np.float32)
        normalized = (cut - base.values[0, 0, 0]) * scale.values[0, 0, 0]
        output[row] = normalized.transpose(2, 0, 1) if layout == "NCHW" else normalized
