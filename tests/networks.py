"""Small ONNX networks for tests, written with the onnx package alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CLASSES = 7
Shape = Sequence[int | str | None]


def network_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Shape],
    outputs: Mapping[str, Shape],
    constants: Mapping[str, np.ndarray] | None = None,
    *,
    dtype: int = TensorProto.FLOAT,
    gives: int | None = None,
    opset: int = 13,
) -> onnx.ModelProto:
    """A network of these nodes: inputs of ``dtype`` and outputs of ``gives``, the same by default, by their shapes."""
    shapes = ((inputs, dtype), (outputs, dtype if gives is None else gives))
    infos = ([helper.make_tensor_value_info(name, kind, list(own[name])) for name in own] for own, kind in shapes)
    initializers = [numpy_helper.from_array(np.asarray(values), name) for name, values in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "network", *infos, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def mean_color(
    shape: Sequence[int | str] = ("batch", 3, 32, 32),
    *,
    dtype: int = TensorProto.FLOAT,
    reshape_to: tuple[int, ...] | None = None,
    mix_batch: bool = False,
    input_name: str = "input",
    classes: int = CLASSES,
) -> onnx.ModelProto:
    """Class scores from the mean of each channel of an NCHW image.

    ``reshape_to`` uses Reshape with that constant, as exporters of a fixed batch do; ``mix_batch`` subtracts the mean
    over the batch, so that it may only run one image at a time.
    """
    weights = np.random.default_rng(7).normal(size=(int(shape[1]), classes)).astype(np.float32)
    numpy_type = helper.tensor_dtype_to_np_dtype(dtype)
    constants = {"weights": weights.astype(numpy_type)}
    nodes = [helper.make_node("GlobalAveragePool", [input_name], ["pooled"])]
    if reshape_to is None:
        nodes.append(helper.make_node("Flatten", ["pooled"], ["flat"]))
    else:
        constants["target"] = np.array(reshape_to, np.int64)
        nodes.append(helper.make_node("Reshape", ["pooled", "target"], ["flat"]))
    product = "product" if mix_batch else "scores_out"
    nodes.append(helper.make_node("MatMul", ["flat", "weights"], [product]))
    if mix_batch:
        nodes.append(helper.make_node("ReduceMean", [product], ["over_batch"], axes=[0], keepdims=1))
        nodes.append(helper.make_node("Sub", [product, "over_batch"], ["scores_out"]))
    model = network_of(nodes, {input_name: shape}, {"scores_out": [shape[0], classes]}, constants, dtype=dtype)
    onnx.checker.check_model(model)
    return model


def strongest_channel(path: Path, *, side: int = 16, factor: float = 1.0) -> None:
    """Write a classifier of pictures of so many pixels a side: its scores are ``factor`` times the channels' means."""
    constants = {"flat": np.array([0, -1], np.int64), "factor": np.float32(factor)}
    onnx.save(
        network_of(
            [
                helper.make_node("GlobalAveragePool", ["in"], ["means"]),
                helper.make_node("Mul", ["means", "factor"], ["scores"]),
                helper.make_node("Reshape", ["scores", "flat"], ["out"]),
            ],
            {"in": ["batch", 3, side, side]},
            {"out": ["batch", 3]},
            constants,
        ),
        path,
    )


def ending_in(*operators: str, shape: Sequence[int | str] = ("batch", 3, 32, 32)) -> onnx.ModelProto:
    """``mean_color`` with these operators of one input at its end; *parts* is softmax in its parts."""
    changed = mean_color(shape)
    last = changed.graph.node[-1].output[0] = "before"
    for place, operator in enumerate(operators):
        output = "scores_out" if place == len(operators) - 1 else f"after_{place}"
        if operator == "parts":
            changed.graph.initializer.append(numpy_helper.from_array(np.array([1], np.int64), "classes"))
            changed.graph.node.append(helper.make_node("Exp", [last], ["exponentials"]))
            changed.graph.node.append(helper.make_node("ReduceSum", ["exponentials", "classes"], ["sums"]))
            changed.graph.node.append(helper.make_node("Div", ["exponentials", "sums"], [output]))
        else:
            options = {"to": TensorProto.FLOAT} if operator == "Cast" else {}
            changed.graph.node.append(helper.make_node(operator, [last], [output], **options))
        last = output
    onnx.checker.check_model(changed)
    return changed


def slow(size: int = 32, *, channels: int = 128, layers: int = 30) -> onnx.ModelProto:
    """A network that a core is busy with for some tens of milliseconds, whatever the image (batch, 3, size, size)."""
    random = np.random.default_rng(7)
    constants, nodes, last = {}, [], "input"
    for layer in range(layers):
        weights = random.normal(size=(channels, channels if layer else 3, 3, 3)).astype(np.float32)
        constants[f"weights{layer}"] = weights / channels
        nodes.append(helper.make_node("Conv", [last, f"weights{layer}"], [f"conv{layer}"], pads=[1, 1, 1, 1]))
        last = f"conv{layer}"
    nodes.append(helper.make_node("GlobalAveragePool", [last], ["pooled"]))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["scores_out"]))
    model = network_of(nodes, {"input": ["batch", 3, size, size]}, {"scores_out": ["batch", channels]}, constants)
    onnx.checker.check_model(model)
    return model
