"""Which engine is loaded, what is said where it cannot be, and the table of engines, which all others ask."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import prompted
import pytest
from compared_names import compared, product_files
from networks import network_of
from onnx import TensorProto, helper
from served_networks import convolutional, definition, served

from onestream.preprocess import BackendMissing, Definition, StampMismatch
from onestream.preprocess.cuda.device import Device, GpuKind, driver_visible
from onestream.serving.engine import library
from onestream.serving.engine.cache import ensure_plan
from onestream.serving.engine.plan import PlanOptions
from onestream.serving.engine.served import load_served, tensors
from onestream.serving.engine.table import CPU_ENGINES, ENGINES, check_stamp, open_engine
from onestream.serving.errors import BadNetwork, BadPlan
from onestream.serving.graph.onnx_graph import prepare
from onestream.serving.pipeline import CpuEngineName, CpuOptions, EngineName, GpuOptions

NO_DEVICE = Device.__new__(Device)
"""Stands for a GPU in calls that end before they ask it anything."""


def gpu(major: int, minor: int) -> Device:
    """What a driver would say of a GPU of this capability."""
    capability = SimpleNamespace(major=major, minor=minor)
    return Device(SimpleNamespace(compute_capability=capability, device_id=0, name="NVIDIA of a test"))


def network() -> bytes:
    return bytes(served(convolutional()).SerializeToString())


def test_what_is_not_the_network_of_the_definition_is_refused(tmp_path: Path) -> None:
    check_stamp(network(), definition())
    with pytest.raises(StampMismatch, match="first difference: operations"):
        open_engine(network(), GpuOptions(), NO_DEVICE, definition=definition(layout="NHWC"))
    model = served(convolutional())
    del model.metadata_props[:]
    with pytest.raises(StampMismatch, match="carries no definition"):
        open_engine(model.SerializeToString(), GpuOptions(), NO_DEVICE, definition=definition())
    # Named without its folder.
    with pytest.raises(BadNetwork, match=r"^model\.onnx: No such file or directory$"):
        open_engine(tmp_path / "model.onnx", GpuOptions(), NO_DEVICE, definition=definition())


def test_a_model_on_a_cpu_imports_nothing_of_a_gpu_of_video_and_nothing_that_quantizes() -> None:
    unwanted = ("onnx", "onnxruntime.quantization", "tensorrt_rtx", "tensorrt", "cuda", "av")
    unwanted += ("onestream.preprocess.cuda", "onestream.preprocess.video", "onestream.serving.video")
    # Nor what cascades, other kinds and the build need.
    unwanted += ("yaml", "onestream.serving.cascade", "onestream.serving.pipeline", "onestream.postprocess.kinds.table")
    script = f"""
import sys
from unittest.mock import MagicMock
sys.modules["triton_python_backend_utils"] = MagicMock()
import onestream.serving.models.image
from onestream.postprocess.kinds import read_postprocess
read_postprocess('{{"kind": "classification"}}')
assert len([name for name in sys.modules if name.startswith("onestream.")]) <= 60
print(*(name for name in sys.modules for one in {unwanted} if f"{{name}}.".startswith(f"{{one}}.")))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_without_tensorrt_its_absence_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tensorrt", "tensorrt_rtx"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("library", "plan", "cache", "tensorrt"):
        monkeypatch.delitem(sys.modules, f"onestream.serving.engine.{name}", raising=False)
    with pytest.raises(BackendMissing, match=r"there is no TensorRT here: .*serving\.gpu\.engine: onnxruntime"):
        open_engine(network(), GpuOptions(), NO_DEVICE, definition=definition())


def test_a_tensorrt_that_does_not_load_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tensorrt.py").write_text("raise ImportError('libnvinfer.so.11: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    for name in ("tensorrt", "onestream.serving.engine.library"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(BackendMissing, match=r"tensorrt does not load: libnvinfer\.so\.11: cannot open shared object"):
        import onestream.serving.engine.library  # noqa: F401


def test_the_placeholder_package_is_not_taken_for_tensorrt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tensorrt.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tensorrt", raising=False)
    monkeypatch.delitem(sys.modules, "onestream.serving.engine.library")
    from onestream.serving.engine.library import NAME

    assert NAME == "tensorrt_rtx"


def test_inputs_and_outputs_are_read_from_the_file_or_inferred() -> None:
    model = load_served(network())
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "classes"
    for one in (load_served(network()), model):
        (pixels,), (scores,) = tensors(one)
        assert (pixels.name, pixels.dtype, pixels.dims) == ("pixels", "uint8", (32, 32, 3))
        assert (scores.name, scores.dtype, scores.dims) == ("scores", "float32", (10,))


def test_inputs_and_outputs_of_any_size_are_refused() -> None:
    shown = Definition.model_validate(prompted.FIELDS["preprocess"])
    with pytest.raises(BadNetwork, match=r"input 'points' has size \[-1, 2\]; on a GPU every size must be known"):
        tensors(prepare(prompted.prompted(), shown, inputs=prompted.NETWORK_INPUTS))
    nodes = [
        helper.make_node("Cast", ["pixels"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("NonZero", ["float"], ["found"]),
    ]
    inputs, outputs = {"pixels": ["batch", 32, 32, 3]}, {"found": [4, "count"]}
    model = network_of(nodes, inputs, outputs, dtype=TensorProto.UINT8, gives=TensorProto.INT64, opset=17)
    with pytest.raises(BadNetwork, match=r"output 'found' has size \[None\]; on a GPU every size must be known"):
        tensors(model)


@pytest.mark.skipif(not library.IS_RTX, reason="TensorRT itself builds on a GPU only")
@pytest.mark.skipif(driver_visible(), reason="with a driver the plan may well load")
def test_a_plan_that_tensorrt_does_not_load_is_one_line_with_its_reason(tmp_path: Path) -> None:
    from onestream.serving.engine.tensorrt import TensorRtEngine

    plan = ensure_plan(network(), PlanOptions(4), gpu=GpuKind((8, 9), ""), folder=tmp_path)
    with pytest.raises(BadPlan, match=r"cannot load \w+\.plan: .*CUDA driver version is insufficient") as error:
        TensorRtEngine(plan, gpu(8, 9))
    assert "\n" not in str(error.value)
    with pytest.raises(BadPlan, match=r"was built for compute capability 8\.9; this GPU has 9\.0"):
        TensorRtEngine(plan, gpu(9, 0))


def test_cuda_s_libraries_are_loaded_before_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime does not look for the packages of CUDA and cuDNN that its own extras bring."""
    import onnxruntime

    asked: list[str] = []
    model = network()

    class Session:
        def __init__(self, _model: bytes, _options: object, *, providers: list[tuple[str, dict[str, str]]]) -> None:
            asked.append(f"network on GPU {providers[0][1]['device_id']}")

        def get_providers(self) -> list[str]:
            return ["CPUExecutionProvider"]

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: print("Failed to load") or asked.append("libraries"))
    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    engine = open_engine(model, GpuOptions(engine="onnxruntime"), gpu(9, 0), definition=definition())
    with pytest.raises(BackendMissing, match="cannot load its CUDA provider"):
        engine.open(SimpleNamespace(handle=7))
    assert asked == ["libraries", "network on GPU 0"]


def test_nobody_compares_the_name_of_an_engine() -> None:
    assert [
        line for path in product_files(but={"serving/engine"}) for line in compared(path, {*ENGINES, *CPU_ENGINES})
    ] == []


def test_names_are_those_of_the_table() -> None:
    assert get_args(EngineName) == tuple(ENGINES)
    assert get_args(CpuEngineName) == tuple(CPU_ENGINES)
    assert CpuOptions().engine == "onnxruntime"
