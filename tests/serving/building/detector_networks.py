"""Detectors that give what they take, and a plain decoding in NumPy of what each family means."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from onestream.postprocess.detector_family import DetectorFamily
from onestream.serving.graph.detector_tail import append_tail
from onestream.wire.tensor_names import CANDIDATES

HEIGHT, WIDTH = SIZE = (64, 96)
CELLS = 8 * 12 + 4 * 6 + 2 * 3
"""Of strides 8, 16 and 32."""
K = 20

Arrays = dict[str, np.ndarray]
Boxes = np.ndarray


def network(
    outputs: Arrays, *, opset: int = 17, before: Any = None, constants: Arrays | None = None, rank_only: bool = False
) -> onnx.ModelProto:
    """A network that gives its inputs as they are, or by an operator in ``before``: any batch."""
    before = before or {}
    nodes, inputs, results = [], [], []
    for name, values in outputs.items():
        dtype = helper.np_dtype_to_tensor_dtype(values.dtype)
        dims = ["batch", *(["any"] * (values.ndim - 1) if rank_only else values.shape[1:])]
        attributes = {"axis": 2} if before.get(name) == "Softmax" else {}
        nodes.append(helper.make_node(before.get(name, "Identity"), [f"{name}_in"], [name], **attributes))
        inputs.append(helper.make_tensor_value_info(f"{name}_in", dtype, dims))
        results.append(helper.make_tensor_value_info(name, dtype, dims))
    initializers = [numpy_helper.from_array(values, name) for name, values in (constants or {}).items()]
    graph = helper.make_graph(nodes, "detector", inputs, results, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def candidates(
    outputs: Arrays, *, max_candidates: int = K, size: tuple[int, int] = SIZE, anchors: Any = None, **options: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    made = {name: options.pop(name) for name in ("opset", "before", "constants") if name in options}
    model = network(outputs, **made)
    append_tail(model, DetectorFamily(**options), network_hw=size, max_candidates=max_candidates, anchors=anchors)
    onnx.checker.check_model(model, full_check=True)
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    assert [output.name for output in session.get_outputs()] == list(CANDIDATES)
    assert [output.type for output in session.get_outputs()] == ["tensor(float)", "tensor(float)", "tensor(int32)"]
    found = session.run(None, {f"{name}_in": values for name, values in outputs.items()})
    k, batch = found[1].shape[1], len(next(iter(outputs.values())))
    assert [output.shape for output in session.get_outputs()] == [["batch", k, 4], ["batch", k], ["batch", k]]
    assert [values.shape for values in found] == [(batch, k, 4), (batch, k), (batch, k)]
    return tuple(found)


def check(found: tuple[np.ndarray, ...], boxes: Boxes, scores: np.ndarray, *, k: int = K) -> None:
    """``boxes`` is (batch, anchors, 4) and ``scores`` (batch, anchors, classes), decoded plainly in float64."""
    best = scores.max(axis=2)
    for image in range(len(scores)):
        order = np.argsort(-best[image], kind="stable")[:k]
        assert len(found[1][image]) == len(order)
        # Exponentials and sums in float32, in an order of a library's own.
        np.testing.assert_allclose(found[1][image], best[image][order], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(found[0][image], boxes[image][order], rtol=1e-5, atol=1e-3)
        np.testing.assert_array_equal(found[2][image], scores[image].argmax(axis=1)[order])


def draw(*shape: int, low: float = 0.0, high: float = 1.0, seed: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


def corners(x: np.ndarray, y: np.ndarray, width: np.ndarray, height: np.ndarray) -> Boxes:
    return np.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], axis=-1)


def sigmoid(values: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-values.astype(np.float64)))


def softmax(values: np.ndarray) -> np.ndarray:
    powers = np.exp(values.astype(np.float64) - values.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def cells(strides: tuple[int, ...] = (8, 16, 32)) -> list[tuple[int, int, int]]:
    """Column, row and stride of every cell."""
    return [
        (column, row, stride)
        for stride in strides
        for row in range(-(-HEIGHT // stride))
        for column in range(-(-WIDTH // stride))
    ]


ANCHORS = np.concatenate([draw(50, 2, seed=1), draw(50, 2, low=0.1, seed=2)], axis=1)
"""Centre and size, in parts of the sides."""
ENCODED = draw(2, 50, 4, low=-2, high=2)
