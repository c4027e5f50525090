"""The GPU suite itself runs to its end in host memory, so that a GPU's time is not spent on its mistakes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_the_gpu_suite_runs_in_host_memory(tmp_path: Path, repository: Path) -> None:
    assert repository.is_dir()
    images = "(cvcuda and (crop or flips or letterboxes or damaged)) or second_chance or cut_short or no_jpeg"
    # One kind of video runs the suite's code; all kinds do in tests/preprocess/video/test_stream_gpu.py.
    videos = "gpu_video and (h264 or size) and not (frames or groups or annex)"
    mattes = "(gpu_matte and not memory)"
    regions = "gpu_regions or gpu_varied or (gpu_cascade and not memory)"
    chosen = f"one_stream or {regions} or {images} or ({videos}) or ({mattes})"
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "tests"),
        "ONESTREAM_GPU_RESULTS": str(tmp_path),
        # NumPy's BLAS spins where several threads call it on few cores.
        "OPENBLAS_NUM_THREADS": "1",
    }
    environment.pop("ONESTREAM_NO_SKIPS", None)
    plugins = ["-p", "absent_packages", "-p", "gpu_suite_on_host"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, "tests/gpu", "-k", chosen],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-3000:]
    assert "GPU suite on host memory" in run.stdout
    saved = json.loads((tmp_path / "host-memory" / "gpu-suite.json").read_text())
    figures = {figure["what"]: figure["value"] for figure in saved["figures"]}
    # What the GPU decodes differs by a level there, in every sample.
    (largest,) = [value for what, value in figures.items() if what.startswith("cvcuda, crop: largest difference")]
    assert 0 < largest <= 2
    assert figures["engine"] == "HostEngine"
    assert figures["host waits of our own for a batch"] == 1
    assert figures["cascade: host waits of our own for a batch, 3 stages"] == 3
    assert figures["cascade: streams on which regions and networks ran"] == 1
    assert figures["video, h264, nvdec: largest difference, levels"] == 0
    assert figures["matte: packets of composed H.264 that differ from the CPU's"] == 0
