"""Callers who stop waiting before a stream of the GPU is free: their own answers, and no work for them."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from triton_stand_in import TRITON, Request, Response, imported_anew, triton

from onestream.wire.refusals import WAITED_TOO_LONG

DEADLINE_S = 30.0


@pytest.fixture
def on_gpu() -> Iterator[Any]:
    with imported_anew("onestream.serving.models", **{TRITON: triton()}):
        yield importlib.import_module("onestream.serving.models.on_gpu")


def test_who_is_late_or_has_left_costs_the_gpu_nothing(on_gpu: Any) -> None:
    free, served = threading.Event(), list[Any]()

    def responses(_stream: object, callers: Sequence[Any]) -> list[Response]:
        assert free.wait(DEADLINE_S)
        served.append([caller.request for caller in callers])
        return [Response() for _ in callers]

    batches = on_gpu.GpuBatches("m", None, batches_in_flight=1, open_stream=lambda: None, responses=responses)

    def submit(*requests: Request, is_heavy: bool = False) -> threading.Thread:
        callers = [on_gpu.RequestCaller(request, is_held=False) for request in requests]
        thread = threading.Thread(target=batches.submit, args=(callers,), kwargs={"is_heavy": is_heavy})
        thread.start()
        return thread

    first, late, patient = Request(), Request(timeout_us=1), Request(timeout_us=60_000_000)
    gone, large = Request(is_cancelled=True), Request()
    # The stream works on the first; the others come meanwhile.
    threads = [submit(first), submit(late, patient), submit(gone, is_heavy=True), submit(large, is_heavy=True)]
    free.set()
    for thread in threads:
        thread.join(DEADLINE_S)
    batches.close()
    answers = [one.answer() for one in (first, late, patient, gone, large)]
    assert [one.error for one in answers] == [None, WAITED_TOO_LONG, None, WAITED_TOO_LONG, None]
    assert sorted(map(len, served)) == [1, 1, 1]
    assert not {id(late), id(gone)} & {id(request) for batch in served for request in batch}
    # Triton is asked only about large pictures.
    assert [one.looks for one in (first, late, patient, gone, large)] == [0, 0, 0, 1, 1]


def test_whose_caller_cannot_be_asked_after_is_answered(on_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_gpu, "usable", lambda _device: True)
    batches = on_gpu.GpuBatches(
        "m", None, batches_in_flight=1, open_stream=lambda: None, responses=lambda _stream, _callers: [Response()]
    )
    unknown, next_one = Request(), Request()
    unknown.is_cancelled = None
    for request in (unknown, next_one):
        batches.submit([on_gpu.RequestCaller(request, is_held=False)], is_heavy=True)
    batches.close()
    answers = [one.answer().error for one in (unknown, next_one)]
    assert answers == ["the batch failed on the GPU: TypeError", None]
