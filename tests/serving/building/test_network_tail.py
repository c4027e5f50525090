"""Softmax and top-k inside the graph are what ``postprocess.top_k`` computes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from networks import CLASSES, mean_color, network_of
from onnx import TensorProto, helper

from onestream.postprocess.kinds.classification import Classification, top_k
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.errors import BadNetwork, BadPipeline
from onestream.serving.graph.onnx_postprocess import with_labels, with_postprocess

# Softmax sums in another order than NumPy does: a few units in the last place of a value up to 1.
SCORE_TOLERANCE = 1e-6
NEXT_TO_ONE = float(np.nextafter(np.float32(1), np.float32(2)))


def passing(
    classes: int, *, output: str = "logits", inner: str = "inner", dtype: int = TensorProto.FLOAT, opset: int = 13
) -> onnx.ModelProto:
    """A network whose output is its input, (batch, classes), so that a test chooses the logits."""
    return network_of(
        [helper.make_node("Identity", ["x"], [inner]), helper.make_node("Identity", [inner], [output])],
        {"x": ["batch", classes]},
        {output: ["batch", classes]},
        dtype=dtype,
        opset=opset,
    )


def run(model: onnx.ModelProto, values: np.ndarray, name: str = "x") -> tuple[np.ndarray, np.ndarray]:
    results = OnnxRuntimeEngine(model.SerializeToString(), threads=1).run_together({name: values})
    assert list(results) == ["scores", "class_ids"]
    return results["scores"], results["class_ids"]


def check(model: onnx.ModelProto, logits: np.ndarray, options: Classification) -> None:
    scores, class_ids = run(with_postprocess(model, options), logits)
    activation = "softmax" if options.activation == "auto" else options.activation
    expected_scores, expected_ids = top_k(logits, options.top_k, activation=activation)
    np.testing.assert_array_equal(class_ids, expected_ids)
    assert (scores.dtype, class_ids.dtype) == (np.float32, np.int32)
    if options.activation == "none":
        np.testing.assert_array_equal(scores, expected_scores)
    else:
        np.testing.assert_allclose(scores, expected_scores, rtol=0, atol=SCORE_TOLERANCE)


@given(
    # Few distinct values make ties in nearly every example; ±200 makes softmax underflow to equal scores.
    logits=st.integers(1, 40).flatmap(
        lambda classes: arrays.arrays(
            np.float32,
            st.tuples(st.integers(1, 3), st.just(classes)),
            elements=st.sampled_from([-200.0, -3.5, -0.0, 0.0, 1.0, NEXT_TO_ONE, 7.25, 200.0]),
        )
    ),
    data=st.data(),
)
def test_equal_to_top_k_ties_included(logits: np.ndarray, data: st.DataObject) -> None:
    options = Classification(
        top_k=data.draw(st.integers(1, logits.shape[1])), activation=data.draw(st.sampled_from(["softmax", "none"]))
    )
    check(passing(logits.shape[1]), logits, options)


@pytest.mark.parametrize("opset", [11, 13, 21])
@pytest.mark.parametrize(("numpy_type", "dtype"), [("float16", TensorProto.FLOAT16), ("float64", TensorProto.DOUBLE)])
@pytest.mark.parametrize(("output", "inner"), [("scores", "inner"), ("logits", "class_ids"), ("class_ids", "scores")])
def test_other_types_and_the_same_names(numpy_type: str, dtype: int, opset: int, output: str, inner: str) -> None:
    """Logits are taken as float32."""
    logits = np.random.default_rng(1).normal(size=(4, 1000)).astype(numpy_type)
    check(passing(1000, output=output, inner=inner, dtype=dtype, opset=opset), logits, Classification(top_k=5))


@pytest.mark.parametrize("output", ["labels", "logits"])
def test_labels_follow_the_class_ids(output: str) -> None:
    logits = np.random.default_rng(4).normal(size=(2, 3)).astype(np.float32)
    tailed = with_postprocess(passing(3, output=output), Classification(top_k=3))
    names = ["a", "é", ""]
    for labels, expected in ((names, names), (None, ["0", "1", "2"])):
        engine = OnnxRuntimeEngine(with_labels(tailed, labels).SerializeToString(), threads=1)
        results = engine.run_together({"x": logits})
        assert results["labels"].tolist() == [[expected[index] for index in row] for row in results["class_ids"]]


def test_refuses_what_it_cannot_append_to() -> None:
    image_like = mean_color()
    image_like.graph.output.append(helper.make_tensor_value_info("pooled", TensorProto.FLOAT, ["batch", 3, 1, 1]))
    with pytest.raises(BadNetwork, match=r"one output \(batch, classes\); got scores_out \[None, 7\], pooled"):
        with_postprocess(image_like, Classification())
    with pytest.raises(BadPipeline, match=f"top_k is 8, the network has {CLASSES} classes"):
        with_postprocess(mean_color(), Classification(top_k=8))
    with pytest.raises(BadNetwork, match="opset 11 or newer; the file has 10"):
        with_postprocess(passing(9, opset=10), Classification())
