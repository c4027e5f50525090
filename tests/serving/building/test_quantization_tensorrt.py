"""The network in int8 for TensorRT: what its file holds, when a GPU runs it, and real plans of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from int8_networks import COLORS, IMAGENET, color_network, in_int8, pipeline_file, searched
from onnx import numpy_helper

from onestream.serving.building.build import Built, build
from onestream.serving.building.quantization.quantize import Quantizable
from onestream.serving.built import certificate
from onestream.serving.built.triton_config import from_text
from onestream.serving.engine import OnnxRuntimeEngine, library
from onestream.serving.engine.plan import PlanOptions, build_plan, rtx_capabilities
from onestream.serving.engine.quantization import Settings
from onestream.serving.errors import BadNetwork, BadPipeline
from onestream.serving.graph.onnx_postprocess import fused_network
from onestream.serving.server.tensorrt_prebuild import PlanRequest, Plans, build_apart, fit_plans, plans_needed

ADA = (8, 9)
FILES = ("colors_model/1/model.tensorrt.onnx", "colors_fused/1/model.tensorrt.onnx")
LAYERS = ("Conv", "Gemm")
needs_rtx = pytest.mark.skipif(not library.IS_RTX, reason="TensorRT itself builds on a GPU only")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return in_int8(tmp_path_factory.mktemp("tensorrt"))


def precision_on_gpu(built: Built) -> set[str]:
    """What the configurations for a GPU say."""
    configs = [
        from_text((built.folder / model / "config.pbtxt").read_text()) for model in ("colors_model", "colors_fused")
    ]
    return {json.loads(config.parameters["gpu"].string_value)["precision"] for config in configs}


@pytest.mark.parametrize("normalize", [None, IMAGENET])
def test_the_file_keeps_tensorrt_s_rules(normalize: dict[str, object] | None, tmp_path: Path) -> None:
    """https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/quantized-types-explicit-quantization.html"""
    made = searched(tmp_path, normalize=normalize, for_tensorrt=True)[0].for_tensorrt
    graph = made.graph
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    made_by = {name: node for node in graph.node for name in node.output}
    for node in graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            scale, zero = (constants[name] for name in node.input[1:])
            assert (scale > 0).all()
            assert zero.dtype == np.int8
            assert not zero.any()
    layers = [node for node in graph.node if node.op_type in LAYERS]
    assert len(layers) == 4
    for node in layers:
        activation, weights = (made_by[name] for name in node.input[:2])
        assert made_by[activation.input[0]].op_type == "QuantizeLinear"
        assert constants[activation.input[1]].size == 1, "one scale for an activation"
        # Of a convolution the first axis is that of its outputs, of the linear layer's matrix the second.
        axis = next(attribute.i for attribute in weights.attribute if attribute.name == "axis")
        values, scales = (constants[name] for name in weights.input[:2])
        assert values.dtype == np.int8
        assert (axis, len(scales)) == ((0, values.shape[0]) if node.op_type == "Conv" else (1, values.shape[1]))
        assert constants[node.input[2]].dtype == np.float32, "TensorRT adds the bias in float32"
    # Nothing is rounded but what layers take, so that a layer and what follows it can be one kernel.
    read_by_layers = {name for node in layers for name in node.input}
    rounded = [node for node in graph.node if node.op_type == "DequantizeLinear"]
    assert all(node.output[0] in read_by_layers for node in rounded)
    assert graph.node[0].name.startswith("onestream/"), "the definition normalizes: TensorRT takes no zero of 127"
    assert {"Sub", "Div"} & {node.op_type for node in graph.node}


def test_its_certificate_says_how_it_answers(built: Built) -> None:
    price = certificate.read(built.folder / "colors_fused").quantization
    assert (price.tensorrt.agreement.share, price.tensorrt.agreement.of) == (1, 12)
    assert price.tensorrt.settings.weights == "per_channel"
    assert f"on a GPU TensorRT runs it in int8: {price.tensorrt.agreement}, as ONNX Runtime computes it" in built.notes
    in_float32, for_cpu, signed = (
        OnnxRuntimeEngine(built.folder / "colors_model" / "1" / name, threads=1)
        for name in ("model.float32.onnx", "model.onnx", "model.tensorrt.onnx")
    )
    rng = np.random.default_rng(1)
    for color in range(len(COLORS)):
        pixels = rng.integers(0, 100, (1, 32, 32, 3), dtype=np.uint8)
        pixels[..., color] += 80
        expected, other, got = (engine.run({"pixels": pixels})["logits"][0] for engine in (in_float32, for_cpu, signed))
        assert expected.argmax() == other.argmax() == got.argmax() == color
        for found in (other, got):
            assert np.abs(expected - found).max() < 0.05 * np.ptp(expected)
        assert not np.array_equal(got, other)
        assert not np.array_equal(got, expected)


def test_a_gpu_runs_it_unless_it_is_told_otherwise(tmp_path: Path) -> None:
    built = in_int8(tmp_path)
    assert precision_on_gpu(built) == {"int8"}
    needed = plans_needed(built.folder)
    assert {(request.network.name, request.precision) for request in needed} == {("model.tensorrt.onnx", "int8")}
    # Another precision needs no calibration: both networks were made.
    file, own = pipeline_file(tmp_path, color_network(), gpu={"precision": "fp16"})
    other = build(file, folder=built.folder, onnx_file=own, precision="int8")
    assert precision_on_gpu(other) == {"fp16"}
    assert not any("GPU" in note for note in other.notes)
    assert {request.network.name for request in plans_needed(other.folder)} == {"model.float32.onnx"}
    pipeline_file(tmp_path, color_network(), gpu={"precision": "int8"})
    again = build(file, folder=other.folder, onnx_file=own, precision="int8")
    assert precision_on_gpu(again) == {"int8"}
    assert {path.name for path in again.written} == {"config.pbtxt"}


def test_a_gpu_runs_float32_where_tensorrt_s_int8_costs_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantized = Quantizable.for_tensorrt

    def without_weights(network: Quantizable, settings: Settings) -> onnx.ModelProto:
        made = quantized(network, settings)
        for tensor in made.graph.initializer:
            values = numpy_helper.to_array(tensor)
            if tensor.name.startswith("matrix") and values.ndim == 2:
                tensor.CopyFrom(numpy_helper.from_array(np.zeros_like(values), tensor.name))
        return made

    monkeypatch.setattr(Quantizable, "for_tensorrt", without_weights)
    network = color_network(layers=1)
    built = in_int8(tmp_path, network, anew=True)
    found = built.quantizations["colors"]
    assert found.tensorrt.agreement.share < found.min_agreement <= found.agreement.share
    assert not any((built.folder / name).exists() for name in FILES)
    assert precision_on_gpu(built) == {"fp32"}
    (said,) = [note for note in built.notes if "GPU" in note]
    assert said.startswith("on a GPU it runs in float32: int8 for TensorRT would cost too much: best classes with a ")
    assert said.endswith(f"The nearest setting was {found.tensorrt.settings}")
    again = build(tmp_path / "colors.yaml", folder=built.folder, onnx_file=tmp_path / "colors.onnx", precision="int8")
    assert (again.written, again.notes, again.quantizations) == ([], built.notes, built.quantizations)
    # Who asks for it gets no other.
    before = {path: path.read_bytes() for path in built.folder.rglob("*") if path.is_file()}
    with pytest.raises(BadNetwork, match=r"int8 for TensorRT would cost too much: .* Nothing was installed"):
        in_int8(tmp_path, network, serving={"gpu": {"precision": "int8"}}, anew=True)
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(
    ("serving", "said"),
    [
        ({"gpu": {"precision": "int8"}}, "goes with serving.precision int8, which calibrates both; got float32"),
        ({"precision": "int8", "gpu": {"precision": "int8", "engine": "onnxruntime"}}, "is for engine tensorrt"),
    ],
)
def test_int8_on_a_gpu_alone_is_refused(tmp_path: Path, serving: dict[str, Any], said: str) -> None:
    file, own = pipeline_file(tmp_path, color_network(), **serving)
    with pytest.raises(BadPipeline, match=said):
        build(file, folder=tmp_path / "repository", onnx_file=own)


@needs_rtx
@pytest.mark.slow
def test_every_form_has_a_plan_for_a_named_gpu(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONESTREAM_CACHE", str(tmp_path / "cache"))

    def for_ada(
        requests: Sequence[PlanRequest], progress: Callable[[str], None], stopping: Callable[[], bool]
    ) -> list[Plans]:
        return build_apart([one.model_copy(update={"compute_capability": ADA}) for one in requests], progress, stopping)

    lines: list[str] = []
    view = fit_plans(built.folder, tmp_path / "view", progress=lines.append, build=for_ada)
    assert (view / "colors_model" / "1" / "model.plan").read_bytes()[:4] == b"vtrt"
    assert (
        sum("building a TensorRT plan: int8, batches of 1 to 64, compute capability 8.9" in line for line in lines) == 2
    )


@needs_rtx
def test_tensorrt_computes_its_layers_in_int8(built: Built) -> None:
    from onestream.serving.engine.library import LOG, trt
    from onestream.serving.engine.served import cast_first, load_served

    config = from_text((built.folder / "colors_fused" / "config.pbtxt").read_text())
    fused = fused_network(built.folder / FILES[1], config.parameters["postprocess"].string_value)
    builder = trt.Builder(LOG)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    assert trt.OnnxParser(network, LOG).parse(cast_first(load_served(fused)).SerializeToString())
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    rounded = [layer for layer in layers if layer.type == trt.LayerType.QUANTIZE]
    assert {layer.get_output(0).dtype for layer in rounded} == {trt.int8}
    assert len(rounded) >= 4
    # Turing has no linear layer in float32 (test_plan.py), as the last one stays.
    capabilities = sorted({*rtx_capabilities()} - {(7, 5)})
    for capability in (capabilities[0], capabilities[-1]):
        assert build_plan(fused, PlanOptions(max_batch_size=4, precision="int8"), compute_capability=capability).plan


@needs_rtx
def test_a_plan_in_int8_takes_a_network_that_was_made_for_it(built: Built) -> None:
    in_float32 = (built.folder / "colors_model" / "1" / "model.float32.onnx").read_bytes()
    with pytest.raises(BadNetwork, match="precision int8 takes a network that onestream build made for it"):
        build_plan(in_float32, PlanOptions(max_batch_size=4, precision="int8"), compute_capability=ADA)
