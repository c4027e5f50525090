"""Arrays of any sizes read from a GPU of host memory, by one piece of pinned memory."""

from __future__ import annotations

import numpy as np
import pytest
from host_gpu import HostDevice, HostStream
from host_work import HostGpuError

from onestream.preprocess.cuda.device import DeviceArray
from onestream.preprocess.cuda.reading import Reading

SHAPES = [(3, 5), (1,), (0, 7), (2, 3, 11)]


def on_gpu(values: np.ndarray, stream: HostStream) -> DeviceArray:
    staged, target = stream.pinned(values.shape, values.dtype), stream.allocate(values.shape, values.dtype)
    staged[...] = values
    stream.upload(staged, target)
    stream.sync()
    return target


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int64])
def test_values_come_with_one_wait_and_are_the_caller_s(dtype: type) -> None:
    stream = HostDevice().stream()
    reading, chosen = Reading(stream), np.random.default_rng(0)
    kept = []
    for scale in (1, 40, 2):
        values = [chosen.integers(0, 99, (*shape[:-1], shape[-1] * scale)).astype(dtype) for shape in SHAPES]
        arrays = [on_gpu(one, stream) for one in values]
        before = stream.device.syncs
        reading.queue(arrays)
        assert stream.device.syncs == before
        stream.sync()
        kept.append((reading.values(), values))
    for found, values in kept:
        for one, other in zip(found, values, strict=True):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            np.testing.assert_array_equal(one, other)
    reading.queue([])
    assert reading.values() == []


def test_before_the_wait_there_is_nothing_to_read() -> None:
    stream = HostDevice().stream()
    array = on_gpu(np.arange(8, dtype=np.uint8), stream)
    reading = Reading(stream)
    reading.queue([array])
    (early,) = reading.values()
    assert not np.array_equal(early, np.arange(8))
    strided = DeviceArray(array.pointer, (4, 1), array.dtype, stream.handle, array, (2, 1))
    with pytest.raises(HostGpuError, match="contiguous"):
        reading.queue([strided])
