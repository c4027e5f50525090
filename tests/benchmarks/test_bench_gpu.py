"""The benchmark on a GPU, on host memory: what must agree before anything is timed, and where things are missing."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_network import fused
from host_gpu import HostDevice, view

from benchmarks.gpu import __main__ as command
from benchmarks.gpu.agreement import Expected, Network, check_answers, check_samples, refuse
from benchmarks.gpu.competitors import settings
from benchmarks.gpu.kernels import KERNELS
from benchmarks.gpu.results import FILE_NAME, GpuResults
from benchmarks.photos import make_photos
from benchmarks.result_files import read
from onestream.measure.agreement import Disagreement
from onestream.preprocess import compile
from onestream.preprocess.errors import BackendMissing
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.pipeline import Pipeline

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "examples" / "photos").glob("*.jpg"))
PIPELINE = Pipeline.from_file(ROOT / "pipelines" / "classify.yaml")
WITHIN_A_LEVEL = {
    *(f"CV-CUDA, decode {one}" for one in ("gpu", "gpu, JPEG hardware", "hybrid", "gpu, resize hq")),
    *("DALI on the GPU", "DALI on the GPU, JPEG hardware", "ours on the CPU"),
}
"""Those with Pillow's filter; OpenCV's are others."""
OPENCV = {"OpenCV, INTER_LINEAR", "OpenCV, INTER_AREA"}
TINY = [
    *("--sizes", "500x375", "mixed", "--batches", "2", "--fused-batches", "2", "3", "--photos", "3"),
    *("--rounds", "1", "--seconds", "0.01", "--minutes", "3", "--commit", "0123abc"),
]


@pytest.fixture(scope="module")
def network(repository: Path) -> Network:
    return Network(repository / "classify_fused" / "1" / "model.onnx", PIPELINE.preprocess)


@pytest.fixture(scope="module")
def expected(network: Network) -> Expected:
    photos = make_photos("500x375", 4, sources=SOURCES, seed=5, threads=2)
    return Expected.of("500x375", photos, PIPELINE.preprocess, PIPELINE.limits, network)


def test_the_reference_and_ours_agree_and_a_shifted_crop_does_not(network: Network, expected: Expected) -> None:
    definition = PIPELINE.preprocess
    every = settings(definition, PIPELINE.limits, device=None, cores=1, batches=[1])  # type: ignore[arg-type]
    setting = next(one for one in every if one.family == "ours on the CPU")
    ours = compile(definition, backend="dali").run(expected.photos)
    for samples in (list(expected.samples), ours):
        same = check_samples(setting, samples, expected, definition, network)  # type: ignore[arg-type]
        assert (same.mean_levels, same.max_level, same.flipped, same.agrees) == (0, 0, 0, True)
    shifted = check_samples(setting, list(np.roll(expected.samples, 1, axis=3)), expected, definition, network)
    assert not shifted.agrees
    with pytest.raises(Disagreement, match=r"disagrees at 500x375: mean .* levels from the reference"):
        refuse(shifted)
    with pytest.raises(ValueError, match="gives"):
        check_samples(setting, [sample[:, 1:] for sample in expected.samples], expected, definition, network)


def test_ties_are_no_flips(expected: Expected) -> None:
    assert expected.scores is not None
    scores = np.full((4, 10), 0.01)
    scores[:, 3], scores[:, 5] = 0.47, 0.45
    tied = Expected(expected.size, expected.photos, expected.samples, scores)
    assert tied.flips(np.array([3, 5, 3, 5])) == 0
    assert tied.flips(np.array([3, 5, 7, 0])) == 2
    assert check_answers("fp16", np.array([3, 5, 3, 5]), tied).agrees
    assert not check_answers("fp16", np.array([3, 5, 3, 6]), tied).agrees


def measured(folder: Path) -> tuple[str, GpuResults]:
    command = [sys.executable, str(ROOT / "tests" / "benchmarks" / "gpu_bench_on_host.py"), *TINY, "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (found,) = read(folder, FILE_NAME, GpuResults)
    return done.stdout, found


def row(table: str, beginning: str) -> list[str]:
    (line,) = [line for line in table.splitlines() if line.startswith(f"| {beginning} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


@pytest.mark.slow
def test_everything_is_compared_timed_and_written(repository: Path, tmp_path: Path) -> None:
    assert repository.is_dir()
    printed, results = measured(tmp_path)
    assert (results.gpu, results.commit, results.rounds_made) == ("host memory", "0123abc", 1)
    assert all(one.agrees and one.flipped == 0 for one in results.agreement)
    worst = {one.setting: one.max_level for one in results.agreement if one.part == "preprocess"}
    assert set(worst) == WITHIN_A_LEVEL | OPENCV
    assert {name for name, level in worst.items() if level <= 1.01} == WITHIN_A_LEVEL
    assert {one.setting for one in results.rates if one.part == "preprocess"} == set(worst)
    assert all(one.images_per_s > 0 for one in results.rates)
    fused_rates = {(one.setting, one.in_flight, one.size, one.batch) for one in results.rates if one.part == "fused"}
    assert fused_rates == set(itertools.product(("fp32", "tf32", "fp16"), (1, 2, 3), ("500x375", "mixed"), (2, 3)))
    assert [one.waits for one in results.steps] == [1] * 6
    assert list(results.steps[0].milliseconds) == ["decode", "resize", "network", "read"]
    for name in (
        "preprocessing: CV-CUDA ÷ OpenCV on all cores, batch 2",
        "preprocessing: DALI on the GPU ÷ OpenCV on all cores, batch 2",
        "fused ÷ the slower of decoding alone and network alone, fp16",
    ):
        _, *ratios = row(printed, name)
        assert all(float(ratio) > 0 for ratio in ratios)
    assert row(printed, "host waits of our own for a fused batch") == ["1", "1", "1"]
    # There is no Triton that can serve on a GPU.
    assert list(results.not_measured) == ["served"]
    assert row(printed, "served: classify_fused ÷ classify") == ["≥ 1.3", "not measured", "not measured"]
    assert str(tmp_path / "host-memory" / "gpu.json") in printed


def test_without_a_gpu_it_says_so_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_device() -> None:
        raise BackendMissing("no usable NVIDIA GPU")

    monkeypatch.setattr(command, "open_device", no_device)
    monkeypatch.setattr(sys, "argv", ["benchmarks.gpu", "--out", str(tmp_path)])
    assert command.main() == 1
    assert capsys.readouterr().err == "benchmarks.gpu: no usable NVIDIA GPU\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("repository")
def test_pytorch_in_the_place_of_an_engine_computes_what_onnx_runtime_does() -> None:
    device = HostDevice()
    from benchmarks.gpu.torch_engine import TorchEngine

    engine = TorchEngine(fused(), device, max_batch_size=4, on="cpu")
    session = engine.open(device.stream())
    expected = OnnxRuntimeEngine(fused(), threads=1)
    random = np.random.default_rng(3)
    for batch in (1, 3):
        pixels = random.integers(0, 256, (batch, 224, 224, 3)).astype(np.uint8)
        view(session.inputs["pixels"])[:batch] = pixels
        session.enqueue(batch)
        for name, value in expected.run({"pixels": pixels}).items():
            seen = view(session.outputs[name])[:batch]
            if name == "class_ids":
                np.testing.assert_array_equal(seen, value)
            else:
                # The order of float32 sums.
                np.testing.assert_allclose(seen, value, atol=1e-4)
    with pytest.raises(ValueError, match="batch of 5"):
        session.enqueue(5)


def points(module: str, tmp_path: Path, *arguments: str) -> list[dict[str, Any]]:
    """What a command appends on host memory, where another one had written before."""
    file = tmp_path / "points.jsonl"
    file.write_text('{"part": "before"}\n')
    runner = f"import sys, gpu_bench_on_host; sys.exit(gpu_bench_on_host.main({module!r}))"
    command = [sys.executable, "-c", runner, "--points", str(file), *arguments]
    found_in = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "tests" / "benchmarks"), str(ROOT)])}
    done = subprocess.run(command, env=found_in, capture_output=True, text=True, check=True)
    first, *found = [json.loads(line) for line in file.read_text().splitlines()]
    assert first == {"part": "before"}
    assert done.stdout.splitlines() == [json.dumps(one) for one in found]
    return found


def test_kernels_are_measured_beside_a_device_copy(tmp_path: Path) -> None:
    sizes = ("50x37", "64x48")
    found = points("benchmarks.gpu.kernels", tmp_path, "--megabytes", "0.01", "--sizes", *sizes)
    assert [(one["size"], one["kernel"]) for one in found] == [(size, name) for size in sizes for name in KERNELS]
    assert all(one["microseconds"] > 0 for one in found)
    assert [one["of_copy"] for one in found if one["kernel"] == "copy"] == [1, 1]


def test_the_decoder_is_measured_by_setting_threads_and_streams(tmp_path: Path) -> None:
    counts = ("--threads", "1", "2", "--streams", "1", "2", "--batch", "2", "--photos", "2", "--seconds", "0.01")
    found = points("benchmarks.gpu.codec", tmp_path, "--setting", "hardware 1", "--sizes", "50x37", *counts)
    assert [(one["threads"], one["streams"]) for one in found] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert all(one["setting"] == "hardware 1" and one["images_per_s"] > 0 for one in found)


def test_the_host_s_part_of_a_batch_is_measured_in_two_checkouts_in_turns() -> None:
    command = [sys.executable, "benchmarks/gpu/host_part.py", "--against", ".", "--rounds", "1", "--batches", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["headers", "known", "new"]
    assert done.stdout.count("times as many") == 3
