"""What a session tells TensorRT and CUDA, by stand-ins for both: the order of calls, which no GPU is needed to see."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onestream.preprocess.cuda.device import DeviceArray
from onestream.serving.engine import tensorrt
from onestream.serving.engine.base import EngineTensor
from onestream.serving.engine.replay import Turns, record
from onestream.serving.engine.tensorrt import TensorRtSession
from onestream.serving.errors import BadPlan

Call = tuple[Any, ...]
HANDLE = 77


class StandIn:
    """TensorRT's engine and CUDA's stream: they write down what they are asked for."""

    device_memory_size_v2 = 4096

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.capturing = False
        self.capture_fails = False
        self.execute_fails = False
        self.contexts = 0
        self.addresses = 0x1000

    # TensorRT
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

    def _capture(self, *, begins: bool, mode: str = "relaxed") -> None:
        assert mode == "relaxed"
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
    monkeypatch.setattr(tensorrt.cuda.core, "Stream", stream)
    return machine


def session(machine: StandIn, *, cuda_graphs: bool = True) -> TensorRtSession:
    pixels, logits = EngineTensor("pixels", "uint8", (4, 5, 3)), EngineTensor("logits", "float32", (10,))
    return TensorRtSession(machine, pixels, (logits,), 8, machine, cuda_graphs=cuda_graphs, lock=threading.Lock())


def test_buffers_are_for_the_largest_batch_and_their_addresses_are_set_once(machine: StandIn) -> None:
    opened = session(machine, cuda_graphs=False)
    assert (opened.input.shape, opened.outputs["logits"].shape) == ((8, 4, 5, 3), (8, 10))
    assert machine.taken() == [
        ("memory", 0, 0x4000, 4096),
        ("address", 0, "pixels", 0x2000),
        ("address", 0, "logits", 0x3000),
    ]
    for batch in (3, 3, 5):
        opened.enqueue(batch)
    assert machine.taken() == [
        ("shape", 0, "pixels", (3, 4, 5, 3)),
        ("executed", 0, HANDLE),
        ("executed", 0, HANDLE),
        ("shape", 0, "pixels", (5, 4, 5, 3)),
        ("executed", 0, HANDLE),
    ]


def test_the_second_batch_of_a_size_runs_and_is_recorded_in_a_context_of_its_own(machine: StandIn) -> None:
    opened = session(machine)
    opened.enqueue(3)
    machine.taken()
    opened.enqueue(3)
    assert machine.taken() == [
        ("memory", 1, 0x4000, 4096),
        ("address", 1, "pixels", 0x2000),
        ("address", 1, "logits", 0x3000),
        ("shape", 1, "pixels", (3, 4, 5, 3)),
        ("executed", 1, HANDLE),
        ("captured", 1, HANDLE),
        ("builder closed",),
    ]
    opened.enqueue(3)
    opened.enqueue(3)
    assert machine.taken() == [("launched", True), ("launched", True)]
    # Other sizes do not touch the context that the graph stands for.
    opened.enqueue(4)
    assert machine.taken() == [("shape", 0, "pixels", (4, 4, 5, 3)), ("executed", 0, HANDLE)]


def test_where_recording_is_refused_every_batch_still_runs_once(machine: StandIn) -> None:
    opened = session(machine)
    machine.capture_fails = True
    ran = []
    for _ in range(4):
        opened.enqueue(2)
        ran.append([call[0] for call in machine.taken()].count("executed"))
    assert ran == [1, 1, 1, 1]
    assert machine.contexts == 2


def test_a_refused_execution_is_an_error(machine: StandIn) -> None:
    opened = session(machine)
    machine.execute_fails = True
    with pytest.raises(BadPlan, match="cannot queue the network: no reason given"):
        opened.enqueue(1)


@pytest.mark.parametrize("batch", [-1, 0, 9])
def test_a_batch_outside_the_range_is_refused(machine: StandIn, batch: int) -> None:
    opened = session(machine)
    machine.taken()
    with pytest.raises(ValueError, match=f"got a batch of {batch}; allowed: 1 to 8"):
        opened.enqueue(batch)
    assert machine.taken() == []


def test_a_closed_session_takes_no_batch_and_can_be_closed_again(machine: StandIn) -> None:
    opened = session(machine)
    for _ in range(3):
        opened.enqueue(2)
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


# ---- which batch sizes are run, recorded and replayed


def take(turns: Turns, batch: int, *, refuse: bool = False) -> str:
    turn = turns.next(batch)
    if turn == "record":
        turns.refused(batch) if refuse else turns.recorded(batch)
    return turn


@given(st.lists(st.integers(1, 6), max_size=60), st.integers(0, 4), st.sets(st.integers(1, 6)))
def test_graphs_are_bounded_and_only_what_was_recorded_is_replayed(
    sizes: list[int], limit: int, refused: set[int]
) -> None:
    turns, recorded = Turns(limit=limit), set()
    for size in sizes:
        turn = take(turns, size, refuse=size in refused)
        assert turn != "replay" or size in recorded
        if turn == "record" and size not in refused:
            assert size not in recorded
            recorded.add(size)
    assert len(recorded) <= limit
