"""What a session tells TensorRT and CUDA, by stand-ins for both: the order of calls, which no GPU is needed to see."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import cuda.core
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onestream.preprocess.cuda.device import DeviceArray
from onestream.serving.engine.base import EngineTensor
from onestream.serving.engine.cuda_graphs import batch_sizes, nearest, next_size, record, tuned_sizes
from onestream.serving.engine.tensorrt import TensorRtSession
from onestream.serving.errors import BadPlan

Call = tuple[Any, ...]
HANDLE = 77


class StandIn:
    """TensorRT's engine and CUDA's stream: they write down what they are asked for."""

    device_memory_size_v2 = 4096
    num_optimization_profiles = 2

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.capturing = False
        self.capture_fails = False
        self.execute_fails = False
        self.contexts = 0
        self.addresses = 0x1000

    # TensorRT
    def get_tensor_profile_shape(self, _name: str, profile: int) -> list[tuple[int, ...]]:
        return [(1,), ((8, 16)[profile],), (16,)]

    def create_runtime_config(self) -> Any:
        return SimpleNamespace(set_execution_context_allocation_strategy=lambda _strategy: None)

    def create_execution_context(self, _how: object) -> Any:
        number = self.contexts
        self.contexts += 1

        def note(what: str) -> Callable[..., bool]:
            return lambda *arguments: self.calls.append((what, number, *arguments)) or True

        def execute(handle: int) -> bool:
            self.calls.append(("captured" if self.capturing else "executed", number, handle))
            return not self.execute_fails

        return SimpleNamespace(
            set_optimization_profile_async=note("profile"),
            set_device_memory=note("memory"),
            set_tensor_address=note("address"),
            set_input_shape=note("shape"),
            execute_async_v3=execute,
        )

    # CUDA
    def create_graph_builder(self) -> Any:
        return SimpleNamespace(
            begin_building=lambda mode: self._capture(begins=True, mode=mode),
            end_building=lambda: self._capture(begins=False),
            complete=lambda: SimpleNamespace(
                launch=lambda stream: self.calls.append(("launched", stream is self)), close=lambda: None
            ),
            close=lambda: self.calls.append(("builder closed",)),
        )

    def _capture(self, *, begins: bool, mode: str = "thread_local") -> None:
        assert mode == "thread_local"
        self.capturing = begins
        if self.capture_fails and not begins:
            raise RuntimeError("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED")

    # onestream.preprocess.cuda.device.Stream
    handle = HANDLE

    def allocate(self, shape: tuple[int, ...], dtype: object) -> DeviceArray:
        self.addresses += 0x1000
        return DeviceArray(self.addresses, shape, np.dtype(dtype), HANDLE, self)

    def taken(self) -> list[Call]:
        calls, self.calls = self.calls, []
        return calls


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    machine = StandIn()
    stream = SimpleNamespace(from_handle=lambda handle: machine if handle == HANDLE else None)
    monkeypatch.setattr(cuda.core, "Stream", stream)
    return machine


def session(machine: StandIn) -> TensorRtSession:
    pixels, points = EngineTensor("pixels", "uint8", (4, 5, 3)), EngineTensor("points", "float32", (2, 2))
    logits = EngineTensor("logits", "float32", (10,))
    return TensorRtSession(machine, (pixels, points), (logits,), 16, machine, lock=threading.Lock())


def test_the_first_batch_runs_and_is_recorded_in_a_context_of_its_size(machine: StandIn) -> None:
    opened = session(machine)
    shapes = {name: array.shape for name, array in (opened.inputs | opened.outputs).items()}
    assert shapes == {"pixels": (16, 4, 5, 3), "points": (16, 2, 2), "logits": (16, 10)}
    opened.enqueue(3)
    assert machine.taken() == [
        ("memory", 0, 0x5000, 4096),
        ("address", 0, "pixels", 0x2000),
        ("address", 0, "points", 0x3000),
        ("address", 0, "logits", 0x4000),
        ("shape", 0, "pixels", (4, 4, 5, 3)),
        ("shape", 0, "points", (4, 2, 2)),
        ("executed", 0, HANDLE),
        ("captured", 0, HANDLE),
        ("builder closed",),
    ]
    # A batch of four is of the same size.
    for batch in (3, 4):
        opened.enqueue(batch)
    assert machine.taken() == [("launched", True), ("launched", True)]
    opened.enqueue(13)
    (_, (what, number, *profile), *_, (_, _, _, shape), _, _, _) = machine.taken()
    assert (what, number, profile, shape) == ("profile", 1, [1, HANDLE], (16, 2, 2))


def test_where_recording_is_refused_every_batch_still_runs_once(machine: StandIn) -> None:
    opened = session(machine)
    machine.capture_fails = True
    ran = []
    for _ in range(4):
        opened.enqueue(2)
        ran.append([call[0] for call in machine.taken()].count("executed"))
    assert ran == [1, 1, 1, 1]
    assert machine.contexts == 1


def test_what_cannot_be_executed_is_an_error_and_touches_nothing(machine: StandIn) -> None:
    opened = session(machine)
    machine.execute_fails = True
    with pytest.raises(BadPlan, match="cannot queue the network: no reason given"):
        opened.enqueue(1)
    machine.execute_fails = False
    for _ in range(3):
        opened.enqueue(2)
    machine.taken()
    for batch in (-1, 0, 17):
        with pytest.raises(ValueError, match=f"got a batch of {batch}; allowed: 1 to 16"):
            opened.enqueue(batch)
    assert machine.taken() == []
    opened.close()
    opened.close()
    machine.taken()
    with pytest.raises(BadPlan, match="the session was closed"):
        opened.enqueue(2)
    assert machine.taken() == []


def test_what_cannot_be_queued_is_not_recorded_and_the_stream_is_let_go(machine: StandIn) -> None:
    assert record(machine, lambda: False) is None

    def fail() -> bool:
        raise RuntimeError

    assert record(machine, fail) is None
    assert not machine.capturing
    assert machine.taken() == [("builder closed",), ("builder closed",)]


@given(st.integers(1, 1024))
def test_every_batch_has_a_size_and_there_are_few(largest: int) -> None:
    sizes = batch_sizes(largest)
    assert sizes == tuple(sorted(set(sizes)))
    assert (sizes[0], sizes[-1], len(sizes) <= 16) == (1, largest, True)
    for batch in range(1, largest + 1):
        assert batch <= next_size(batch, sizes) <= 2 * batch


def test_the_sizes_of_the_default_batch_and_their_profiles() -> None:
    assert batch_sizes(64) == (1, 2, 4, 8, 16, 32, 48, 64)
    assert (tuned_sizes(64), tuned_sizes(8)) == ((8, 64), (8,))
    assert [nearest(size, (8, 64)) for size in batch_sizes(64)] == [0, 0, 0, 0, 0, 0, 1, 1]
