"""The queues and the memory of the GPU made of host memory: nothing runs before somebody waits.

Work is queued and runs at a wait, in the order of its own queue; which queue goes on next a seed decides. Memory is
poisoned when it begins and when it is released. What a GPU leaves undefined, such as reading memory that was released,
raises ``HostGpuError`` here, at the wait, and at every wait after it.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

SEED = "ONESTREAM_HOST_GPU_SEED"
"""Environment variable: which order the queues of this process take, 0 by default."""
FRESH, RELEASED = 0xA5, 0xDD
"""What memory holds that nobody wrote, and that nobody may read any more."""
_QUARANTINE_BYTES = 256 * 1024 * 1024
"""Released memory of which is known that it was released."""


class HostGpuError(Exception):
    """A GPU would refuse this, or leave undefined what happens."""


@dataclass(frozen=True)
class Activity:
    """Something that CUPTI would record: a *kernel* that ran, or a host's wait for a *stream*, *event* or *context*."""

    kind: str
    name: str
    stream: int
    start_ns: int
    end_ns: int


LISTENERS: list[Callable[[Activity], None]] = []
"""Called for every activity of every GPU of this process."""


class _Memory:
    """All memory of all GPUs, by address."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._starts: list[int] = []
        self._blocks: list[tuple[Array, bool]] = []
        self._quarantine: deque[int] = deque()
        self._quarantined_bytes = 0

    def add(self, size: int) -> Array:
        memory = np.full(max(1, size), FRESH, np.uint8)
        with self._lock:
            place = bisect_right(self._starts, memory.ctypes.data)
            self._starts.insert(place, memory.ctypes.data)
            self._blocks.insert(place, (memory, True))
        return memory

    def release(self, memory: Array) -> None:
        memory[:] = RELEASED
        start = memory.ctypes.data
        with self._lock:
            self._blocks[bisect_right(self._starts, start) - 1] = memory, False
            self._quarantine.append(start)
            self._quarantined_bytes += memory.size
            while self._quarantined_bytes > _QUARANTINE_BYTES:
                place = bisect_right(self._starts, self._quarantine.popleft()) - 1
                self._quarantined_bytes -= self._blocks[place][0].size
                del self._starts[place], self._blocks[place]

    @property
    def alive_bytes(self) -> int:
        """What was not released."""
        with self._lock:
            return sum(memory.size for memory, alive in self._blocks if alive)

    def check(self, pointer: int, size: int = 1) -> None:
        """Raise unless the bytes are memory of a GPU that was not released."""
        with self._lock:
            place = bisect_right(self._starts, pointer) - 1
            memory, alive = self._blocks[place] if place >= 0 else (None, False)
            if memory is None or pointer + size > memory.ctypes.data + memory.size:
                raise HostGpuError(f"{size} bytes at {pointer:#x} are not memory of the GPU")
            if not alive:
                raise HostGpuError(f"{size} bytes at {pointer:#x} were released")


MEMORY = _Memory()


@dataclass(frozen=True)
class Place:
    """Where an array lies on a GPU. Holds no memory: what it shows may be released."""

    pointer: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...] | None = None

    @classmethod
    def of(cls, array: Any) -> Place:
        """From an object with a CUDA Array Interface. Raises where it has none, or lies elsewhere."""
        interface = getattr(array, "__cuda_array_interface__", None)
        if interface is None:
            raise HostGpuError(f"{type(array).__name__} has no CUDA Array Interface: it is not on the GPU")
        pointer, shape = interface["data"][0], tuple(interface["shape"])
        found = cls(pointer, shape, np.dtype(interface["typestr"]), interface["strides"])
        MEMORY.check(found.pointer)
        return found

    @property
    def nbytes(self) -> int:
        """From the first byte to the last, gaps included; 0 for an empty array."""
        if 0 in self.shape:
            return 0
        if self.strides is None:
            return math.prod(self.shape) * self.dtype.itemsize
        return sum((side - 1) * step for side, step in zip(self.shape, self.strides, strict=True)) + self.dtype.itemsize

    def values(self) -> Array:
        """The content, for work that runs. Raises where the memory was released."""
        MEMORY.check(self.pointer, self.nbytes)
        return host_values(self)


def host_values(place: Place, owner: object = None) -> Array:
    """An array over the memory, which keeps ``owner`` alive."""

    interface = interface_of(place.pointer, place.shape, place.dtype.str, place.strides)
    return np.asarray(SimpleNamespace(__array_interface__=interface, owner=owner))


def interface_of(
    pointer: int, shape: tuple[int, ...], typestr: str = "|u1", strides: tuple[int, ...] | None = None
) -> dict[str, Any]:
    """What an object says of its memory, of the host or of a GPU, to those who take its array."""
    return {"shape": shape, "typestr": typestr, "data": (pointer, False), "strides": strides, "version": 3}


class Allocation:
    """Memory of a GPU, released when nobody holds this object any more."""

    def __init__(self, memory: Array, release: Callable[[Array], None]) -> None:
        self.pointer, self.size = memory.ctypes.data, memory.size
        weakref.finalize(self, release, memory).atexit = False


class Mark:
    """A point of a queue, which passes it once."""

    def __init__(self) -> None:
        self.at: int | None = None


@dataclass
class _Work:
    run: Callable[[], None]
    name: str
    kernel: bool
    after: Mark | None = None


class Gpu:
    """The queues of one GPU."""

    def __init__(self, seed: int | None = None) -> None:
        self._lock = threading.RLock()
        self._random = Random(int(os.environ.get(SEED, "0")) if seed is None else seed)
        self._queues: list[Queue] = []
        self._ticks = itertools.count(1)
        self._error: Exception | None = None

    def queue(self) -> Queue:
        """A new queue, which lives as long as the GPU."""
        found = Queue(self)
        with self._lock:
            self._queues.append(found)
        return found

    def tick(self) -> int:
        """The GPU's clock: the number of things that ran."""
        return next(self._ticks)

    def wait(self) -> None:
        """Run everything that is queued."""
        self.run_until(lambda: not any(queue.pending for queue in self._queues))

    def run_until(self, done: Callable[[], bool]) -> None:
        """Run what is queued, in an order that the seed decides, until ``done``."""
        with self._lock:
            while self._error is None and not done():
                ready = [queue for queue in self._queues if queue.is_ready]
                if not ready:
                    raise HostGpuError("every queue waits for another")
                try:
                    self._random.choice(ready).run_next()
                except Exception as error:
                    self._error = error
            if self._error is not None:
                raise HostGpuError(f"the GPU failed: {self._error}") from self._error


class Queue:
    """A CUDA stream: work in order, that nobody has done yet."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.handle = gpu, next(_HANDLES)
        self.pending: deque[_Work] = deque()
        _QUEUES[self.handle] = self

    def put(self, run: Callable[[], None], *, name: str, kernel: bool = False) -> None:
        """Queue something to do, and nothing that it needs but what it holds itself."""
        self.pending.append(_Work(run, name, kernel))

    def allocate(self, size: int, *, ordered: bool = True) -> Allocation:
        """Memory that begins with the queue here.

        It is released in the order of the queue; where that is not ``ordered``, at once, whatever still uses it.
        """
        memory = MEMORY.add(size)
        self.put(lambda: memory.fill(FRESH), name="allocate")
        return Allocation(memory, self._release if ordered else MEMORY.release)

    def _release(self, memory: Array) -> None:
        self.put(lambda: MEMORY.release(memory), name="release")

    def mark(self) -> Mark:
        """The point where the queue is now."""
        mark = Mark()
        self.put(lambda: setattr(mark, "at", self.gpu.tick()), name="mark")
        return mark

    def wait_for(self, mark: Mark) -> None:
        """Let what is queued from now on come after a point of another queue."""
        self.pending.append(_Work(lambda: None, "wait for an event", False, mark))

    def wait(self) -> None:
        """Let the host wait until everything queued so far is done."""
        start, mark = time.monotonic_ns(), self.mark()
        self.gpu.run_until(lambda: mark.at is not None)
        _tell(Activity("stream", "", self.handle, start, time.monotonic_ns()))

    @property
    def is_ready(self) -> bool:
        """Whether there is something to do, and it waits for nothing else."""
        first = self.pending[0] if self.pending else None
        return first is not None and (first.after is None or first.after.at is not None)

    def run_next(self) -> None:
        """Do the next thing."""
        work, start = self.pending.popleft(), time.monotonic_ns()
        self.gpu.tick()
        work.run()
        if work.kernel:
            _tell(Activity("kernel", work.name, self.handle, start, time.monotonic_ns()))


_HANDLES = itertools.count(1001)
_QUEUES: weakref.WeakValueDictionary[int, Queue] = weakref.WeakValueDictionary()


def queue_of(handle: int) -> Queue:
    """The queue of a stream's handle. Raises for 0, the default stream, and for what is no stream."""
    if handle == 0:
        raise HostGpuError("work without a stream of its own")
    if handle not in _QUEUES:
        raise HostGpuError(f"{handle} is not the handle of a stream")
    return _QUEUES[handle]


def wait_for_event() -> None:
    """Tell that the host waited for an event which may have passed long ago, so that nothing has to run for it."""
    now = time.monotonic_ns()
    _tell(Activity("event", "", 0, now, now))


def _tell(activity: Activity) -> None:
    for listener in LISTENERS:
        listener(activity)


class HostBytes:
    """Memory of the host that queued work reads or writes: it must still be there then, and is not held."""

    def __init__(self, array: Array) -> None:
        if not array.flags.c_contiguous:
            raise HostGpuError("a copy needs contiguous memory of the host")
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        self.is_pinned = isinstance(root.base, Pinned)
        self.pointer, self.nbytes = array.ctypes.data, array.nbytes
        self._alive = weakref.ref(root)

    def values(self) -> Array:
        """The bytes as they are now. Raises where they were released."""
        root = self._alive()
        if root is None:
            raise HostGpuError("memory of the host was released before the stream had copied it")
        found: Array = host_values(Place(self.pointer, (self.nbytes,), np.dtype(np.uint8)), root)
        return found


class Pinned:
    """Page-locked memory, with the interface by which NumPy reads it."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._memory = np.full(math.prod(shape) * dtype.itemsize, FRESH, np.uint8)
        self.__array_interface__ = interface_of(self._memory.ctypes.data, shape, dtype.str)
