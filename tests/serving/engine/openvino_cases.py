"""OpenVINO runs the networks that ONNX Runtime runs, in bfloat16 too, where the build states the price."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import prompted
import pytest
from int8_networks import HALVES, SIDE, color_network, pictures, pipeline_file
from networks import network_of
from onnx import helper

from onestream.preprocess import Decode, Definition, Normalize, Output, Resize
from onestream.serving.building.build import Built, build
from onestream.serving.building.quantization.calibration import Calibration
from onestream.serving.built import certificate
from onestream.serving.engine.cpu import Inputs, OnnxRuntimeEngine
from onestream.serving.engine.openvino_cpu import OpenVinoEngine, import_openvino
from onestream.serving.engine.quantization import Rounding
from onestream.serving.errors import BadNetwork, BadPipeline
from onestream.serving.graph.onnx_graph import prepare
from onestream.serving.models.in_process import InProcess

openvino = import_openvino()
IN_BFLOAT16 = "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
needs_bfloat16 = pytest.mark.skipif(not IN_BFLOAT16, reason="this processor has no instructions for bfloat16")
PIXELS = np.random.default_rng(2).integers(0, 256, (5, SIDE, SIDE, 3), dtype=np.uint8)


def built(
    folder: Path, network: onnx.ModelProto | None = None, *, precision: str = "bf16", engine: str = "openvino"
) -> Built:
    """The repository of a network, by default a classifier of colours."""
    file, own = pipeline_file(folder, network or color_network(), cpu={"engine": engine}, precision=precision)
    shown = Calibration(pictures=pictures(folder / "pictures")) if precision != "float32" else None
    return build(file, folder=folder / "repository", onnx_file=own, calibration=shown)


@pytest.mark.parametrize("size", [(SIDE, SIDE), None], ids=["one size", "any size"])
def test_it_answers_as_onnx_runtime_from_several_threads(size: tuple[int, int] | None) -> None:
    resize = Resize(mode="exact", size=size) if size else Resize(mode="shorter", size=SIDE, filter="bilinear")
    definition = Definition(operations=[Decode(), resize, Normalize(**HALVES), Output()])
    network = color_network()
    if size is None:
        for number, side in ((2, "height"), (3, "width")):
            network.graph.input[0].type.tensor_type.shape.dim[number].dim_param = side
    served = prepare(network, definition).SerializeToString()
    one, other = OnnxRuntimeEngine(served, threads=1), OpenVinoEngine(served, threads=1)
    assert other.metadata == one.metadata
    assert (other.definition, other.output_names, other.price) == (definition, one.output_names, None)
    answers: list[dict[str, np.ndarray]] = []
    threads = [threading.Thread(target=lambda: answers.append(other.run({"pixels": PIXELS}))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for answer in answers:
        np.testing.assert_allclose(answer["logits"], one.run({"pixels": PIXELS})["logits"], rtol=0, atol=1e-4)
        # Nothing that a later run overwrites.
        np.testing.assert_array_equal(answer["logits"], answers[0]["logits"])


def test_nothing_is_told_to_anybody() -> None:
    told = "import sys; from onestream.serving.engine.openvino_cpu import import_openvino as one; one().Core(); "
    told += "print([name for name in sys.modules if 'telemetry' in name and sys.modules[name] and 'ovc' not in name])"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_threads_may_be_the_first_to_give_arrays_at_once() -> None:
    first = """
import builtins, threading, time
from onestream.serving.engine.openvino_cpu import import_openvino
openvino, usual = import_openvino(), builtins.__import__
builtins.__import__ = lambda *given, **named: (time.sleep(0.2), usual(*given, **named))[1]  # others run meanwhile
threads = [threading.Thread(target=openvino.Type.f32.to_dtype) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
    subprocess.run([sys.executable, "-c", first], check=True, timeout=60)


@pytest.mark.parametrize("batch", ["batch", 1])
def test_a_network_of_many_inputs(batch: int | str) -> None:
    definition = Definition.model_validate(prompted.FIELDS["preprocess"])
    served = prepare(prompted.prompted(batch), definition, inputs=prompted.NETWORK_INPUTS)
    given, rows = prompted.two_images()
    found = OpenVinoEngine(served.SerializeToString(), threads=1).run(given)["y"]
    np.testing.assert_allclose(found, rows, rtol=1e-5)


def test_a_model_runs_with_the_engine_of_its_file(tmp_path: Path) -> None:
    shown = [file.read_bytes() for file in pictures(tmp_path / "shown", count=3)]
    folder = built(tmp_path, precision="float32").folder / "colors_fused"
    assert 'key: "engine"' in (folder / "configs" / "cpu.pbtxt").read_text()
    ran: list[str] = []

    class Noted(OpenVinoEngine):
        def run_one(self, inputs: Inputs) -> list[np.ndarray]:
            ran.append("openvino")
            return super().run_one(inputs)

    by_name = InProcess(folder)(shown)
    noted = InProcess(folder, engine=Noted)(shown)
    by_the_other = InProcess(folder, engine=OnnxRuntimeEngine)(shown)
    assert len(ran) >= len(shown)
    for one, same, other in zip(by_name, noted, by_the_other, strict=True):
        np.testing.assert_array_equal(one["scores"], same["scores"])
        np.testing.assert_allclose(one["scores"], other["scores"], atol=1e-5)


@needs_bfloat16
def test_bfloat16_has_a_price_and_is_kept(tmp_path: Path) -> None:
    made = built(tmp_path)
    price = made.quantizations["colors"]
    assert isinstance(price, Rounding)
    assert certificate.read(made.folder / "colors_model").quantization == price
    assert (price.pictures.calibrated, price.pictures.held_out, price.engine) == (0, 24, "openvino")
    assert price.agreement.share == 1
    # Eight bits of mantissa: what was computed was not float32.
    assert 1e-5 < price.agreement.largest_change < 0.1
    for name, computes_in in (("model.onnx", "bf16"), ("model.float32.onnx", "float32")):
        assert OpenVinoEngine(made.folder / "colors_fused" / "1" / name, threads=1).computes_in == computes_in
    again = build(tmp_path / "colors.yaml", folder=made.folder)
    assert (again.written, again.quantizations["colors"]) == ([], price)


@needs_bfloat16
def test_bfloat16_that_costs_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = OpenVinoEngine.run_one

    def turned(self: OpenVinoEngine, inputs: Inputs) -> list[np.ndarray]:
        return [-one if self.computes_in == "bf16" else one for one in run(self, inputs)]

    monkeypatch.setattr(OpenVinoEngine, "run_one", turned)
    with pytest.raises(BadNetwork, match=r"bf16 would cost too much: .* min_agreement is 0\.97"):
        built(tmp_path)
    assert not (tmp_path / "repository").exists()


def test_bfloat16_is_refused_where_nothing_computes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadPipeline, match=r"bf16 is for serving\.cpu\.engine openvino, got onnxruntime; write"):
        built(tmp_path, engine="onnxruntime")
    monkeypatch.setattr(openvino.Core, "get_property", lambda *_: ["FP32", "INT8"])
    with pytest.raises(BadPipeline, match="engine openvino does not compute in bfloat16 on this processor"):
        built(tmp_path)
    with pytest.raises(BadPipeline, match=r"serving\.cpu\.engine openvino is for the form python"):
        build(tmp_path / "colors.yaml", folder=tmp_path / "other", form="dali-backend", precision="float32")


def test_a_network_that_it_does_not_take_is_refused_at_the_build(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("ReduceMean", ["input"], ["mean"], axes=[2, 3], keepdims=0),
        helper.make_node("Det", ["matrix"], ["det"]),
        helper.make_node("Mul", ["mean", "det"], ["logits"]),
    ]
    inputs, outputs = {"input": ["batch", 3, SIDE, SIDE]}, {"logits": ["batch", 3]}
    network = network_of(nodes, inputs, outputs, {"matrix": np.eye(2, dtype=np.float32)})
    for precision in ("float32", "bf16"):
        with pytest.raises(BadNetwork, match=r"OpenVINO does not take the network: .*operations: Det.*onnxruntime may"):
            built(tmp_path, network, precision=precision)
