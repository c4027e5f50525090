"""Real TensorRT plans, built without a GPU by TensorRT for RTX for a named compute capability."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import prompted
import pytest
from networks import network_of
from onnx import TensorProto, helper
from served_networks import ADA, convolutional, served

from onestream.preprocess import Definition
from onestream.serving.engine.library import IS_RTX, LOG, plain, trt
from onestream.serving.engine.plan import PlanOptions, batch_profiles, build_plan, configure, rtx_capabilities
from onestream.serving.engine.precision import to_float16
from onestream.serving.engine.served import cast_first
from onestream.serving.errors import BadNetwork, BadPlan
from onestream.serving.graph.onnx_graph import prepare

pytestmark = pytest.mark.skipif(not IS_RTX, reason="TensorRT itself builds on a GPU only: see test_engine_on_gpu.py")

OPTIONS = PlanOptions(max_batch_size=4)


def build(model: onnx.ModelProto) -> bytes:
    return build_plan(model.SerializeToString(), OPTIONS, compute_capability=ADA).plan


def parsed(model: onnx.ModelProto) -> tuple[trt.INetworkDefinition, trt.Builder]:
    builder = trt.Builder(LOG)
    definition = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    assert trt.OnnxParser(definition, LOG).parse(model.SerializeToString())
    return definition, builder


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_real_network_becomes_a_plan(repository: Path, precision: str) -> None:
    model = (repository / "classify_model" / "1" / "model.onnx").read_bytes()
    lines: list[str] = []
    built = build_plan(
        model, PlanOptions(max_batch_size=64, precision=precision), compute_capability=ADA, progress=lines.append
    )
    # The weights are 18.5 MB of float32; a plan holds them, and some once more in another profile's order.
    assert len(built.plan) == pytest.approx({"fp32": 18.5e6, "fp16": 9.3e6}[precision], rel=0.15)
    assert any(f"{precision}, batches of 1 to 64, compute capability 8.9" in line for line in lines)


def test_names_types_and_shapes_are_those_of_the_network() -> None:
    network, builder = parsed(cast_first(served(convolutional())))
    pixels, scores = network.get_input(0), network.get_output(0)
    assert (network.num_inputs, network.num_outputs) == (1, 1)
    assert (pixels.name, pixels.dtype, tuple(pixels.shape)) == ("pixels", trt.uint8, (-1, 32, 32, 3))
    assert (scores.name, scores.dtype, tuple(scores.shape)) == ("scores", trt.float32, (-1, 10))
    # Both profiles take every batch, and are tuned for small and for large ones.
    profiles = batch_profiles(builder, network, PlanOptions(max_batch_size=48))
    shapes = [[tuple(shape) for shape in profile.get_shape("pixels")] for profile in profiles]
    assert shapes == [[(batch, 32, 32, 3) for batch in (1, tuned, 48)] for tuned in (8, 48)]
    half, _builder = parsed(cast_first(to_float16(served(convolutional()))))
    kinds = {half.get_layer(i).name: half.get_layer(i).get_output(0).dtype for i in range(half.num_layers)}
    assert kinds["first"] == kinds["second"] == trt.float16
    assert {kind for name, kind in kinds.items() if name.startswith("onestream/")} == {trt.float32}
    assert half.get_output(0).dtype == trt.float32


def test_a_profile_has_the_shape_of_every_input() -> None:
    shown = Definition.model_validate(prompted.FIELDS["preprocess"])
    model = prepare(prompted.prompted(count=2), shown, inputs=prompted.NETWORK_INPUTS)
    network, builder = parsed(cast_first(model))
    for profile in batch_profiles(builder, network, PlanOptions(max_batch_size=4)):
        assert [tuple(shape) for shape in profile.get_shape("points")] == [(1, 2, 2), (4, 2, 2), (4, 2, 2)]
        assert [tuple(shape) for shape in profile.get_shape("image_size")] == [(1, 2), (4, 2), (4, 2)]


def test_everything_runs_on_one_stream_and_float32_is_float32() -> None:
    config = configure(trt.Builder(LOG), OPTIONS, compute_capability=ADA)
    assert config.max_aux_streams == 0
    assert not config.get_flag(trt.BuilderFlag.TF32)
    assert config.get_compute_capability(0) == trt.ComputeCapability.SM89
    assert configure(trt.Builder(LOG), PlanOptions(4, "tf32"), compute_capability=ADA).get_flag(trt.BuilderFlag.TF32)


@pytest.mark.parametrize("capability", sorted(rtx_capabilities()) if IS_RTX else [])
def test_every_capability_that_is_named_can_be_built_for(capability: tuple[int, int]) -> None:
    options = PlanOptions(max_batch_size=4, precision="fp16")
    assert build_plan(served().SerializeToString(), options, compute_capability=capability).plan


@pytest.mark.parametrize(
    ("options", "capability", "said"),
    [
        (OPTIONS, (7, 5), r"cannot build the network: .*FP32 GEMM is not supported"),
        (OPTIONS, (9, 0), r"8\.9, 12\.0, 12\.1; got 9\.0\. Data-centre GPUs such as H100 \(9\.0\) need"),
        (PlanOptions(4, version_compatible=True), ADA, "TensorRT for RTX .* has no version-compatible plans"),
    ],
)
def test_what_tensorrt_does_not_build(options: PlanOptions, capability: tuple[int, int], said: str) -> None:
    with pytest.raises(BadPlan, match=said):
        build_plan(served().SerializeToString(), options, compute_capability=capability)


def test_an_operator_that_tensorrt_lacks_is_named_with_its_node() -> None:
    model = convolutional()
    model.opset_import.append(helper.make_opsetid("my.own", 1))
    model.graph.node.append(helper.make_node("Sharpen", ["scores"], ["result"], name="block3/sharpen", domain="my.own"))
    ready = cast_first(with_door(model))
    ready.graph.output[0].name = "result"
    said = r"cannot take the network: node 'block3/sharpen' \(Sharpen\): .*Plugin not found"
    with pytest.raises(BadNetwork, match=said):
        build(ready)


def test_an_operator_that_onnx_knows_and_tensorrt_does_not() -> None:
    model = convolutional(helper.make_node("Det", ["stacked"], ["result"], name="det"), output="result")
    model.graph.node.insert(6, helper.make_node("Unsqueeze", ["scores", "axes"], ["a"], name="up"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(onnx.numpy_helper.np.array([1, 2]), "axes"))
    model.graph.node.insert(7, helper.make_node("Expand", ["a", "shape"], ["stacked"], name="square"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(onnx.numpy_helper.np.array([1, 10, 10, 1]), "shape"))
    with pytest.raises(BadNetwork, match=r"node 'det' \(Det\): unsupported node$"):
        build(with_door(model))


def with_door(model: onnx.ModelProto) -> onnx.ModelProto:
    """The door without the check that runs the network, which ONNX Runtime cannot do for a made-up operator."""
    ready = served(convolutional())
    door = [node for node in ready.graph.node if node.name.startswith("onestream/")]
    constants = [tensor for tensor in ready.graph.initializer if tensor.name.startswith("onestream/")]
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    changed.graph.input[0].CopyFrom(ready.graph.input[0])
    changed.graph.initializer.extend(constants)
    own = list(changed.graph.node)
    del changed.graph.node[:]
    changed.graph.node.extend([*door, *own])
    return changed


@pytest.mark.parametrize(
    ("dtype", "shape", "seen"),
    [
        (TensorProto.FLOAT, ["batch", 3, 32, 32], "got 'pixels', float (batch, 3, 32, 32)"),
        (TensorProto.UINT8, ["batch", "height", "width", 3], "got 'pixels', uint8 (batch, height, width, 3)"),
    ],
)
def test_a_network_with_another_input_is_refused(dtype: int, shape: list[str | int], seen: str) -> None:
    nodes = [helper.make_node("Identity", ["pixels"], ["y"])]
    with pytest.raises(BadNetwork, match=re.escape(seen)):
        build(network_of(nodes, {"pixels": shape}, {"y": shape}, dtype=dtype, opset=17))
    with pytest.raises(BadNetwork, match="not an ONNX file"):
        build_plan(b"GIF89a", OPTIONS, compute_capability=ADA)


def test_what_tensorrt_says_is_cut_to_the_reason() -> None:
    said = "IBuilder::build: Error Code 6: Usage Error (no such library In Impl at /_src/dispatch/libLoader.cpp:305)\nx"
    assert plain(said) == "IBuilder::build: Error Code 6: Usage Error (no such library)"
    assert plain("") == ""
    assert len(plain("word " * 200)) == 300
