"""On a machine with two pretended GPUs, every model works on the one that Triton placed it on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

# In a process of its own: it puts host memory in the place of a GPU.
_SCRIPT = """
import sys
sys.path[:0] = [{tests!r}, {here!r}]
import host_gpu
import host_nvdec
host_nvdec.install()
host_gpu.install()
from collections import Counter
from pathlib import Path
import onestream.preprocess.cuda.device as device_module
import onestream.serving.engine as engine_module
from gpu_forms import by_triton
from onestream.preprocess.backends import dali as dali_module
from triton_stand_in import TRITON, triton

streams, engines, dali = Counter(), [], []

class Gpu(host_gpu.HostDevice):
    def stream(self):
        streams[self.index] += 1
        return super().stream()

gpus = [Gpu(0), Gpu(1)]
device_module.open_device = lambda index=0: gpus[index]
open_host_engine = engine_module.open_engine

def open_engine(model, *, device, **options):
    engines.append(device.index)
    return open_host_engine(model, **options)

class NoDali:
    def __init__(self, *_arguments, gpu_index, **_options):
        dali.append(gpu_index)

engine_module.open_engine = open_engine
dali_module.Dali = NoDali
sys.modules[TRITON] = triton()
dali_too = {{"backend": "dali"}}
forms = [("preprocess", {{}}), ("preprocess", dali_too), ("fused", {{"max_batch_size": 2}}), ("video", {{}})]
for role, options in forms:
    streams.clear(), engines.clear(), dali.clear()
    model = by_triton(Path({repository!r}) / f"classify_{{role}}", gpu=1, **options)
    if role == "video":
        assert model._gpu._device is gpus[1]
    else:
        assert set(streams) == {{1}}, (role, streams)
    assert engines == ([1] if role == "fused" else []), (role, engines)
    assert dali == ([1] if options.get("backend") == "dali" else []), (role, dali)
    model.finalize()
print("done")
"""


@pytest.mark.slow
def test_every_model_works_on_the_gpu_that_triton_names(repository: Path) -> None:
    script = _SCRIPT.format(tests=str(ROOT / "tests"), here=str(Path(__file__).parent), repository=str(repository))
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert run.stdout.strip().endswith("done"), run.stderr[-2000:]


def test_dali_s_pipeline_is_for_the_gpu_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    from onestream.preprocess.backends import dali_graph

    asked: list[int | None] = []
    monkeypatch.setattr("onestream.preprocess.cuda.device.driver_visible", lambda: True)
    monkeypatch.setattr(dali_graph, "Pipeline", lambda **options: asked.append(options["device_id"]))
    for gpu in (0, 1):
        dali_graph.new_pipeline(device="gpu", max_batch_size=1, threads=1, gpu_index=gpu)
    dali_graph.new_pipeline(device="cpu", max_batch_size=1, threads=1, gpu_index=1)
    assert asked == [0, 1, None]
