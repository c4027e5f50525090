"""The first minutes on a GPU: memory and a kernel of ours, each by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
from gpu_files import downloaded, uploaded

from onestream.preprocess.cuda.device import Device

ADD_ONE = """
extern "C" __global__ void add_one(unsigned char* values, int count) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) values[at] += 1;
}
"""


def test_memory_goes_there_and_back(device: Device, record: Any) -> None:
    record("GPU", device.name)
    record("compute capability", ".".join(map(str, device.compute_capability)))
    stream = device.stream()
    sent = np.arange(3000, dtype=np.int32).reshape(3, 1000)
    there = uploaded(sent, stream)
    stream.fill(there.rows(1, 2), 0)
    (back,) = downloaded([there], stream)
    np.testing.assert_array_equal(back[[0, 2]], sent[[0, 2]])
    assert not back[1].any()


def test_a_kernel_is_compiled_and_runs(device: Device) -> None:
    stream = device.stream()
    values = stream.allocate((1000,), np.uint8)
    stream.fill(values, 41)
    stream.launch(device.kernel(ADD_ONE, "add_one"), (8, 1), (128, 1), [values.pointer, np.int32(900)])
    (back,) = downloaded([values], stream)
    np.testing.assert_array_equal(back, [42] * 900 + [41] * 100)
