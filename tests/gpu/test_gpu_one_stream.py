"""The proof of one stream: our own waits, the libraries' waits by name, the streams of all kernels, the order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gpu_network import any_engine

from onestream.preprocess import Definition, Limits, compile
from onestream.preprocess.cuda.device import Device
from onestream.serving.engine import DeviceEngine
from onestream.serving.models.one_stream import OneStream
from onestream.serving.models.workers import Workers
from onestream.serving.pipeline import GpuOptions

BATCH, OVERLAPPING = 8, 60
OPTIONS = GpuOptions(max_batch_size=BATCH)


@pytest.fixture(scope="module")
def engine(device: Device, record: Any) -> Iterator[DeviceEngine]:
    """The default network with its postprocessing: by TensorRT, ONNX Runtime or PyTorch, whichever is there."""
    opened = any_engine(device, OPTIONS, record)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def batch(files: dict[str, bytes], decided: list[str]) -> list[bytes]:
    """As many JPEGs as a batch takes, of classes that no rounding changes."""
    found = [files[name] for name in decided if "4:" in name]
    return (found * BATCH)[:BATCH]


def one_stream(definition: Definition, engine: DeviceEngine, device: Device, **options: Any) -> OneStream:
    """A pipeline on a stream of its own."""
    return OneStream(definition, Limits(), engine, device=device, options=OPTIONS.model_copy(update=options))


@pytest.fixture
def pipeline(definition: Definition, engine: DeviceEngine, device: Device) -> OneStream:
    return one_stream(definition, engine, device)


def test_our_code_waits_once_for_a_batch_and_the_libraries_by_name(
    tracing: Any, pipeline: OneStream, engine: DeviceEngine, device: Device, files: Any, batch: list[bytes],
    record: Any, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    session = type(engine.open(device.stream()))
    monkeypatch.setattr(session, "enqueue", tracing.named(type(engine).__name__, session.enqueue))
    images = [*batch[:-1], files["PNG"]]
    for _ in range(3):
        pipeline.run(images)
    before = device.syncs
    tracing.start()
    result = pipeline.run(images)
    trace = tracing.stop()
    assert len(result.good) == len(images)
    assert device.syncs - before == 1
    trace.check(record, "one stream", ours=1)


def test_steps_follow_each_other_and_take_time(pipeline: OneStream, batch: list[bytes], record: Any) -> None:
    for _ in range(5):
        result = pipeline.run(batch)
    assert list(result.step_ms) == ["decode", "resize", "network", "read"]
    for step, milliseconds in result.step_ms.items():
        record(f"GPU time of {step}, batch of {len(batch)}, ms", milliseconds)
        # An event that was recorded before an earlier one would make a difference below zero.
        assert milliseconds >= 0
    assert result.step_ms["network"] > 0


@pytest.mark.parametrize("options", [{}, {"decode": "hybrid"}, {"decode": "cpu"}, {"backend": "dali"}], ids=str)
def test_every_placement_gives_the_reference_predictions(
    options: Any, definition: Definition, engine: DeviceEngine, device: Device, batch: list[bytes], network: Any
) -> None:
    pipeline = one_stream(definition, engine, device, **options)
    expected = [network(pixels).argmax() for pixels in compile(definition.pixels()).run(batch)]
    for images in (batch, batch[:3], batch):
        result = pipeline.run(images)
        assert result.good == tuple(range(len(images)))
        assert result.outputs["class_ids"][:, 0].tolist() == expected[: len(images)]
    mixed = [batch[0], b"text", batch[1][: len(batch[1]) // 2], batch[2]]
    result = pipeline.run(mixed)
    assert result.good == (0, 3)
    assert sorted(result.bad) == [1, 2]
    assert result.outputs["class_ids"][:, 0].tolist() == [expected[0], expected[2]]


def test_batches_that_overlap_do_not_mix(
    definition: Definition, engine: DeviceEngine, device: Device, files: dict[str, bytes]
) -> None:
    """Three threads with streams of their own over one engine give what one gives."""
    images = [data for name, data in files.items() if "4:" in name]
    alone = one_stream(definition, engine, device)
    expected = [alone.run([image]).outputs["class_ids"][0] for image in images]
    seen: dict[int, Any] = {}

    def work(pipeline: OneStream, start: int) -> None:
        chosen = [(start + offset) % len(images) for offset in range(start % BATCH + 1)]
        result = pipeline.run([images[index] for index in chosen])
        for index, class_ids in zip(chosen, result.outputs["class_ids"], strict=True):
            if not np.array_equal(class_ids[0], expected[index][0]):
                seen[index] = class_ids

    workers: Workers[OneStream, int] = Workers(3, lambda: one_stream(definition, engine, device), work)
    for start in range(OVERLAPPING):
        workers.submit(start)
    workers.close()
    assert seen == {}
