"""The benchmark on a GPU, run on host memory: every path but the vendors' kernels, and where things are missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.results import FILE_NAME, GpuResults
from benchmarks.result_files import read

ROOT = Path(__file__).parents[2]
TINY = [
    *("--sizes", "500x375", "--batches", "2", "--fused-batch", "2", "--photos", "3"),
    *("--rounds", "1", "--seconds", "0.01", "--minutes", "3", "--commit", "0123abc"),
]


def measured(scenario: str, folder: Path) -> tuple[subprocess.CompletedProcess[str], GpuResults]:
    script = ROOT / "tests" / "benchmarks" / "gpu_bench_on_host.py"
    done = subprocess.run(
        [sys.executable, str(script), scenario, *TINY, "--out", str(folder)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    found = read(folder, FILE_NAME, GpuResults)
    assert len(found) == 1, done.stderr[-2000:]
    return done, found[0]


def row(table: str, beginning: str) -> list[str]:
    (line,) = [line for line in table.splitlines() if line.startswith(f"| {beginning} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


@pytest.mark.slow
def test_everything_is_compared_timed_and_written(repository: Path, tmp_path: Path) -> None:
    assert repository.is_dir()
    done, results = measured("whole", tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (results.gpu, results.commit, results.rounds_made) == ("host memory", "0123abc", 1)
    assert all(one.agrees and one.flipped == 0 for one in results.agreement)
    # Pillow's filter is within a level; OpenCV's are not.
    worst = {one.setting: one.max_level for one in results.agreement if one.part == "preprocess"}
    assert {name: level <= 1.01 for name, level in worst.items() if level is not None} == {
        "CV-CUDA, decode gpu": True,
        "CV-CUDA, decode gpu, JPEG hardware": True,
        "CV-CUDA, decode hybrid": True,
        "CV-CUDA, decode gpu, resize hq": True,
        "DALI on the GPU": True,
        "DALI on the GPU, JPEG hardware": True,
        "ours on the CPU": True,
        "OpenCV, INTER_LINEAR": False,
        "OpenCV, INTER_AREA": False,
    }
    assert {one.setting for one in results.rates if one.part == "preprocess"} == set(worst)
    assert {(one.part, one.setting, one.in_flight) for one in results.rates if one.part == "fused"} == {
        ("fused", precision, in_flight) for precision in ("fp32", "fp16") for in_flight in (1, 2, 3)
    }
    assert all(one.images_per_s > 0 for one in results.rates)
    assert [one.waits for one in results.steps] == [1, 1]
    assert list(results.steps[0].milliseconds) == ["decode", "resize", "network", "read"]
    for name in (
        "preprocessing: CV-CUDA ÷ OpenCV on all cores, batch 2",
        "preprocessing: DALI on the GPU ÷ OpenCV on all cores, batch 2",
        "fused ÷ the slower of decoding alone and network alone, fp16",
    ):
        _, ratio = row(done.stdout, name)
        assert float(ratio) > 0
    assert row(done.stdout, "host waits of our own for a fused batch") == ["1", "1"]
    # There is no Triton that can serve on a GPU.
    assert list(results.not_measured) == ["served"]
    assert row(done.stdout, "served: classify_fused ÷ classify") == ["≥ 1.3", "not measured"]
    assert str(tmp_path / "host-memory" / "gpu.json") in done.stdout


@pytest.mark.slow
def test_what_is_missing_or_wrong_is_named_and_the_rest_is_measured(repository: Path, tmp_path: Path) -> None:
    assert repository.is_dir()
    done, results = measured("poor", tmp_path)
    assert done.returncode == 1, "a competitor disagreed"
    assert {one.setting for one in results.rates} == {"ours on the CPU"}
    assert set(results.not_measured) == {
        "preprocess: CV-CUDA, decode gpu",
        "preprocess: CV-CUDA, decode gpu, JPEG hardware",
        "preprocess: CV-CUDA, decode hybrid",
        "preprocess: CV-CUDA, decode gpu, resize hq",
        "preprocess: DALI on the GPU",
        "preprocess: DALI on the GPU, JPEG hardware",
        "preprocess: OpenCV, INTER_LINEAR",
        "preprocess: OpenCV, INTER_AREA",
        "decode alone",
        "fused: fp32",
        "fused: fp16",
        "served",
    }
    assert "cv2" in row(done.stdout, "not measured: preprocess: OpenCV, INTER_AREA")[1]
    assert "disagrees at 500x375" in row(done.stdout, "not measured: preprocess: DALI on the GPU")[1]
    assert "no engine here" in row(done.stdout, "not measured: fused: fp16")[1]
    assert row(done.stdout, "images/s: OpenCV, in its fastest setting")[1] == "not measured"
    assert float(row(done.stdout, "images/s: ours on the CPU, in its fastest setting")[1]) > 0


def test_without_a_gpu_it_says_so_and_writes_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
        check=False,
    )
    assert done.returncode == 1
    assert "no usable NVIDIA GPU" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
