"""A GPU's memory, streams and events, in the few forms that backends and engines share.

Importing this needs neither a driver nor the ``gpu`` extra; calling ``open_device`` needs both. Everything here is
queued on the stream that it is given, and nothing waits but ``Stream.sync``, which is counted (``Device.syncs``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from onestream.preprocess.errors import BackendMissing, CannotCompile
from onestream.wire.install import install_command
from onestream.wire.plain_text import first_line

if TYPE_CHECKING:
    import cuda.core

INSTALL_GPU = f"{install_command('gpu')}, which needs a driver of series 580 or newer"
_SIGNS_OF_A_DRIVER = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")


def driver_visible() -> bool:
    """Whether an NVIDIA kernel driver offers a device to this process, also inside WSL."""
    return any(Path(sign).exists() for sign in _SIGNS_OF_A_DRIVER)


class HasCudaArray(Protocol):
    """What offers its memory on a GPU by the CUDA Array Interface."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Shape, type, address, strides."""
        ...


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """Memory on a GPU, seen as an array. Its owner keeps it alive.

    ``pointer`` is the device address; ``strides`` are in bytes, None where the array is C-contiguous; ``stream`` is the
    handle of the stream on which its content is ordered. Other libraries read it by the CUDA Array Interface, version 3
    (numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html), without a copy.
    """

    pointer: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    stream: int
    owner: object = field(repr=False, compare=False)
    strides: tuple[int, ...] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the values, gaps between rows left out."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The interface by which CV-CUDA, CuPy, PyTorch and others read the array."""
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "strides": self.strides,
            "version": 3,
            "stream": self.stream,
        }

    @classmethod
    def sharing(cls, other: HasCudaArray, stream: int) -> DeviceArray:
        """The array of another library, which keeps it alive, ordered on the stream of a handle."""
        found = other.__cuda_array_interface__
        strides = found["strides"]
        return cls(
            found["data"][0], tuple(found["shape"]), np.dtype(found["typestr"]), stream, other,
            None if strides is None else tuple(strides),
        )  # fmt: skip

    def rows(self, first: int, end: int) -> DeviceArray:
        """Entries [first, end) of the first axis. Raises ``ValueError`` where there are fewer."""
        if not 0 <= first <= end <= self.shape[0]:
            raise ValueError(f"got rows {first} to {end} of {self.shape[0]}")
        pointer = self.pointer + first * self.byte_strides[0]
        return DeviceArray(pointer, (end - first, *self.shape[1:]), self.dtype, self.stream, self.owner, self.strides)

    def first(self, count: int) -> DeviceArray:
        """The first ``count`` entries of the first axis. Raises ``ValueError`` where there are fewer."""
        return self.rows(0, count)

    def at(self, index: int) -> DeviceArray:
        """Entry ``index`` of the first axis. Raises ``IndexError`` outside."""
        if not 0 <= index < self.shape[0]:
            raise IndexError(f"index {index} of {self.shape[0]} entries")
        strides = self.byte_strides
        kept = None if self.strides is None else strides[1:]
        return DeviceArray(self.pointer + index * strides[0], self.shape[1:], self.dtype, self.stream, self.owner, kept)

    def window(self, top: int, left: int, height: int, width: int) -> DeviceArray:
        """A rectangle of an image (height, width, channels). Raises ``ValueError`` where it is not inside."""
        rows, columns, channels = self.shape
        if not (0 <= top <= top + height <= rows and 0 <= left <= left + width <= columns):
            raise ValueError(f"{height}x{width} at ({top}, {left}) is not inside an image of {rows}x{columns}")
        by_row, by_column, by_channel = self.byte_strides
        return DeviceArray(
            self.pointer + top * by_row + left * by_column,
            (height, width, channels),
            self.dtype,
            self.stream,
            self.owner,
            (by_row, by_column, by_channel),
        )

    @property
    def byte_strides(self) -> tuple[int, ...]:
        """The strides, computed where the array is contiguous."""
        if self.strides is not None:
            return self.strides
        inner = [self.dtype.itemsize]
        for side in reversed(self.shape[1:]):
            inner.append(inner[-1] * side)
        return tuple(reversed(inner))


class Event:
    """A point on a stream."""

    def __init__(self, event: cuda.core.Event) -> None:
        self._event = event

    @property
    def done(self) -> bool:
        """Whether the stream has passed it, or it was never recorded. Does not wait."""
        return self._event.is_done

    def milliseconds_since(self, earlier: Event) -> float:
        """GPU time between two recorded points that the stream has passed."""
        return self._event - earlier._event


class Stream:
    """One CUDA stream with its own memory, for one thread at a time, which enters the device (``Device.enter``)."""

    def __init__(self, device: Device, stream: cuda.core.Stream) -> None:
        self.device = device
        self._stream = stream
        self.handle = int(stream.handle)

    def sync(self) -> None:
        """Wait until everything queued so far is done. This is the only place where our code waits for a GPU."""
        self._stream.sync()
        self.device.syncs += 1

    def wait_unless_idle(self) -> None:
        """Wait as ``sync`` does, where anything that was queued is not done yet."""
        here = self.event()
        self.record(here)
        if not here.done:
            self.sync()

    def follow(self, other: Stream) -> None:
        """Let what is queued from now on come after everything that another stream was given so far."""
        self._stream.wait(other._stream)

    def record(self, event: Event) -> None:
        """Set ``event`` to this point of the stream."""
        self._stream.record(event._event)

    def event(self) -> Event:
        """A new event that keeps time."""
        from cuda.core import EventOptions

        return Event(self.device.core.create_event(options=EventOptions(timing_enabled=True)))

    def allocate(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        """Uninitialized memory on the GPU."""
        kind = np.dtype(dtype)
        buffer = self.device.core.allocate(max(1, math.prod(shape) * kind.itemsize), stream=self._stream)
        return DeviceArray(int(buffer.handle), shape, kind, self.handle, buffer)

    def pinned(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Uninitialized page-locked memory on the host, which a GPU can copy to and from without waiting."""
        from cuda.core import LegacyPinnedMemoryResource

        kind = np.dtype(dtype)
        size = max(1, math.prod(shape) * kind.itemsize)
        memory = _PinnedMemory(LegacyPinnedMemoryResource().allocate(size, stream=self._stream), shape, kind)
        array: npt.NDArray[Any] = np.asarray(memory)
        return array

    def fill(self, array: DeviceArray, value: int) -> None:
        """Queue setting every byte of a contiguous array to ``value``, 0 to 255."""
        from cuda.core import Buffer

        if array.nbytes:
            Buffer.from_handle(array.pointer, array.nbytes, owner=array.owner).fill(value, stream=self._stream)

    def launch(
        self, kernel: Kernel, grid: tuple[int, ...], block: tuple[int, int], arguments: Sequence[int | np.generic]
    ) -> None:
        """Queue a kernel on ``grid`` x ``block`` threads, both (across, down); a grid may have layers, (…, layers).

        Of ``arguments``, addresses are plain numbers; others have the type that the kernel declares, as NumPy scalars.
        """
        from cuda.core import LaunchConfig, launch

        launch(self._stream, LaunchConfig(grid=grid, block=block), kernel._kernel, *arguments)

    def upload(self, source: npt.NDArray[Any], target: DeviceArray) -> None:
        """Queue a copy of a contiguous host array, pinned where it shall not wait, to the start of a contiguous array.

        Raises ``ValueError`` where it does not fit. The source must stay unchanged until the stream has passed.
        """
        _copy(source.ctypes.data, target.pointer, source.nbytes, room=target.nbytes, stream=self._stream)

    def download(self, source: DeviceArray, target: npt.NDArray[Any]) -> None:
        """Queue a copy of a contiguous array to the start of a pinned host array, which holds it after ``sync``.

        Raises ``ValueError`` where it does not fit.
        """
        _copy(source.pointer, target.ctypes.data, source.nbytes, room=target.nbytes, stream=self._stream)

    def copy(self, source: DeviceArray, target: DeviceArray) -> None:
        """Queue a copy between contiguous arrays on the GPU. Raises ``ValueError`` where it does not fit."""
        _copy(source.pointer, target.pointer, source.nbytes, room=target.nbytes, stream=self._stream)


class Kernel:
    """A compiled function that runs on a GPU."""

    def __init__(self, kernel: cuda.core.Kernel) -> None:
        self._kernel = kernel


class _PinnedMemory:
    """Page-locked memory for NumPy, which keeps it alive with its array."""

    def __init__(self, buffer: cuda.core.Buffer, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._buffer = buffer
        self.__array_interface__ = {
            "shape": shape,
            "typestr": dtype.str,
            "data": (int(buffer.handle), False),
            "version": 3,
        }


_STREAMS: list[cuda.core.Stream] = []
"""Every stream lives as long as the process: CV-CUDA and nvImageCodec keep handles of it in their caches."""


def _copy(source: int, target: int, size: int, *, room: int, stream: cuda.core.Stream) -> None:
    from cuda.core import Buffer

    if size > room:
        raise ValueError(f"{size} bytes do not fit into {room}")
    if size:
        Buffer.from_handle(source, size).copy_to(Buffer.from_handle(target, size), stream=stream)


class GpuKind(NamedTuple):
    """What GPUs share that can run each other's TensorRT plans: compute capability, such as (9, 0), and name."""

    compute_capability: tuple[int, int]
    name: str


class Device:
    """One GPU. ``syncs`` counts how often our own code waited for it."""

    def __init__(self, core: cuda.core.Device) -> None:
        self.core = core
        self.index = core.device_id
        self.syncs = 0
        self._programs: dict[str, cuda.core.ObjectCode] = {}
        self._kernels: dict[tuple[str, str], Kernel] = {}

    @property
    def compute_capability(self) -> tuple[int, int]:
        """Such as (9, 0)."""
        found = self.core.compute_capability
        return found.major, found.minor

    @property
    def name(self) -> str:
        """Such as *NVIDIA H100 80GB HBM3*."""
        return self.core.name

    @property
    def kind(self) -> GpuKind:
        """What it shares with others of its kind."""
        return GpuKind(self.compute_capability, self.name)

    def enter(self) -> None:
        """Make this GPU the current one of the calling thread, which every thread that uses it must do."""
        self.core.set_current()

    def kernel(self, source: str, name: str) -> Kernel:
        """A kernel of a CUDA C++ source, which is compiled for this GPU when the first of its kernels is asked for.

        Raises ``CannotCompile`` where NVRTC is missing or refuses it.
        """
        if (source, name) not in self._kernels:
            try:
                self._kernels[source, name] = Kernel(self._program(source).get_kernel(name))
            except Exception as error:  # the bindings' own errors, and those of a library that cannot be loaded
                raise CannotCompile(f"the kernel {name} cannot be compiled: {first_line(error)}") from None
        return self._kernels[source, name]

    def _program(self, source: str) -> cuda.core.ObjectCode:
        if source not in self._programs:
            from cuda.core import Program, ProgramOptions

            major, minor = self.compute_capability
            options = ProgramOptions(arch=f"sm_{major}{minor}")
            self._programs[source] = Program(source, "c++", options).compile("cubin")
        return self._programs[source]

    def stream(self) -> Stream:
        """A new stream that does not wait for the default one."""
        from cuda.core import StreamOptions

        stream = self.core.create_stream(options=StreamOptions(nonblocking=True))
        _STREAMS.append(stream)
        return Stream(self, stream)


def open_device(index: int = 0) -> Device:
    """Open the GPU of this number among those that are visible, from 0 on, and make it current in this thread.

    Raises ``BackendMissing`` where the ``gpu`` extra is not installed, ``CannotCompile`` where there is no such GPU.
    """
    try:
        from cuda.core import Device as CoreDevice
    except ImportError as error:
        raise BackendMissing(f"running on a GPU needs cuda-core: {INSTALL_GPU}") from error
    try:
        core = CoreDevice(index)
        core.set_current()
    except Exception as error:  # without a driver the bindings raise RuntimeError, without a device CUDAError
        raise CannotCompile(f"there is no usable NVIDIA GPU {index} here: {first_line(error)}") from None
    return Device(core)


def usable(device: Device) -> bool:
    """Whether a GPU still answers in this process: a CUDA context does not recover from an error."""
    try:
        device.core.sync()
    except Exception:  # the bindings' own errors, and any other, mean the same here
        return False
    return True


def gpu_count() -> int:
    """How many GPUs this process sees. Raises as ``open_device`` does where it cannot use the first."""
    return len(open_device().core.get_all_devices())
