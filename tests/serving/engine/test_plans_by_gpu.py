"""Plans for a machine whose GPUs differ, by the process that builds them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from served_networks import ADA, convolutional, served

from onestream.preprocess.cuda.device import GpuKind
from onestream.serving.engine import __main__ as engine_process
from onestream.serving.engine import library
from onestream.serving.server.tensorrt_prebuild import PlanRequest

pytestmark = pytest.mark.skipif(
    not library.IS_RTX, reason="TensorRT itself builds on a GPU only: see test_engine_on_gpu.py"
)


class ThreeGpus:
    """Three pretended GPUs of two kinds; ``entered`` are those that became the current one, in order."""

    kinds = (GpuKind(ADA, "NVIDIA L4"), GpuKind((8, 0), "NVIDIA A100-PCIE-40GB"), GpuKind(ADA, "NVIDIA L4"))

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered: list[int] = []
        monkeypatch.setattr(engine_process, "gpu_count", lambda: len(self.kinds))
        monkeypatch.setattr(engine_process, "open_device", self._open)
        # As the code under test finds it: other tests import it anew.
        from onestream.serving.engine import library

        # Its plans are of one capability, whatever GPU is there; what is asked for is what TensorRT would be asked for.
        monkeypatch.setattr(library, "IS_RTX", False)

    def _open(self, index: int) -> SimpleNamespace:
        self.entered.append(index)
        return SimpleNamespace(kind=self.kinds[index])


@pytest.mark.parametrize(("gpus", "entered", "built"), [((), [0, 1, 2], ["8.9", "8.0"]), ((1,), [1], ["8.0"])])
def test_every_kind_of_gpu_gets_a_plan(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    gpus: tuple[int, ...],
    entered: list[int],
    built: list[str],
) -> None:
    monkeypatch.setenv("ONESTREAM_CACHE", str(tmp_path / "cache"))
    machine = ThreeGpus(monkeypatch)
    (tmp_path / "model.onnx").write_bytes(served(convolutional()).SerializeToString())
    request = PlanRequest(model="m", version="1", network=tmp_path / "model.onnx", max_batch_size=4, gpus=gpus)
    assert engine_process.main([request.to_json()]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (plans,) = [answer["plans"] for answer in answers if "plans" in answer]
    assert machine.entered == entered
    assert list(plans) == built
    assert len({Path(path).read_bytes() for path in plans.values()}) == len(built)
    assert sum("building a TensorRT plan" in str(answer) for answer in answers) == len(built)
