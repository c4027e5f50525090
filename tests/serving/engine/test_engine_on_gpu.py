"""Engines on a real GPU: results, replay, and that queueing a batch never waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import gpu_engines
import numpy as np
import numpy.typing as npt
import pytest
from served_networks import random_pixels, run

from onestream.preprocess.cuda.device import Device, Stream, open_device
from onestream.serving.engine import DeviceEngine, DeviceSession, open_engine
from onestream.serving.graph import onnx_graph
from onestream.serving.pipeline import GpuOptions

pytestmark = pytest.mark.needs_gpu

ROOT = Path(__file__).parents[3]
MAX_BATCH = 8
ENGINES = [pytest.param(name, marks=pytest.mark.needs_engine(name)) for name in gpu_engines.NAMES]
Load = Callable[..., DeviceEngine]
"""Loads an engine of the real network by name and precision."""
FLOAT32_TOLERANCE = 1e-3
"""Of the largest logit: other orders of float32 sums, TF32 being off. The rule of ``onnx_graph.prepare``."""
FLOAT16_TOLERANCE = 1e-2
"""Of the largest logit: 0.003 was measured where every operator rounds to float16 (``test_precision``)."""


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device()


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest) -> Path:
    """The default pipeline's network, built where it is not there: to build takes more than a bare machine has."""
    built = ROOT / "model_repository" / "classify_fused" / "1" / "model.onnx"
    if not built.exists():
        request.getfixturevalue("repository")
    return built


@pytest.fixture(scope="module")
def expected(model: Path) -> npt.NDArray[np.float32]:
    """Logits of ``random_pixels(MAX_BATCH, 224)`` by ONNX Runtime on the CPU."""
    return run(onnx_graph.load(model), random_pixels(MAX_BATCH, size=224))["logits"]


@pytest.fixture(scope="module")
def load(model: Path, device: Device, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    """Engines of the real network by name and precision, loaded once, their plans in a cache of this run."""
    loaded: dict[tuple[str, str], DeviceEngine] = {}

    def engine(name: str, precision: str = "fp32") -> DeviceEngine:
        if (name, precision) not in loaded:
            options = GpuOptions(engine=name, precision=precision, max_batch_size=MAX_BATCH)
            loaded[name, precision] = open_engine(model, options, device)
            gpu_engines.ran(loaded[name, precision])
        return loaded[name, precision]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONESTREAM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield engine
    for each in loaded.values():
        each.close()


class Runner:
    """A session and the copies around it."""

    def __init__(self, engine: DeviceEngine, device: Device) -> None:
        self.stream: Stream = device.stream()
        self.session: DeviceSession = engine.open(self.stream)
        (self.name,) = self.session.outputs
        self.pixels = self.stream.pinned(self.session.inputs["pixels"].shape, np.uint8)
        self.logits = self.stream.pinned(self.session.outputs[self.name].shape, np.float32)

    def __call__(self, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        count = len(pixels)
        self.pixels[:count] = pixels
        self.stream.upload(self.pixels[:count], self.session.inputs["pixels"])
        self.session.enqueue(count)
        self.stream.download(self.session.outputs[self.name].first(count), self.logits)
        self.stream.sync()
        return self.logits[:count].copy()


def test_there_is_an_engine() -> None:
    reasons = {name: gpu_engines.why_not(name) for name in gpu_engines.NAMES}
    assert None in reasons.values(), reasons


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("batch", [1, 3, MAX_BATCH])
def test_results_are_those_of_onnx_runtime_on_the_cpu(
    load: Load, device: Device, expected: npt.NDArray[np.float32], name: str, precision: str, batch: int
) -> None:
    got = Runner(load(name, precision), device)(random_pixels(MAX_BATCH, size=224)[:batch])
    allowed = {"fp32": FLOAT32_TOLERANCE, "fp16": FLOAT16_TOLERANCE}[precision] * float(np.abs(expected).max())
    assert np.abs(got - expected[:batch]).max() <= allowed
    if precision == "fp32":
        np.testing.assert_array_equal(got.argmax(1), expected[:batch].argmax(1))
    (pixels,), (logits,) = load(name, precision).inputs, load(name, precision).outputs
    assert (pixels.name, pixels.dtype, pixels.dims) == ("pixels", "uint8", (224, 224, 3))
    assert (logits.name, logits.dtype, logits.dims) == ("logits", "float32", (1000,))
    assert load(name, precision).max_batch_size == MAX_BATCH


@pytest.mark.parametrize("name", ENGINES)
def test_replayed_batches_have_equal_bits_whatever_sizes_take_turns(load: Load, device: Device, name: str) -> None:
    runner = Runner(load(name), device)
    for outside in (0, MAX_BATCH + 1):
        with pytest.raises(ValueError, match=f"got a batch of {outside}; allowed: 1 to {MAX_BATCH}"):
            runner.session.enqueue(outside)
    pixels = random_pixels(MAX_BATCH, size=224)
    first: dict[int, npt.NDArray[np.float32]] = {}
    for times in (3, 1, 1, 3):
        for batch in [one for one in (1, 2, 3, 5, MAX_BATCH) for _ in range(times)]:
            result = runner(pixels[:batch])
            np.testing.assert_array_equal(result, first.setdefault(batch, result))
            # A replay reads what is in the buffer now, not what was there when it was recorded.
            assert not np.array_equal(runner(pixels[::-1][:batch])[0], result[0])


@pytest.mark.parametrize("name", ENGINES)
def test_queueing_never_waits_for_the_gpu(load: Load, device: Device, name: str) -> None:
    """The stream is held up by a function that waits for this test; every enqueue must return before it is let go."""
    from cuda.core import Stream as CoreStream

    runner = Runner(load(name), device)
    pixels = random_pixels(2, size=224)
    for _ in range(2):  # run and record, replay: from here on nothing is set up
        runner(pixels)
        runner(pixels[:1])
    gate = threading.Event()
    stream = CoreStream.from_handle(runner.stream.handle)
    builder = stream.create_graph_builder().begin_building()
    builder.callback(lambda: gate.wait(30) and None)
    held = builder.end_building().complete()
    # Lets go if an enqueue does wait, so that the test fails instead of hanging.
    late = threading.Timer(10, gate.set)
    late.start()
    syncs = device.syncs
    held.launch(stream)
    for batch in (2, 1, 2):
        runner.session.enqueue(batch)
    returned_first = not gate.is_set()
    gate.set()
    late.cancel()
    runner.stream.sync()
    assert returned_first
    assert device.syncs == syncs + 1


@pytest.mark.parametrize("name", ENGINES)
def test_threads_with_a_session_each_get_their_own_results(load: Load, device: Device, name: str) -> None:
    engine, pixels = load(name), random_pixels(MAX_BATCH, size=224)
    alone = Runner(engine, device)(pixels)
    results: dict[int, npt.NDArray[np.float32]] = {}

    def work(thread: int) -> None:
        device.enter()
        runner = Runner(engine, device)
        order = np.roll(np.arange(MAX_BATCH), thread)
        for _ in range(5):
            results[thread] = runner(pixels[order])[np.argsort(order)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results.values():
        # One kernel per batch size, so an image's place in the batch does not matter beyond the order of sums.
        np.testing.assert_allclose(result, alone, atol=FLOAT32_TOLERANCE * float(np.abs(alone).max()))
    assert len(results) == 3


@pytest.mark.needs_engine("tensorrt")
def test_a_plan_is_found_again_by_the_next_process(model: Path, device: Device, load: Load) -> None:
    load("tensorrt")
    lines: list[str] = []
    open_engine(model, GpuOptions(max_batch_size=MAX_BATCH), device, progress=lines.append)
    assert lines == []
