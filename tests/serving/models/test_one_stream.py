"""A batch on one stream, in host memory: order, isolation, one wait, overlap; and the threads that share the work."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from onestream.serving.models.workers import Workers

ROOT = Path(__file__).parents[3]

# In a process of its own: it puts host memory in the place of a GPU.
_SCRIPT = """
import os
import sys
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # it spins where several threads call it on few cores
sys.path[:0] = [{tests!r}]
import host_gpu
host_gpu.install()
import numpy as np
from pathlib import Path
from onestream.preprocess import BadImage, Limits, compile
from onestream.serving.building import onnx_graph
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.building.onnx_postprocess import with_postprocess
from onestream.serving.models.one_stream import OneStream
from onestream.serving.pipeline import GpuOptions, Pipeline
from onestream.postprocess import top_k

root = Path({root!r})
pipeline = Pipeline.from_file(root / "pipelines" / "classify.yaml")
definition, limits = pipeline.preprocess, pipeline.limits
model = onnx_graph.load(root / "model_repository" / "classify_fused" / "1" / "model.onnx")
engine = host_gpu.HostEngine(with_postprocess(model, pipeline.postprocess).SerializeToString(), max_batch_size=4)
photos = [path.read_bytes() for path in sorted((root / "examples" / "photos").glob("*.jpg"))]
reference = compile(definition.pixels(), limits=limits)
alone = OnnxRuntimeEngine(model.SerializeToString(), threads=1)
logits = alone.run(np.stack(reference.run(photos)))["logits"]
scores, class_ids = top_k(logits, 5)
for decode, backend in (("gpu", "cvcuda"), ("cpu", "cvcuda")):
    device = host_gpu.HostDevice()
    stream = OneStream(definition, limits, engine, device=device, options=GpuOptions(decode=decode, backend=backend))
    batch = [photos[0], b"text", photos[1], photos[2]]
    for _ in range(2):
        before = device.syncs
        result = stream.run(batch)
        assert device.syncs - before == 1, "one wait of ours for a batch"
        assert result.good == (0, 2, 3)
        assert list(result.bad) == [1] and result.bad[1].code == "unsupported_format"
        np.testing.assert_array_equal(result.outputs["class_ids"][:, 0], class_ids[:3, 0])
        # The GPU's pixels are the reference's; the CPU's loops are a level off.
        np.testing.assert_allclose(result.outputs["scores"], scores[:3], atol=1e-5 if decode == "gpu" else 0.02)
        assert list(result.step_ms)[0] == "decode" and list(result.step_ms)[-2:] == ["network", "read"], result.step_ms
        kept = result.outputs["scores"].copy()
        stream.run(photos[3:5])
        np.testing.assert_array_equal(result.outputs["scores"], kept)
    before = device.syncs
    nothing = stream.run([b"text", b""])
    assert (nothing.good, sorted(nothing.bad), nothing.outputs) == ((), [0, 1], {{}})
    assert device.syncs == before
    try:
        stream.run([b""] * 5)
    except ValueError as error:
        assert "takes 4" in str(error)
    else:
        raise AssertionError("a batch that is too large was taken")
print("done")
"""


def test_a_batch_on_one_stream_gives_the_results_of_the_cpu_and_waits_once(repository: Path) -> None:
    assert repository.is_dir()
    script = _SCRIPT.format(tests=str(ROOT / "tests"), root=str(ROOT))
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert run.stdout.strip().endswith("done"), run.stderr[-2000:]


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
