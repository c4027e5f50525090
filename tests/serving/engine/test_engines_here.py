"""The GPU's tests run the engines that its machine has: chosen when they are collected, named when they have run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onestream.serving.engine import library

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.skipif(not library.IS_RTX, reason="TensorRT itself runs on every GPU")

# A GPU of a capability, and ONNX Runtime with or without CUDA, for a pytest that only collects or runs one case.
_PLUGIN = """
import os
from types import SimpleNamespace
import onnxruntime
import onestream.preprocess.cuda.device as device
major, minor = map(int, os.environ["CAPABILITY"].split("."))
device.driver_visible = lambda: True
device.open_device = lambda index=0: SimpleNamespace(compute_capability=(major, minor))
onnxruntime.get_available_providers = lambda: os.environ["PROVIDERS"].split()
"""


def pytest_on(tmp_path: Path, capability: str, providers: str, *arguments: str) -> str:
    (tmp_path / "a_gpu.py").write_text(_PLUGIN)
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "CAPABILITY": capability, "PROVIDERS": providers}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "a_gpu", "tests/serving/engine/test_engine_on_gpu.py", *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return run.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capability", "providers", "engines"),
    [
        ("9.0", "CUDAExecutionProvider CPUExecutionProvider", {"onnxruntime"}),
        ("8.9", "CPUExecutionProvider", {"tensorrt"}),
        ("12.0", "CUDAExecutionProvider CPUExecutionProvider", {"tensorrt", "onnxruntime"}),
    ],
)
def test_cases_are_of_the_engines_that_the_gpu_can_run(
    tmp_path: Path, capability: str, providers: str, engines: set[str]
) -> None:
    collected = pytest_on(tmp_path, capability, providers, "--collect-only")
    assert {name for name in ("tensorrt", "onnxruntime") if f"{name}]" in collected} == engines
    assert ("test_a_replayed_batch_has_equal_bits[3]" in collected) == ("tensorrt" in engines)
    assert "test_there_is_an_engine" in collected


@pytest.mark.slow
def test_a_machine_without_any_engine_fails_and_says_why(tmp_path: Path) -> None:
    said = pytest_on(tmp_path, "9.0", "CPUExecutionProvider")
    # Every other test is of an engine.
    assert "1 failed" in said
    assert "passed" not in said
    assert "does not know compute capability 9.0" in said
    assert "is a build without CUDA" in said


def test_the_summary_names_what_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    import gpu_engines

    class OnnxCudaEngine:
        """Its name is what is looked at."""

    monkeypatch.setattr(gpu_engines, "_ran", {})
    assert gpu_engines.summary() == []
    monkeypatch.setattr(gpu_engines, "why_not", lambda name: {"tensorrt": "no TensorRT is installed"}.get(name))
    gpu_engines.ran(OnnxCudaEngine())
    first, second = gpu_engines.summary()
    assert first.startswith("engines that ran: ONNX Runtime 1.")
    assert second == "not tensorrt: no TensorRT is installed"
