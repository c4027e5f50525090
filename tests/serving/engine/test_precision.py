"""A float16 network computes what the float32 one does, and keeps in float32 what float16 cannot hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from served_networks import convolutional, random_pixels, run, served

from onestream.preprocess import compile
from onestream.serving.engine.precision import KEPT_OPERATORS, to_float16
from onestream.serving.errors import BadNetwork
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
    half = to_float16(served(convolutional()))
    onnx.checker.check_model(half, full_check=True)
    assert types(half)["pixels"] == "UINT8"
    assert types(half)["scores"] == "FLOAT"
    for node in half.graph.node:
        kinds = set(types_into(half, node.name))
        if node.name.startswith("onestream/"):
            assert kinds <= {"UINT8", "FLOAT"}
        elif node.op_type != "Cast":
            assert kinds == {"FLOAT16"}, node.name


def test_the_argument_is_not_changed_and_the_stamp_is_kept() -> None:
    model = served(convolutional())
    before = model.SerializeToString()
    half = to_float16(model)
    assert model.SerializeToString() == before
    assert half.metadata_props == model.metadata_props


def test_results_stay_close_and_weights_take_half_the_bytes() -> None:
    model = served(convolutional())
    pixels = random_pixels(5)
    expected, got = run(model, pixels)["scores"], run(to_float16(model), pixels)["scores"]
    assert got.dtype == np.float32
    # float16 rounds to 2**-11; a few roundings in a row of values below 1.
    np.testing.assert_allclose(got, expected, atol=4 * 2**-11 * float(np.abs(expected).max() + 1))
    assert not np.array_equal(got, expected)


@pytest.fixture(scope="module")
def photos() -> npt.NDArray[np.uint8]:
    pipeline = Pipeline.from_file(ROOT / "pipelines" / "classify.yaml")
    files = [path.read_bytes() for path in sorted((ROOT / "examples" / "photos").glob("*.jpg"))]
    return np.stack(compile(pipeline.preprocess.pixels(), backend="reference").run(files))


LOGIT_TOLERANCE = 0.01
"""Of the largest logit. Measured: 0.003; 49 layers, each rounding by 2**-11, which mostly cancels."""


def test_real_network_classifies_the_photos_alike(repository: Path, photos: npt.NDArray[np.uint8]) -> None:
    """ONNX Runtime's CPU kernels compute in float32 what has float16 weights and inputs: part of the error."""
    model = onnx.load(str(repository / "classify_model" / "1" / "model.onnx"))
    expected, got = run(model, photos)["logits"], run(to_float16(model), photos)["logits"]
    np.testing.assert_array_equal(got.argmax(1), expected.argmax(1))
    assert np.abs(got - expected).max() < LOGIT_TOLERANCE * np.abs(expected).max()


@pytest.mark.slow
def test_real_network_rounded_after_every_operator(repository: Path, photos: npt.NDArray[np.uint8]) -> None:
    """ONNX's own evaluator rounds every value to float16, as a GPU does."""
    from onnx.reference import ReferenceEvaluator

    model = onnx.load(str(repository / "classify_model" / "1" / "model.onnx"))
    expected = run(model, photos[:1])["logits"]
    (got,) = ReferenceEvaluator(to_float16(model)).run(["logits"], {"pixels": photos[:1]})
    assert got.argmax() == expected.argmax()
    assert np.abs(got - expected).max() < LOGIT_TOLERANCE * np.abs(expected).max()


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


def test_small_weights_beside_large_ones_do_not_keep_a_layer_in_float32() -> None:
    model = convolutional()
    weights = numpy_helper.to_array(model.graph.initializer[0]).copy()
    weights[0] = 1e-12
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights, "w1"))
    assert set(types_into(to_float16(served(model)), "first")) == {"FLOAT16"}


@pytest.mark.parametrize("operator", sorted(KEPT_OPERATORS & {"Softmax", "LogSoftmax", "Exp"}))
def test_unsafe_operators_stay_float32(operator: str) -> None:
    model = served(convolutional(helper.make_node(operator, ["scores"], ["result"], name="unsafe"), output="result"))
    half = to_float16(model)
    assert types_into(half, "unsafe") == ["FLOAT"]
    assert types_into(half, "product") == ["FLOAT16", "FLOAT16"]
    np.testing.assert_allclose(
        run(half, random_pixels(2))["result"], run(model, random_pixels(2))["result"], rtol=5e-2, atol=5e-3
    )


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
    branch = {
        name: helper.make_graph(
            [helper.make_node(operator, ["pooled"], [f"{name}_out"], name=f"{name}_node")],
            name,
            [],
            [helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, None)],
        )
        for name, operator in (("then", "Relu"), ("otherwise", "Neg"))
    }
    model = convolutional()
    always = numpy_helper.from_array(np.array(True), "always")
    model.graph.initializer.append(always)
    choose = helper.make_node(
        "If", ["always"], ["chosen"], name="choose", then_branch=branch["then"], else_branch=branch["otherwise"]
    )
    model.graph.node.insert(4, choose)
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


def test_the_long_name_of_the_standard_domain_is_understood() -> None:
    model = served(convolutional())
    model.opset_import[0].domain = "ai.onnx"
    assert set(types_into(to_float16(model), "second")) == {"FLOAT16"}


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
