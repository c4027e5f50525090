"""A batch on one stream, in host memory: order, isolation, one wait, overlap; and the threads that share the work."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import prompted
import pytest
import siamese
from host_gpu import HostDevice, HostEngine, HostNvimgcodec, fake_cvcuda
from image_files import encode
from networks import mean_color
from PIL import Image
from triton_stand_in import imported_anew

from onestream.postprocess.kinds.classification import top_k
from onestream.preprocess import Definition, Limits, compile
from onestream.preprocess.backends import nvimgcodec
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.graph import onnx_graph
from onestream.serving.graph.onnx_postprocess import with_postprocess
from onestream.serving.models.one_stream import OneStream
from onestream.serving.models.workers import Workers
from onestream.serving.pipeline import GpuOptions, Pipeline

ROOT = Path(__file__).parents[3]


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The libraries of a GPU in host memory."""
    monkeypatch.setattr(nvimgcodec, "nvimgcodec", HostNvimgcodec())
    backends = ("onestream.preprocess.backends.cvcuda", "onestream.preprocess.backends.hq_resize")
    with imported_anew(*backends, cvcuda=fake_cvcuda()):
        yield


def stream_of(definition: Definition, network: onnx.ModelProto, device: HostDevice, decode: Any) -> OneStream:
    engine = HostEngine(network.SerializeToString(), max_batch_size=4)
    return OneStream(definition, Limits(), engine, device=device, options=GpuOptions(decode=decode, backend="cvcuda"))


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("decode", ["gpu", "cpu"])
def test_a_batch_on_one_stream_gives_the_results_of_the_cpu_and_waits_once(decode: Any) -> None:
    pipeline = Pipeline.from_file(ROOT / "pipelines" / "classify.yaml")
    definition = pipeline.preprocess
    network = onnx_graph.prepare(mean_color(("batch", 3, 224, 224)), definition)
    photos = [path.read_bytes() for path in sorted((ROOT / "examples" / "photos").glob("*.jpg"))]
    alone = OnnxRuntimeEngine(network.SerializeToString(), threads=1)
    logits = alone.run({"pixels": np.stack(compile(definition.pixels()).run(photos))})
    scores, class_ids = top_k(next(iter(logits.values())), 5)
    device = HostDevice()
    stream = stream_of(definition, with_postprocess(network, pipeline.postprocess), device, decode)
    batch = [photos[0], b"text", photos[1], photos[2]]
    for _ in range(2):
        before = device.syncs
        result = stream.run(batch)
        assert device.syncs - before == 1, "one wait of ours for a batch"
        assert result.good == (0, 2, 3)
        assert list(result.bad) == [1]
        assert result.bad[1].code == "unsupported_format"
        np.testing.assert_array_equal(result.outputs["class_ids"][:, 0], class_ids[:3, 0])
        np.testing.assert_allclose(result.outputs["scores"], scores[:3], atol=1e-5)
        assert next(iter(result.step_ms)) == "decode"
        assert list(result.step_ms)[-2:] == ["network", "read"]
        kept = result.outputs["scores"].copy()
        stream.run(photos[3:5])
        np.testing.assert_array_equal(result.outputs["scores"], kept)
    before = device.syncs
    nothing = stream.run([b"text", b""])
    assert (nothing.good, sorted(nothing.bad), nothing.outputs) == ((), [0, 1], {})
    assert device.syncs == before
    with pytest.raises(ValueError, match="takes 4"):
        stream.run([b""] * 5)


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("decode", ["gpu", "cpu"])
def test_each_picture_s_own_inputs_reach_the_network(decode: Any) -> None:
    """Also beside one that is refused, whose row the next one takes."""
    definition = Definition.model_validate(prompted.FIELDS["preprocess"])
    network = onnx_graph.prepare(prompted.prompted(count=2), definition, inputs=prompted.NETWORK_INPUTS)
    stream = stream_of(definition, network, HostDevice(), decode)
    shown = [(10, 40, 30, [[1, 2], [3, 4]], [0, 1, 2]), (200, 20, 60, [[5, 6], [7, 9]], [4, 4, 4])]
    files = [encode(Image.new("RGB", (width, height), (level,) * 3), "PNG") for level, width, height, *_ in shown]
    inputs = [
        {"points": np.array([points], np.float32), "tokens": np.array([tokens], np.int64)}
        for *_, points, tokens in (shown[0], shown[0], shown[1])
    ]
    for _ in range(2):
        result = stream.run([files[0], b"text", files[1]], inputs)
        assert result.good == (0, 2)
        np.testing.assert_allclose(result.outputs["y"], [prompted.expected(*one) for one in shown], rtol=1e-5)


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("decode", ["gpu", "cpu"])
def test_each_request_s_pictures_stay_together(decode: Any) -> None:
    """Also beside requests of which one picture is refused, whose rows the next ones take."""
    definition = Definition.model_validate(siamese.FIELDS["preprocess"])
    network = onnx_graph.prepare(siamese.siamese(), definition, inputs=siamese.FIELDS["network_inputs"])
    stream = stream_of(definition, network, HostDevice(), decode)
    files = [encode(Image.new("RGB", (40, 30), (level,) * 3), "PNG") for level in (10, 60, 110, 160)]
    images = [files[0], b"text", files[1], files[2]]
    others = [{"pixels/second": one} for one in (files[3], files[0], b"text", files[1])]
    levels = np.float32([[10, 160], [110, 60]])
    for _ in range(2):
        result = stream.run(images, pictures=others)
        assert result.good == (0, 3)
        assert sorted(result.bad) == [1, 2]
        assert result.bad[2].reason.startswith("second: ")
        assert not result.bad[1].reason.startswith("second:")
        np.testing.assert_allclose(result.outputs["both"][:, [0, 3], 0, 0], (levels / 255 - 0.5) / 0.25, rtol=1e-6)
    nothing = stream.run([b"text", files[0]], pictures=[others[0], others[2]])
    assert (nothing.good, sorted(nothing.bad)) == ((), [0, 1])


def test_workers_overlap_and_the_next_job_is_taken_only_when_one_is_free() -> None:
    gates = [threading.Event() for _ in range(3)]
    done: list[int] = []

    def work(_state: int, job: int) -> None:
        gates[job].wait(10)
        done.append(job)

    workers: Workers[int, int] = Workers(2, threading.get_ident, work)
    workers.submit(0)  # the second thread is free
    second = threading.Thread(target=workers.submit, args=(1,))
    second.start()
    second.join(0.2)
    assert second.is_alive(), "both threads are busy, so no next job may come"
    gates[1].set()
    second.join(10)
    assert done == [1], "the later job overtook the earlier one"
    gates[0].set()
    gates[2].set()
    workers.submit(2)
    workers.close()
    assert sorted(done) == [0, 1, 2]


def test_each_worker_has_a_state_of_its_own_and_failures_to_make_one_are_raised() -> None:
    states: set[int] = set()
    workers: Workers[int, np.ndarray[tuple[int], np.dtype[np.int64]]] = Workers(
        3, threading.get_ident, lambda state, _job: states.add(state)
    )
    for _ in range(30):
        workers.submit(np.zeros(1, np.int64))
    workers.close()
    assert 1 <= len(states) <= 3
    assert threading.get_ident() not in states

    def broken() -> int:
        raise RuntimeError("no such GPU")

    with pytest.raises(RuntimeError, match="no such GPU"):
        Workers(2, broken, lambda _state, _job: None)
