"""The proof of one stream: our own waits, the libraries' waits by name, the streams of all kernels, the order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gpu_network import fused, sure_class

from onestream.preprocess import Definition, Limits, PreprocessError, compile
from onestream.preprocess.cuda.device import Device, Stream
from onestream.serving.engine import DeviceEngine, open_engine
from onestream.serving.errors import ServingError
from onestream.serving.models.one_stream import BatchResult, OneStream
from onestream.serving.models.workers import Workers
from onestream.serving.pipeline import GpuOptions

BATCH = 8
OPTIONS = GpuOptions(max_batch_size=BATCH)


@pytest.fixture(scope="module")
def engine(device: Device, record: Any) -> Iterator[DeviceEngine]:
    """The default network with its postprocessing: by TensorRT, ONNX Runtime or PyTorch, whichever is there."""
    opened: DeviceEngine | None = None
    for name in ("tensorrt", "onnxruntime"):
        if opened is None:
            try:
                opened = open_engine(fused(), OPTIONS.model_copy(update={"engine": name}), device)
            except (PreprocessError, ServingError) as reason:
                record(f"{name} cannot be used", str(reason))
    if opened is None:
        from benchmarks.gpu.torch_engine import TorchEngine

        opened = TorchEngine(fused(), device, max_batch_size=BATCH)
    record("engine", type(opened).__name__)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def batch(files: dict[str, bytes]) -> list[bytes]:
    """As many JPEGs as a batch takes."""
    return [data for name, data in files.items() if "4:" in name][:BATCH]


def one_stream(definition: Definition, engine: DeviceEngine, device: Device, **options: Any) -> OneStream:
    """A pipeline on a stream of its own."""
    return OneStream(definition, Limits(), engine, device=device, options=OPTIONS.model_copy(update=options))


def test_our_code_waits_once_for_a_batch_and_the_libraries_by_name(
    definition: Definition, engine: DeviceEngine, device: Device, batch: list[bytes], record: Any, monkeypatch: Any
) -> None:
    tracer = pytest.importorskip("cuda_waits", reason="cupti-python is not installed").Tracer()
    from onestream.preprocess.backends.cvcuda import CvCuda
    from onestream.preprocess.backends.nvimgcodec import ImageDecoder

    monkeypatch.setattr(Stream, "sync", tracer.named("onestream", Stream.sync))
    monkeypatch.setattr(ImageDecoder, "decode", tracer.named("nvImageCodec", ImageDecoder.decode))
    monkeypatch.setattr(CvCuda, "_resample", tracer.named("CV-CUDA", CvCuda._resample))
    pipeline = one_stream(definition, engine, device)
    session = type(engine.open(device.stream()))
    monkeypatch.setattr(session, "enqueue", tracer.named(type(engine).__name__, session.enqueue))
    for _ in range(3):
        pipeline.run(batch)
    before = device.syncs
    tracer.start()
    result = pipeline.run(batch)
    trace = tracer.stop()
    tracer.close()
    assert len(result.good) == len(batch)
    assert device.syncs - before == 1
    ours = sum(count for (caller, _), count in trace.waits.items() if caller == "onestream")
    record("host waits of our own for a batch", ours, "1")
    assert ours == 1
    for (caller, kind), count in sorted(trace.waits.items()):
        if caller != "onestream":
            record(f"host waits of {caller} for a batch of {len(batch)}: {kind}", count, "listed")
    # Nothing else of a batch may wait: what is not of these libraries is a mistake of ours or of the engine.
    others = {caller for caller, _ in trace.waits} - {"onestream", "nvImageCodec", "CV-CUDA"}
    assert others == set(), trace.waits
    ours_or_engines: set[int] = set()
    for (kernel, stream), count in sorted(trace.kernel_streams.items()):
        # nvImageCodec decodes on streams of its own, which it ties to ours by events.
        if any(part in kernel.lower() for part in ("jpeg", "huffman", "idct", "decode")):
            record(f"stream of the decoder's kernel {kernel[:60]}, CUPTI's number", stream, "listed")
        else:
            ours_or_engines.add(stream)
            record(f"launches of {kernel[:60]} on stream {stream}", count, "listed")
    record("streams on which resize, network and postprocessing ran", len(ours_or_engines), "1")
    assert len(ours_or_engines) == 1, trace.kernel_streams


def test_steps_follow_each_other_and_take_time(
    definition: Definition, engine: DeviceEngine, device: Device, batch: list[bytes], record: Any
) -> None:
    pipeline = one_stream(definition, engine, device)
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
    options: dict[str, Any],
    definition: Definition,
    engine: DeviceEngine,
    device: Device,
    batch: list[bytes],
    network: Any,
) -> None:
    pipeline = one_stream(definition, engine, device, **options)
    expected = [sure_class(network(pixels)) for pixels in compile(definition.pixels()).run(batch)]
    assert len(expected) - expected.count(None) >= 2

    def agrees(result: BatchResult, best: list[int | None]) -> bool:
        seen = result.outputs["class_ids"][:, 0].tolist()
        return seen == [one if sure is None else sure for sure, one in zip(best, seen, strict=True)]

    for images in (batch, batch[:3], batch):
        result = pipeline.run(images)
        assert result.good == tuple(range(len(images)))
        assert agrees(result, expected[: len(images)])
    mixed = [batch[0], b"text", batch[1][: len(batch[1]) // 2], batch[2]]
    result = pipeline.run(mixed)
    assert result.good == (0, 3)
    assert sorted(result.bad) == [1, 2]
    assert agrees(result, [expected[0], expected[2]])


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
    for start in range(60):
        workers.submit(start)
    workers.close()
    assert seen == {}
