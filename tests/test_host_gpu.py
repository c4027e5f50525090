"""The GPU made of host memory finds mistakes of order and lifetime, which a GPU shows seldom or never."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from host_gpu import HostDevice, HostStream, view
from host_work import FRESH, HostGpuError, Mark

from onestream.preprocess.cuda.device import DeviceArray

SEEDS = range(12)
SOURCE = 'extern "C" __global__ void add_one(unsigned char *values) { values[blockIdx.x] += 1; }'


@pytest.fixture
def stream() -> HostStream:
    return HostDevice().stream()


def pinned(stream: HostStream, *values: int) -> Any:
    array = stream.pinned((len(values),), np.uint8)
    array[:] = values
    return array


def uploaded(stream: HostStream, *values: int) -> DeviceArray:
    """Values on the GPU, done."""
    source, target = pinned(stream, *values), stream.allocate((len(values),), np.uint8)
    stream.upload(source, target)
    stream.sync()
    return target


def on_host(stream: HostStream, array: DeviceArray) -> list[int]:
    result = stream.pinned(array.shape, array.dtype)
    stream.download(array, result)
    stream.sync()
    return result.tolist()


def test_nothing_is_done_before_the_wait_and_everything_after_it(stream: HostStream) -> None:
    there = uploaded(stream, 1, 2, 3)
    result = stream.pinned((3,), np.uint8)
    stream.launch(stream.device.kernel(SOURCE, "add_one"), (3, 1), (1, 1), (there.pointer,))
    stream.download(there, result)
    assert result.tolist() == [FRESH] * 3
    assert view(there).tolist() == [1, 2, 3]
    waits = stream.device.syncs
    stream.sync()
    assert result.tolist() == [2, 3, 4]
    assert stream.device.syncs == waits + 1


def test_memory_that_nobody_wrote_is_poison(stream: HostStream) -> None:
    assert on_host(stream, stream.allocate((4,), np.uint8)) == [FRESH] * 4


def test_a_host_buffer_that_is_used_again_too_early_shows(stream: HostStream) -> None:
    source, target = pinned(stream, 1, 2), stream.allocate((2,), np.uint8)
    stream.upload(source, target)
    source[:] = 9
    assert on_host(stream, target) == [9, 9]


@pytest.mark.parametrize("direction", ["upload", "download"])
def test_memory_of_the_host_that_is_gone_before_the_copy_is_an_error(stream: HostStream, direction: str) -> None:
    there = uploaded(stream, 1, 2)
    array = pinned(stream, 1, 2)
    # A view does not keep its memory in the queue either.
    stream.upload(array[:1], there) if direction == "upload" else stream.download(there, array)
    del array
    with pytest.raises(HostGpuError, match="memory of the host was released"):
        stream.sync()
    with pytest.raises(HostGpuError, match="the GPU failed"):
        stream.sync()


def test_memory_is_released_in_the_order_of_its_stream(stream: HostStream) -> None:
    source, target = uploaded(stream, 4, 5), stream.allocate((2,), np.uint8)
    stream.copy(source, target)
    pointer = source.pointer
    del source
    assert on_host(stream, target) == [4, 5]
    gone = DeviceArray(pointer, (2,), np.dtype(np.uint8), stream.handle, None)
    stream.copy(gone, target)
    with pytest.raises(HostGpuError, match="were released"):
        stream.sync()


def test_memory_that_another_stream_still_reads_is_an_error_in_some_order() -> None:
    def run(seed: int, *, waits: bool) -> bool:
        device = HostDevice(seed=seed)
        owner, reader = device.stream(), device.stream()
        source, target = uploaded(owner, 4, 5), reader.allocate((2,), np.uint8)
        reader.copy(source, target)
        if waits:
            reader.sync()
        del source
        owner.sync()
        reader.sync()
        return bool(view(target).tolist() == [4, 5])

    assert all(run(seed, waits=True) for seed in SEEDS)
    assert fails(lambda seed: run(seed, waits=False))


def fails(run: Callable[[int], bool]) -> bool:
    """Whether some seeds show the mistake and, by luck, others do not."""
    found = set()
    for seed in SEEDS:
        try:
            found.add(run(seed))
        except HostGpuError:
            found.add(False)
    return found == {True, False}


@pytest.mark.parametrize("mistake", ["no wait", "allocated later"])
def test_streams_that_do_not_wait_for_each_other_show_in_some_order(mistake: str) -> None:
    def run(seed: int, *, right: bool) -> bool:
        device = HostDevice(seed=seed)
        writer, reader = device.stream(), device.stream()
        source = pinned(writer, 1, 2)
        target = (reader if mistake == "allocated later" else writer).allocate((2,), np.uint8)
        if mistake == "allocated later" and right:
            reader.sync()
        writer.upload(source, target)
        if right:
            writer.sync()
        return on_host(reader, target) == [1, 2]

    assert all(run(seed, right=True) for seed in SEEDS)
    assert fails(lambda seed: run(seed, right=False))


def test_an_event_puts_streams_into_order() -> None:
    for seed in SEEDS:
        device = HostDevice(seed=seed)
        writer, reader = device.stream(), device.stream()
        target, source = writer.allocate((2,), np.uint8), pinned(writer, 1, 2)
        writer.upload(source, target)
        reader.queue.wait_for(writer.queue.mark())
        assert on_host(reader, target) == [1, 2]


def test_streams_that_wait_for_each_other_are_found() -> None:
    device = HostDevice()
    one, other = device.stream(), device.stream()
    never = Mark()
    one.queue.wait_for(never)
    other.queue.wait_for(one.queue.mark())
    with pytest.raises(HostGpuError, match="waits for another"):
        other.sync()


def test_a_thread_that_did_not_enter_the_gpu_is_refused(stream: HostStream) -> None:
    seen: list[BaseException] = []

    def work(*, enters: bool) -> None:
        if enters:
            stream.device.enter()
        try:
            stream.allocate((1,), np.uint8)
        except HostGpuError as error:
            seen.append(error)

    for enters in (False, True):
        thread = threading.Thread(target=work, kwargs={"enters": enters})
        thread.start()
        thread.join()
    assert len(seen) == 1
    assert "enter was not called" in str(seen[0])
