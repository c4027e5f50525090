"""ONNX Runtime on a stream, for pixels of any size: its CPU in the place of CUDA, in memory that a stream allocated."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import prompted
import pytest
from host_gpu import HostDevice, HostStream, view
from networks import mean_color
from served_networks import convolutional, definition, random_pixels, run, served

from onestream.preprocess import BackendMissing, Decode, Definition, Normalize, Resize, StampMismatch
from onestream.preprocess.cuda.device import DeviceArray
from onestream.serving.engine import onnx_cuda, open_engine, open_free_session
from onestream.serving.errors import BadNetwork, BadPlan
from onestream.serving.graph import onnx_graph
from onestream.serving.pipeline import GpuOptions, Precision

OPTIONS = GpuOptions(engine="onnxruntime")
FREE = Definition(
    operations=[Decode(), Resize(mode="longer", size=64), Normalize(mean=(0.5, 0.4, 0.3), std=(0.5, 0.25, 0.3))]
)


@pytest.fixture(scope="module")
def free() -> onnx.ModelProto:
    """A network that takes pixels of any size."""
    return onnx_graph.prepare(mean_color(("batch", 3, "height", "width")), FREE)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What sessions and runs are given, on a machine whose CPU stands for CUDA."""
    seen: list[Any] = []
    real = onnxruntime.InferenceSession

    class Session(real):
        def __init__(self, model: bytes, options: Any = None, *, providers: list[Any]) -> None:
            name = providers[0]
            if isinstance(name, tuple):
                name, given = name
                seen.append((given, options.enable_mem_pattern))
            super().__init__(model, options, providers=[name])

        def run_with_iobinding(self, binding: Any, run_options: Any = None) -> None:
            seen.append(run_options.get_run_config_entry("disable_synchronize_execution_providers"))
            super().run_with_iobinding(binding, run_options)

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None, raising=False)
    monkeypatch.setattr(onnx_cuda, "_PROVIDER", "CPUExecutionProvider")
    monkeypatch.setattr(onnx_cuda, "_DEVICE", "cpu")
    return seen


def uploaded(pixels: np.ndarray, stream: HostStream) -> DeviceArray:
    staged, target = stream.pinned(pixels.shape, np.uint8), stream.allocate(pixels.shape, np.uint8)
    staged[:] = pixels
    stream.upload(staged, target)
    # The CPU runs at once, where a GPU would follow the stream.
    stream.sync()
    return target


def on_host(array: DeviceArray) -> np.ndarray:
    """A copy of what ONNX Runtime allocated."""
    bytes_of = (ctypes.c_uint8 * array.nbytes).from_address(array.pointer)
    return np.frombuffer(bytes_of, array.dtype).reshape(array.shape).copy()


def test_pixels_of_any_size_and_outputs_that_the_caller_holds(asked: list[Any], free: onnx.ModelProto) -> None:
    stream = HostDevice().stream()
    session = open_free_session(free.SerializeToString(), OPTIONS, stream, definition=FREE)
    (options, keeps_patterns), *_ = asked
    assert options["user_compute_stream"] == str(stream.handle)
    assert not keeps_patterns
    chosen = np.random.default_rng(0)
    sizes = [(3, 20, 31, 3), (1, 16, 400, 3), (3, 20, 31, 3)]
    batches = [chosen.integers(0, 256, size).astype(np.uint8) for size in sizes]
    found = [session.enqueue(uploaded(batch, stream)) for batch in batches]
    # Read where they lie on the stream.
    rows = uploaded(chosen.integers(0, 256, (4, 8, 9, 3)).astype(np.uint8), stream)
    batches.append(view(rows)[1:3])
    found.append(session.enqueue(rows.rows(1, 3)))
    for batch, outputs in zip(batches, found, strict=True):
        expected = run(free, batch)
        assert set(outputs) == set(expected)
        for name, value in expected.items():
            got = outputs[name]
            assert (got.shape, got.dtype, got.stream) == (value.shape, value.dtype, stream.handle)
            np.testing.assert_allclose(on_host(got), value, atol=1e-5)
    assert asked[1:] == ["1"] * len(batches)
    assert stream.device.syncs == len(batches)
    session.close()
    with pytest.raises(BadNetwork, match="was closed"):
        session.enqueue(rows)


def test_what_cannot_be_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, free: onnx.ModelProto) -> None:
    stream, network = HostDevice().stream(), free.SerializeToString()
    with pytest.raises(BadPlan, match=r"TensorRT takes pictures of one size; serving\.gpu\.engine: onnxruntime"):
        open_free_session(network, GpuOptions(), stream)
    with pytest.raises(StampMismatch, match="first difference"):
        open_free_session(network, OPTIONS, stream, definition=definition())
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(BackendMissing, match="has no CUDA"):
        open_free_session(network, OPTIONS, stream)


@pytest.mark.usefixtures("asked")
def test_the_size_of_float16_is_the_graph_s(free: onnx.ModelProto) -> None:
    """Its outputs stay float32; what is between is half as large."""
    stream, in_float16 = HostDevice().stream(), OPTIONS.model_copy(update={"precision": "fp16"})
    session = open_free_session(free.SerializeToString(), in_float16, stream)
    pixels = np.full((2, 12, 12, 3), 100, np.uint8)
    (outputs,) = session.enqueue(uploaded(pixels, stream)).values()
    (expected,) = run(free, pixels).values()
    assert outputs.dtype == np.float32
    np.testing.assert_allclose(on_host(outputs), expected, atol=1e-2)


class Recorded:
    """In the place of CUDA graphs: a replay is the recorded run once more."""

    def __init__(self, _handle: int) -> None:
        self.refused = False
        self.sizes: list[int] = []

    def queue(self, size: int, run: Callable[[], bool]) -> bool:
        self.sizes.append(size)
        self.refused = size == REFUSED
        return run()

    def close(self) -> None:
        self.sizes.clear()


REFUSED = 4


def test_batches_are_replayed_until_one_cannot_be_recorded(monkeypatch: pytest.MonkeyPatch, asked: list[Any]) -> None:
    monkeypatch.setattr(onnx_cuda, "Replayed", Recorded)
    model = served(convolutional())
    device = HostDevice()
    engine = onnx_cuda.OnnxCudaEngine(model.SerializeToString(), device, max_batch_size=4)
    session = engine.open(device.stream())
    graphs: Any = session._replayed
    pixels = random_pixels(4)
    expected = run(model, pixels)["scores"]
    content = (ctypes.c_uint8 * session.inputs["pixels"].nbytes).from_address(session.inputs["pixels"].pointer)
    kept: list[list[int]] = [[], [1], [], [2], [], [], [], []]
    for batch, sizes in zip((1, 1, 2, 2, 1, 3, 3, 3), kept, strict=True):
        content[: pixels[:batch].size] = pixels[:batch].tobytes()
        session.enqueue(batch)
        np.testing.assert_allclose(on_host(session.outputs["scores"].first(batch)), expected[:batch], atol=1e-5)
        # A recording is of the size that comes again, and ends with it.
        assert graphs.sizes == sizes
    # Each batch runs once here: a size's first run is its own, ``Replayed`` does the second.
    assert asked.count("1") == 8
    # Once a size was refused the network is loaded as it is, and runs.
    loaded = [one[0] for one in asked if isinstance(one, tuple)]
    assert ["enable_cuda_graph" in options for options in loaded] == [True, False]
    assert session._replayed is None


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_every_input_is_bound(monkeypatch: pytest.MonkeyPatch, precision: Precision) -> None:
    monkeypatch.setattr(onnx_cuda, "Replayed", Recorded)
    shown = Definition.model_validate(prompted.FIELDS["preprocess"])
    model = onnx_graph.prepare(prompted.prompted(count=2), shown, inputs=prompted.NETWORK_INPUTS)
    device = HostDevice()
    options = OPTIONS.model_copy(update={"precision": precision, "max_batch_size": 2})
    session = open_engine(model.SerializeToString(), options, device).open(device.stream())
    given, rows = prompted.two_images()
    assert session.inputs.keys() == given.keys()
    for name, array in session.inputs.items():
        assert array.dtype == given[name].dtype
        ctypes.memmove(array.pointer, given[name].tobytes(), given[name].nbytes)
    session.enqueue(2)
    np.testing.assert_allclose(on_host(session.outputs["y"]), rows, rtol=1e-5 if precision == "fp32" else 1e-2)
