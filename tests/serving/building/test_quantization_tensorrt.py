"""How a build in int8 finds its settings, for CPUs and for TensorRT: what it prefers, keeps in float32, and plans."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from int8_networks import COLORS, IMAGENET, color_network, in_int8, pipeline_file, searched
from onnx import numpy_helper

from onestream.serving.building.build import Built, build
from onestream.serving.building.gpu_precision import decided
from onestream.serving.building.quantization import search
from onestream.serving.building.quantization.quantize import Quantizable
from onestream.serving.built import certificate
from onestream.serving.built.triton_config import from_text
from onestream.serving.engine import OnnxRuntimeEngine, library
from onestream.serving.engine.plan import PlanOptions, build_plan, rtx_capabilities
from onestream.serving.engine.quantization import Settings
from onestream.serving.errors import BadNetwork, BadPipeline
from onestream.serving.graph.onnx_postprocess import fused_network
from onestream.serving.pipeline import Pipeline
from onestream.serving.server.tensorrt_prebuild import PlanRequest, Plans, build_apart, fit_plans, plans_needed


def network_with_wide_channels(*places: int) -> onnx.ModelProto:
    """Those of these layers have a channel of a constant that nothing reads, and whose width ruins the others."""
    network = color_network(layers=8)
    for tensor in network.graph.initializer:
        if tensor.name in {f"bias_{place}" for place in places}:
            values = numpy_helper.to_array(tensor).copy()
            values[-1] = 3e4
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return network


def test_the_layers_that_int8_ruins_stay_in_float32(tmp_path: Path) -> None:
    """Three parts of two layers each, which are tried one by one and taken together."""
    wide = (2, 5)
    made, found = searched(tmp_path, network_with_wide_channels(*wide))
    assert found.agreement.share == 1
    # What makes the wide tensor, and what reads it.
    assert {f"conv_{place + at}" for place in wide for at in (0, 1)} <= set(found.settings.kept_layers)
    assert found.settings.kept == "layers 3-4 and 5-6 and 7-8 of 9"
    # Those before it were tried first and cost too much.
    assert all(one.agreement.share < found.min_agreement for one in found.tried[:-1])
    nodes = made.network.graph.node
    made_by = {name: node.op_type for node in nodes for name in node.output}
    assert set(found.settings.kept_layers) < {node.name for node in nodes}
    for node in nodes:
        if node.op_type == "Conv":
            in_floats = node.name in found.settings.kept_layers
            assert (made_by.get(node.input[1]) != "DequantizeLinear") == in_floats


@pytest.mark.parametrize(
    ("times", "chosen"),
    [
        # In the order of trying: minmax per channel and per tensor, then percentile, then entropy.
        ([3.0, 2.0, 3.0, 3.0, 3.0, 3.0], Settings(weights="per_tensor", ranges="minmax")),
        ([2.05, 2.0, 3.0, 2.0, 3.0, 3.0], Settings(weights="per_channel", ranges="minmax")),
        ([3.0, 3.0, 3.0, 3.0, 2.04, 2.0], Settings(weights="per_channel", ranges="entropy")),
    ],
)
def test_of_equal_settings_the_first_that_is_as_fast_as_any_is_taken(
    times: list[float], chosen: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed(engines: Sequence[object], *_arguments: object, **_options: object) -> list[float]:
        return [5.0, *times][: len(engines)]

    monkeypatch.setattr(search, "medians_ms", timed)
    found = searched(tmp_path)[1]
    assert {one.agreement.rank for one in found.tried} == {found.agreement.rank}, "all are equal"
    assert found.settings == chosen
    assert found.speed.float32_ms == 5.0
    assert found.speed.ms == times[[one.settings for one in found.tried].index(chosen)]


def test_a_setting_that_does_not_work_ends_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    works = Quantizable.for_cpu

    def stumble(_network: Quantizable, _settings: Settings) -> onnx.ModelProto:
        raise BadNetwork("the tools stumble")

    def for_cpu(network: Quantizable, settings: Settings) -> onnx.ModelProto:
        made = works(network, settings)
        if settings.ranges == "percentile":
            stumble(network, settings)
        if settings.ranges == "entropy":
            # It is written, and ONNX Runtime cannot load it.
            made.graph.node[-1].op_type = "NoSuchOperator"
        return made

    monkeypatch.setattr(Quantizable, "for_cpu", for_cpu)
    found = searched(tmp_path)[1]
    assert {one.settings.ranges for one in found.tried} == {"minmax"}
    assert found.agreement.share == 1
    monkeypatch.setattr(Quantizable, "for_cpu", stumble)
    with pytest.raises(BadNetwork, match="the tools stumble"):
        searched(tmp_path)


def test_a_gpu_that_runs_float32_is_told_why(tmp_path: Path) -> None:
    built = in_int8(tmp_path, serving={"gpu": {"engine": "onnxruntime"}})
    assert built.notes == [
        "on a GPU it runs in float32: int8 there is for engine tensorrt, and serving.gpu.engine is onnxruntime"
    ]
    model = built.folder / "colors_model"
    on_gpu, on_cpu = (from_text((model / name).read_text()) for name in ("config.pbtxt", "configs/cpu.pbtxt"))
    assert (on_gpu.default_model_filename, on_cpu.default_model_filename) == ("model.float32.onnx", "")
    assert not list(built.folder.glob("*/1/model.tensorrt.onnx"))
    # The network that was calibrated for that engine is kept, and TensorRT has none.
    file, own = pipeline_file(tmp_path, color_network())
    again = build(file, folder=built.folder, onnx_file=own, precision="int8")
    assert again.notes == [
        "on a GPU it runs in float32: there is no network that was calibrated for TensorRT; calibrate again: "
        "--calibrate PHOTOS"
    ]
    file, own = pipeline_file(tmp_path, color_network(), gpu={"precision": "int8"})
    before = {path: path.read_bytes() for path in built.folder.rglob("*") if path.is_file()}
    with pytest.raises(BadNetwork, match=r"there is no network for it: .*--calibrate PHOTOS"):
        build(file, folder=built.folder, onnx_file=own, precision="int8")
    assert {path: path.read_bytes() for path in built.folder.rglob("*") if path.is_file()} == before


def test_the_setting_does_not_depend_on_the_order_of_the_pictures(tmp_path: Path) -> None:
    found = [searched(tmp_path / str(turned), turned=turned)[1] for turned in (False, True)]
    assert found[0].pictures == found[1].pictures
    assert [one.agreement for one in found[0].tried] == [one.agreement for one in found[1].tried]
    assert np.isfinite(found[0].agreement.mean_change)


# ---- for TensorRT

ADA = (8, 9)
FILES = ("colors_model/1/model.tensorrt.onnx", "colors_fused/1/model.tensorrt.onnx")
LAYERS = ("Conv", "Gemm")
needs_rtx = pytest.mark.skipif(not library.IS_RTX, reason="TensorRT itself builds on a GPU only")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return in_int8(tmp_path_factory.mktemp("tensorrt"))


def precision_on_gpu(built: Built) -> set[str]:
    """What the configurations for a GPU say."""
    files = [built.folder / model / "config.pbtxt" for model in ("colors_model", "colors_fused")]
    configs = [from_text(file.read_text()) for file in files]
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
    assert {path.name for path in other.written} == {"config.pbtxt"}
    assert not any("GPU" in note for note in other.notes)
    assert {request.network.name for request in plans_needed(other.folder)} == {"model.float32.onnx"}
    pipeline_file(tmp_path, color_network(), gpu={"precision": "int8"})
    kept: Any = SimpleNamespace(price=other.quantizations["colors"], for_tensorrt=onnx.ModelProto())
    assert decided(Pipeline.from_file(file), kept)[0].serving.gpu.precision == "int8"


@pytest.mark.parametrize("works", [True, False])
def test_a_gpu_runs_float32_where_there_is_no_good_int8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    quantized = Quantizable.for_tensorrt

    def without_weights(network: Quantizable, settings: Settings) -> onnx.ModelProto:
        if not works:
            raise BadNetwork("the tools stumble")
        made = quantized(network, settings)
        for tensor in made.graph.initializer:
            values = numpy_helper.to_array(tensor)
            if tensor.name.startswith("matrix") and values.ndim == 2:
                tensor.CopyFrom(numpy_helper.from_array(np.zeros_like(values), tensor.name))
        return made

    monkeypatch.setattr(Quantizable, "for_tensorrt", without_weights)
    made, found = searched(tmp_path, color_network(layers=1), for_tensorrt=True)
    assert found.min_agreement <= found.agreement.share
    assert made.for_tensorrt is None
    reason, end = "the tools stumble", ""
    if works:
        assert found.tensorrt.agreement.share < found.min_agreement
        reason = "int8 for TensorRT would cost too much: best classes with a "
        end = f"The nearest setting was {found.tensorrt.settings}"
    served: Any = SimpleNamespace(price=found, for_tensorrt=None)
    file = tmp_path / "colors.yaml"
    pipeline, (said,) = decided(Pipeline.from_file(file), served)
    assert pipeline.serving.gpu.precision == "fp32"
    assert said.startswith(f"on a GPU it runs in float32: {reason}")
    assert said.endswith(end)
    # Who asks for it gets no other.
    pipeline_file(tmp_path, color_network(), gpu={"precision": "int8"})
    with pytest.raises(BadNetwork, match=rf"{reason}.* Nothing was installed"):
        decided(Pipeline.from_file(file), served)


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
    said = "building a TensorRT plan: int8, batches of 1 to 64, compute capability 8.9"
    assert sum(said in line for line in lines) == 2


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
    in_float32 = (built.folder / "colors_model" / "1" / "model.float32.onnx").read_bytes()
    with pytest.raises(BadNetwork, match="precision int8 takes a network that onestream build made for it"):
        build_plan(in_float32, PlanOptions(max_batch_size=4, precision="int8"), compute_capability=ADA)
