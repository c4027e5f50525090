"""What engines on a GPU make of a network: in float16, and with its pixels cast before they are transposed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from networks import mean_color, network_of
from onnx import TensorProto, helper, numpy_helper
from served_networks import convolutional, definition, random_pixels, run, served

from onestream.preprocess import compile
from onestream.serving.engine import served as served_network
from onestream.serving.engine.precision import KEPT_OPERATORS, to_float16
from onestream.serving.errors import BadNetwork
from onestream.serving.graph import onnx_graph
from onestream.serving.pipeline import Pipeline

ROOT = Path(__file__).parents[3]


def types(model: onnx.ModelProto) -> dict[str, str]:
    """Every tensor's type after the conversion, as ONNX infers it."""
    graph = onnx.shape_inference.infer_shapes(model, strict_mode=True, check_type=True).graph
    values = (*graph.input, *graph.value_info, *graph.output)
    found = {value.name: value.type.tensor_type.elem_type for value in values}
    found |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    return {name: TensorProto.DataType.Name(kind) for name, kind in found.items()}


def types_into(model: onnx.ModelProto, node_name: str) -> list[str]:
    found = types(model)
    (node,) = (node for node in model.graph.node if node.name == node_name)
    return [found[name] for name in node.input if name]


def assert_alike(half: onnx.ModelProto, model: onnx.ModelProto, name: str = "scores") -> None:
    """But for a few roundings to float16."""
    expected = run(model, random_pixels(2))[name]
    np.testing.assert_allclose(run(half, random_pixels(2))[name], expected, atol=5e-3)


def test_the_network_is_float16_between_a_float32_door_and_float32_outputs() -> None:
    model = served(convolutional())
    before = model.SerializeToString()
    half = to_float16(model)
    assert model.SerializeToString() == before
    assert half.metadata_props == model.metadata_props
    onnx.checker.check_model(half, full_check=True)
    assert (types(half)["pixels"], types(half)["scores"]) == ("UINT8", "FLOAT")
    for node in half.graph.node:
        kinds = set(types_into(half, node.name))
        if node.name.startswith("onestream/"):
            assert kinds <= {"UINT8", "FLOAT"}
        elif node.op_type != "Cast":
            assert kinds == {"FLOAT16"}, node.name
    expected, got = run(model, random_pixels(5))["scores"], run(half, random_pixels(5))["scores"]
    # float16 rounds to 2**-11; a few roundings in a row of values below 1.
    np.testing.assert_allclose(got, expected, atol=4 * 2**-11 * float(np.abs(expected).max() + 1))
    assert not np.array_equal(got, expected)


def test_a_file_s_own_ways_do_not_keep_a_layer_in_float32() -> None:
    """The long name of the standard domain, and small weights beside large ones."""
    model = convolutional()
    weights = numpy_helper.to_array(model.graph.initializer[0]).copy()
    weights[0] = 1e-12
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights, "w1"))
    ready = served(model)
    ready.opset_import[0].domain = "ai.onnx"
    for layer in ("first", "second"):
        assert set(types_into(to_float16(ready), layer)) == {"FLOAT16"}


@pytest.mark.slow
def test_real_network_classifies_alike_rounded_after_every_operator(repository: Path) -> None:
    """ONNX's own evaluator rounds every value to float16, as a GPU does."""
    from onnx.reference import ReferenceEvaluator

    pipeline = Pipeline.from_file(ROOT / "pipelines" / "classify.yaml")
    photo = min((ROOT / "examples" / "photos").glob("*.jpg")).read_bytes()
    pixels = np.stack(compile(pipeline.preprocess.pixels(), backend="reference").run([photo]))
    model = onnx.load(str(repository / "classify_model" / "1" / "model.onnx"))
    expected = run(model, pixels)["logits"]
    (got,) = ReferenceEvaluator(to_float16(model)).run(["logits"], {"pixels": pixels})
    assert got.argmax() == expected.argmax()
    # 0.003 was measured: 49 layers, each rounding by 2**-11, which mostly cancels.
    assert np.abs(got - expected).max() < 0.01 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("value", "kept"),
    [(6.0, False), (65504.0, False), (float("inf"), False), (1e5, True), (-3.4e38, True), (1e-12, True), (0.0, False)],
)
@pytest.mark.parametrize("as_node", [False, True])
def test_constants_that_float16_cannot_hold_stay_float32(value: float, *, kept: bool, as_node: bool) -> None:
    constant = numpy_helper.from_array(np.array(value, np.float32), "limit")
    extra = [helper.make_node("Min", ["scores", "limit"], ["result"], name="limited")]
    if as_node:
        extra.insert(0, helper.make_node("Constant", [], ["limit"], value=constant, name="constant"))
    model = convolutional(*extra, output="result")
    if not as_node:
        model.graph.initializer.append(constant)
    half = to_float16(served(model))
    assert set(types_into(half, "limited")) == {"FLOAT" if kept else "FLOAT16"}
    assert_alike(half, served(model), "result")


@pytest.mark.parametrize("operator", sorted(KEPT_OPERATORS & {"Softmax", "LogSoftmax", "Exp"}))
def test_unsafe_operators_stay_float32(operator: str) -> None:
    model = served(convolutional(helper.make_node(operator, ["scores"], ["result"], name="unsafe"), output="result"))
    half = to_float16(model)
    assert types_into(half, "unsafe") == ["FLOAT"]
    assert types_into(half, "product") == ["FLOAT16", "FLOAT16"]
    expected, got = (run(one, random_pixels(2))["result"] for one in (model, half))
    np.testing.assert_allclose(got, expected, rtol=5e-2, atol=5e-3)


def test_an_input_that_onnx_allows_in_float32_only_stays_so() -> None:
    """Resize takes its image in any type and its scales in float32."""
    model = convolutional()
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales"))
    resize = helper.make_node("Resize", ["c1", "", "scales"], ["larger"], name="resize", mode="nearest")
    model.graph.node.insert(1, resize)
    model.graph.node[2].input[0] = "larger"
    half = to_float16(served(model))
    onnx.checker.check_model(half, full_check=True)
    assert types_into(half, "resize") == ["FLOAT16", "FLOAT"]


def test_bodies_of_control_flow_stay_float32_with_what_they_capture() -> None:
    outputs = [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)]
    branches = {
        name: helper.make_graph([helper.make_node(operator, ["pooled"], ["out"], name=name)], name, [], outputs)
        for name, operator in (("then_branch", "Relu"), ("else_branch", "Neg"))
    }
    model = convolutional()
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "always"))
    model.graph.node.insert(4, helper.make_node("If", ["always"], ["chosen"], name="choose", **branches))
    model.graph.node[5].input[0] = "chosen"
    half = to_float16(served(model))
    onnx.checker.check_model(half)
    assert types_into(half, "pool") == ["FLOAT"]
    assert types_into(half, "second") == ["FLOAT16", "FLOAT16"]
    assert_alike(half, served(model))


def test_a_tensor_that_is_both_output_and_input_is_float32_outside_and_float16_inside() -> None:
    model = convolutional(helper.make_node("Relu", ["scores"], ["result"], name="after"), output="result")
    model.graph.output.append(helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 10]))
    half = to_float16(served(model))
    onnx.checker.check_model(half, full_check=True)
    assert types_into(half, "after") == ["FLOAT16"]
    assert {kind for name, kind in types(half).items() if name in ("scores", "result")} == {"FLOAT"}
    results = run(half, random_pixels(2))
    np.testing.assert_array_equal(np.maximum(results["scores"], 0), results["result"])


@pytest.mark.parametrize("type_is_written", [True, False])
def test_an_operator_of_another_domain_stays_float32(*, type_is_written: bool) -> None:
    model = convolutional()
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    model.graph.node[1].CopyFrom(helper.make_node("Gelu", ["c1"], ["r1"], name="relu", domain="com.microsoft"))
    ready = served(model)
    # ONNX knows no types of other domains' operators; a file may say what they are, or not.
    if type_is_written:
        ready.graph.value_info.append(helper.make_tensor_value_info("r1", TensorProto.FLOAT, ["batch", 8, 15, 15]))
    half = to_float16(ready)
    casts = {node.output[0] for node in half.graph.node if node.op_type == "Cast"}
    inputs = {node.name: node.input[0] for node in half.graph.node}
    assert inputs["relu"] == "c1/float32"
    assert inputs["second"] == ("r1/float16" if type_is_written else "r1")
    assert set(inputs.values()) >= casts - {"scores"}
    assert_alike(half, ready)


def test_sequences_of_tensors_stay_float32() -> None:
    model = convolutional()
    half_way = [
        helper.make_node("SplitToSequence", ["pooled"], ["parts"], name="split", axis=1, keepdims=1),
        helper.make_node("ConcatFromSequence", ["parts"], ["together"], name="join", axis=1),
    ]
    for position, node in enumerate(half_way):
        model.graph.node.insert(4 + position, node)
    model.graph.node[6].input[0] = "together"
    half = to_float16(served(model))
    onnx.checker.check_model(half, full_check=True)
    inputs = {node.name: node.input[0] for node in half.graph.node}
    assert (inputs["split"], inputs["flatten"]) == ("pooled/float32", "together/float16")
    assert_alike(half, served(model))


def test_a_network_that_is_float16_already_stays_what_it_is() -> None:
    half = to_float16(served(convolutional()))
    again = to_float16(half)
    assert sorted(types(again).values()) == sorted(types(half).values())
    np.testing.assert_array_equal(run(again, random_pixels(2))["scores"], run(half, random_pixels(2))["scores"])


def test_a_graph_whose_types_do_not_fit_is_refused() -> None:
    model = served(convolutional())
    model.graph.node[-1].CopyFrom(helper.make_node("Gemm", ["flat", "pixels"], ["scores"], name="product"))
    with pytest.raises(BadNetwork, match="float16 needs every tensor's type"):
        to_float16(model)


# ---- casting pixels before they are transposed changes where TensorRT can follow, and no value


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("model", [mean_color(), convolutional()], ids=["mean_color", "convolutional"])
def test_every_bit_stays_the_same(model: onnx.ModelProto) -> None:
    ready = served(model)
    before = ready.SerializeToString()
    moved = served_network.cast_first(ready)
    assert ready.SerializeToString() == before
    assert moved.metadata_props == ready.metadata_props
    onnx.checker.check_model(moved, full_check=True)
    assert operators(ready)[:2] == ["Transpose", "Cast"]
    assert operators(moved)[:2] == ["Cast", "Transpose"]
    for name, expected in run(ready, random_pixels(4)).items():
        np.testing.assert_array_equal(run(moved, random_pixels(4))[name], expected)


def of_bytes(nodes: list[onnx.NodeProto], *, gives: int) -> onnx.ModelProto:
    """A network of these nodes that takes bytes, made ready."""
    shape = ["batch", 3, 32, 32]
    model = network_of(nodes, {"input": shape}, {"y": shape}, dtype=TensorProto.UINT8, gives=gives, opset=17)
    return onnx_graph.prepare(model, definition(dtype="uint8"))


def test_a_network_that_takes_bytes_and_casts_them_itself() -> None:
    """The door has no cast then; the network's own is moved, once for several readers."""
    nodes = [
        helper.make_node("Cast", ["input"], ["a"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["input"], ["b"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    ready = of_bytes(nodes, gives=TensorProto.FLOAT)
    moved = served_network.cast_first(ready)
    onnx.checker.check_model(moved, full_check=True)
    assert operators(moved) == ["Cast", "Transpose", "Identity", "Identity", "Add"]
    np.testing.assert_array_equal(run(moved, random_pixels(2))["y"], run(ready, random_pixels(2))["y"])


def test_pixels_that_are_used_as_bytes_are_left_alone() -> None:
    ready = of_bytes([helper.make_node("Max", ["input", "input"], ["y"])], gives=TensorProto.UINT8)
    assert served_network.cast_first(ready) == ready
