"""A GPU made of host memory, for testing what our code asks of one where there is none.

``HostDevice`` and ``HostStream`` have the interface of ``onestream.preprocess.cuda.device``. They are lazy: work is
queued and runs at a wait (``host_work``), so that a missing wait, a buffer that is used again too early, memory that is
released too early and a wrong order of streams show. ``host_cvcuda`` and ``host_nvimgcodec`` stand in for the
libraries. Pixels, regions, rows and constants are checked for real, the vendors' kernels are not. ``tests/gpu`` runs
the same on a GPU.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from host_cvcuda import fake_cvcuda
from host_nvimgcodec import HostNvimgcodec
from host_threads import PRELUDE
from host_work import MEMORY, Gpu, HostBytes, HostGpuError, Pinned, Place, host_values

from onestream.preprocess.cuda.device import DeviceArray, Stream
from onestream.serving.engine import DeviceEngine, DeviceSession, FreeSession, OnnxRuntimeEngine
from onestream.serving.engine.served import tensors
from onestream.serving.pipeline import GpuOptions
from onestream.wire.tensor_names import PIXELS

__all__ = ["HostDevice", "HostEngine", "HostFreeSession", "HostNvimgcodec", "HostStream", "fake_cvcuda", "view"]

Array = npt.NDArray[Any]
KERNELS = Path(__file__).parents[1] / ".cache" / "kernels"
"""Compiled kernels by their text and compiler, for all processes and runs."""


class HostDevice:
    """One GPU that always answers, current in the thread that makes it. ``seed`` decides the order of streams."""

    name = "host memory"
    compute_capability = (0, 0)

    def __init__(self, index: int = 0, *, seed: int | None = None, gpu: Gpu | None = None) -> None:
        self.index, self.syncs = index, 0
        self.gpu = gpu or Gpu(seed)
        self.core = types.SimpleNamespace(sync=self.gpu.wait)
        self._entered = threading.local()
        self.enter()

    def enter(self) -> None:
        self._entered.here = True

    def stream(self) -> HostStream:
        self.check_thread()
        return HostStream(self)

    def kernel(self, source: str, name: str) -> Any:
        kernel = compiled_kernel(source, name)
        kernel.name, kernel.are_addresses = name, ["*" in parameter for parameter in parameters(source, name)]
        return kernel

    def check_thread(self) -> None:
        """Raise in a thread in which this GPU is not the current one."""
        if not hasattr(self._entered, "here"):
            raise HostGpuError("no GPU is current in this thread: Device.enter was not called")


class HostEvent:
    """When a stream passed it, by the GPU's clock, since it was recorded last."""

    def __init__(self) -> None:
        self.at: int | None = None
        self.records = 0

    @property
    def done(self) -> bool:
        return self.at is not None or not self.records

    def passed(self, record: int, at: int) -> None:
        """What the stream does; only the last record counts."""
        if record == self.records:
            self.at = at

    def milliseconds_since(self, earlier: HostEvent) -> float:
        if self.at is None or earlier.at is None:
            raise HostGpuError("the stream has not passed the event")
        return float(self.at - earlier.at)


class HostStream:
    """Queues what a stream would; it runs when somebody waits."""

    def __init__(self, device: HostDevice) -> None:
        self.device, self.queue = device, device.gpu.queue()
        self.handle = self.queue.handle

    def sync(self) -> None:
        self.device.check_thread()
        self.queue.wait()
        self.device.syncs += 1

    wait_unless_idle = Stream.wait_unless_idle

    def follow(self, other: HostStream) -> None:
        self.queue.wait_for(other.queue.mark())

    def event(self) -> HostEvent:
        return HostEvent()

    def record(self, event: HostEvent) -> None:
        event.at, event.records = None, event.records + 1
        record = event.records
        self._put(lambda: event.passed(record, self.device.gpu.tick()), "record")

    def allocate(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        self.device.check_thread()
        kind = np.dtype(dtype)
        memory = self.queue.allocate(math.prod(shape) * kind.itemsize)
        return DeviceArray(memory.pointer, tuple(shape), kind, self.handle, memory)

    def pinned(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        self.device.check_thread()
        return np.asarray(Pinned(tuple(shape), np.dtype(dtype)))

    def fill(self, array: DeviceArray, value: int) -> None:
        if array.strides is not None:
            raise HostGpuError("only contiguous memory can be filled")
        place = Place.of(array)
        self._put(lambda: place.values().view(np.uint8).fill(value), "fill")

    def launch(self, kernel: Any, grid: tuple[int, ...], block: tuple[int, int], arguments: Sequence[Any]) -> None:
        # cuda-core passes a whole number as an address of 8 bytes, and NumPy's int32 as 4; a GPU would not complain.
        if [not isinstance(one, np.int32) for one in arguments] != kernel.are_addresses:
            raise HostGpuError(f"{kernel.name} is not given what it declares: {[type(one) for one in arguments]}")
        layers = (1,) * (3 - len(grid))
        sizes = [ctypes.c_uint(size) for size in (*grid, *layers, *block)]
        typed = [ctypes.c_int(int(one)) if isinstance(one, np.int32) else ctypes.c_void_p(one) for one in arguments]
        addresses = [one for one in arguments if not isinstance(one, np.generic) and one]

        def run() -> None:
            for address in addresses:
                MEMORY.check(address)
            if kernel(*sizes, *typed):
                raise HostGpuError(f"{kernel.name}: some threads of a block ended while others wait for them")

        self._put(run, kernel.name, kernel=True)

    def upload(self, source: Array, target: DeviceArray) -> None:
        on_host, place = HostBytes(source), self._start_of(target, source.nbytes)
        self._put(lambda: np.copyto(place.values(), on_host.values()), "upload")

    def download(self, source: DeviceArray, target: Array) -> None:
        on_host = HostBytes(target)
        if not on_host.is_pinned:
            raise HostGpuError("a copy to memory of the host that is not pinned waits")
        if source.nbytes > target.nbytes:
            raise ValueError(f"{source.nbytes} bytes do not fit into {target.nbytes}")
        place, size = self._start_of(source, source.nbytes), source.nbytes
        self._put(lambda: np.copyto(on_host.values()[:size], place.values()), "download")

    def copy(self, source: DeviceArray, target: DeviceArray) -> None:
        there, place = self._start_of(source, source.nbytes), self._start_of(target, source.nbytes)
        self._put(lambda: np.copyto(place.values(), there.values()), "copy")

    def _put(self, run: Any, name: str, *, kernel: bool = False) -> None:
        self.device.check_thread()
        self.queue.put(run, name=name, kernel=kernel)

    @staticmethod
    def _start_of(array: DeviceArray, size: int) -> Place:
        """The first bytes of a contiguous array."""
        if array.strides is not None:
            raise HostGpuError("a copy needs contiguous memory of the GPU")
        if size > array.nbytes:
            raise ValueError(f"{size} bytes do not fit into {array.nbytes}")
        return Place(array.pointer, (size,), np.dtype(np.uint8))


@cache
def parameters(source: str, name: str) -> list[str]:
    """What a kernel declares."""
    found = re.search(rf"{name}\((.*?)\)", source, re.DOTALL)
    assert found is not None
    return found[1].split(",")


@cache
def compiled_kernel(source: str, name: str) -> Any:
    """A CUDA kernel, compiled by the C++ compiler of this machine: see ``host_threads``."""
    declared = parameters(source, name)
    names = ", ".join(re.split(r"\W+", parameter.strip())[-1] for parameter in declared)
    text = f"""
    {PRELUDE}
    {source}
    extern "C" int run(unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                       {",".join(declared)}) {{
        blockDim = {{block_x, block_y, 1}};
        auto thread = [&] {{ {name}({names}); }};
        for (blockIdx.z = 0; blockIdx.z < grid_z; blockIdx.z++)
            for (blockIdx.y = 0; blockIdx.y < grid_y; blockIdx.y++)
                for (blockIdx.x = 0; blockIdx.x < grid_x; blockIdx.x++)
                    if (!{"run_together" if "__syncthreads" in source else "run_in_turn"}(thread))
                        return 1;
        return 0;
    }}
    """
    command = [
        "c++",
        "-O2",
        "-ffp-contract=off",
        "-Wall",
        "-Werror",
        "-Wno-unknown-pragmas",
        "-shared",
        "-fPIC",
        "-x",
        "c++",
        "-",
    ]
    compiler = Path(shutil.which("c++") or "c++").resolve()
    key = repr((command, str(compiler), compiler.stat().st_mtime_ns if compiler.exists() else 0)) + text
    library = KERNELS / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.so"
    if not library.exists():
        KERNELS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=KERNELS) as folder:
            made = Path(folder) / "kernel.so"
            subprocess.run([*command, "-o", str(made)], input=text, text=True, check=True)
            os.replace(made, library)
    return ctypes.CDLL(str(library)).run


def view(array: DeviceArray) -> Array:
    """The content of a ``DeviceArray`` of a ``HostStream`` as it is now: what is queued was not done yet."""
    return host_values(Place.of(array), array.owner)


class HostEngine(DeviceEngine):
    """ONNX Runtime on the CPU behind the interface of engines on a GPU."""

    def __init__(self, model: bytes, *, max_batch_size: int) -> None:
        self._engine = OnnxRuntimeEngine(model, threads=1)
        self.max_batch_size = max_batch_size
        self.inputs, self.outputs = tensors(onnx.load_from_string(model))

    def open(self, stream: HostStream) -> HostSession:
        return HostSession(self, stream)


def put_network(stream: HostStream, network: Any, given: dict[str, DeviceArray], found: dict[str, DeviceArray]) -> None:
    """Queue a network as one kernel, which writes into the arrays of its outputs."""
    inputs, outputs = ({name: Place.of(array) for name, array in arrays.items()} for arrays in (given, found))

    def run() -> None:
        for name, value in network({name: place.values() for name, place in inputs.items()}).items():
            outputs[name].values()[...] = value

    stream.queue.put(run, name="network", kernel=True)


class HostSession(DeviceSession):
    """Runs as one kernel."""

    def __init__(self, engine: HostEngine, stream: HostStream) -> None:
        self._engine, self._stream = engine, stream
        rows = engine.max_batch_size
        self.inputs = {one.name: stream.allocate((rows, *one.dims), one.dtype) for one in engine.inputs}
        self.outputs = {out.name: stream.allocate((rows, *out.dims), out.dtype) for out in engine.outputs}

    def enqueue(self, batch: int) -> None:
        given, found = (
            {name: array.first(batch) for name, array in arrays.items()} for arrays in (self.inputs, self.outputs)
        )
        put_network(self._stream, self._engine._engine.run, given, found)


class HostFreeSession(FreeSession):
    """ONNX Runtime on the CPU, as one kernel of the stream; what sizes its outputs have it tries with zeros."""

    def __init__(self, model: bytes, stream: HostStream) -> None:
        self._engine, self._stream = OnnxRuntimeEngine(model, threads=1), stream
        self._known: dict[tuple[int, ...], dict[str, Array]] = {}
        self.batches: list[tuple[int, ...]] = []

    def enqueue(self, pixels: DeviceArray) -> dict[str, DeviceArray]:
        self.batches.append(pixels.shape)
        if pixels.strides is not None:
            raise HostGpuError("a network takes contiguous pixels only")
        if pixels.shape not in self._known:
            self._known[pixels.shape] = self._engine.run_together({PIXELS: np.zeros(pixels.shape, np.uint8)})
        found = {
            name: self._stream.allocate(value.shape, value.dtype) for name, value in self._known[pixels.shape].items()
        }
        put_network(self._stream, self._engine.run_together, {PIXELS: pixels}, found)
        return found


def install() -> None:
    """Put host memory in the place of a GPU in this process, before anything that uses one is imported."""
    sys.modules["cvcuda"] = fake_cvcuda()
    import onestream.preprocess.cuda.device
    import onestream.serving.engine
    from onestream.preprocess.backends import nvimgcodec

    gpu = Gpu()
    onestream.preprocess.cuda.device.open_device = lambda index=0: HostDevice(index, gpu=gpu)
    onestream.preprocess.cuda.device.Stream = HostStream
    onestream.serving.engine.open_engine = _open_engine
    onestream.serving.engine.open_free_session = _open_free_session
    nvimgcodec.nvimgcodec = HostNvimgcodec()


def _open_engine(model: bytes, options: GpuOptions, *_device: Any, **_options: Any) -> HostEngine:
    return HostEngine(model, max_batch_size=options.max_batch_size)


def _open_free_session(model: Path | bytes, _options: GpuOptions, stream: HostStream, **_rest: Any) -> HostFreeSession:
    return HostFreeSession(model if isinstance(model, bytes) else model.read_bytes(), stream)
