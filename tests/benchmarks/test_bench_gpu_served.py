"""Both forms by a real server, in turns; here by the form for a CPU, which the benchmark itself never takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from host_gpu import HostDevice

from benchmarks.gpu.served import measure_served, why_not
from benchmarks.gpu.setup import GpuPlan, set_up
from onestream.measure.load.perf_analyzer import VARIABLE
from onestream.preprocess.cuda.device import driver_visible
from onestream.serving.pipeline import Pipeline

ROOT = Path(__file__).parents[2]


@pytest.mark.needs_triton
@pytest.mark.slow
def test_both_forms_are_measured_in_every_round(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # without perf_analyzer our own client asks
    said: list[str] = []
    setup = set_up(
        GpuPlan(sizes=("500x375",), photos=4, compared=1, rounds=2, served_s=0.5),
        cast(Any, HostDevice()),
        cores=2,
        pipeline=Pipeline.from_file(ROOT / "pipelines" / "classify.yaml"),
        network=repository / "classify_fused" / "1" / "model.onnx",
        repository=repository,
        photos_folder=ROOT / "examples" / "photos",
        progress=said.append,
    )
    rates = measure_served(setup, device="cpu", concurrency=2)
    # The second round begins with the other model.
    assert [(one.round, one.setting) for one in rates] == [
        (0, "classify"), (0, "classify_fused"), (1, "classify_fused"), (1, "classify"),
    ]  # fmt: skip
    assert all((one.size, one.in_flight) == ("500x375", 2) and one.images_per_s > 0 for one in rates)
    assert "served, 500x375: round 2 of 2" in said


@pytest.mark.skipif(driver_visible(), reason="a Triton here may serve on the GPU")
def test_a_machine_without_a_gpu_serves_nothing_on_one() -> None:
    reason = why_not()
    assert reason is not None
    assert reason.startswith("no Triton with GPU backends here")
