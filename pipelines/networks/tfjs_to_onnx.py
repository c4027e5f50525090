"""TensorFlow.js graphs as ONNX models, with NumPy and onnx only.

Only the operations that the built-in networks need are known; any other is refused by name. TensorFlow keeps channels
last. Here a value lies in ONNX as NCHW, and remembers where its axes lie, so that a transposition costs nothing until
something needs the axes in TensorFlow's order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onestream.pipelines.networks.errors import BadGraph
from onestream.pipelines.networks.folding import fold_into_convolutions
from onestream.pipelines.networks.tfjs_graph import Array, Graph, Node

_OPSET = 13  # the oldest with every operator used here; read by ONNX Runtime >= 1.6 and TensorRT >= 8
_IR_VERSION = 7  # the one published with opset 13
_BATCH = 0  # a shape's batch, as ONNX's Reshape writes "the same as before"
_NHWC_IN_NCHW = (0, 2, 3, 1)


def to_onnx(
    graph: Graph,
    *,
    name: str,
    start: str,
    size: int,
    channels_last: bool,
    outputs: Mapping[str, str],
) -> onnx.ModelProto:
    """Return the part of a graph from the value ``start`` to the values of ``outputs``, by their names in ONNX.

    Its input is ``input``, float32 [batch, 3, size, size]; with ``channels_last`` the graph takes that as NHWC, and the
    model NCHW all the same. The batch is dynamic. Constants are folded, and what only scales or shifts a
    convolution's channels is folded into it. Raises ``BadGraph``.
    """
    shape = (_BATCH, size, size, 3) if channels_last else (_BATCH, 3, size, size)
    order = _NHWC_IN_NCHW if channels_last else (0, 1, 2, 3)
    converter = _Converter(graph, start, _Value("input", shape, order))
    converter.convert(outputs.values())
    made = {output: converter.output(inner) for output, inner in outputs.items()}
    fold_into_convolutions(converter.nodes, converter.constants, keep=[value.name for value in made.values()])
    names = {value.name: output for output, value in made.items()}
    for node in converter.nodes:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    used = {name for node in converter.nodes for name in node.input}
    initializers = [
        numpy_helper.from_array(values.astype(np.float32) if values.dtype.kind == "f" else values, constant)
        for constant, values in converter.constants.items()
        if constant in used
    ]
    model = helper.make_model(
        helper.make_graph(
            converter.nodes,
            name,
            [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 3, size, size])],
            [
                helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", *value.shape[1:]])
                for output, value in made.items()
            ],
            initializers,
        ),
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
        producer_name="onestream",
    )
    onnx.checker.check_model(model, full_check=True)
    return model


@dataclass(frozen=True, slots=True)
class _Value:
    """A value in ONNX: its shape as TensorFlow sees it, and at which axis in ONNX each of these axes lies.

    ``padding`` by ``fill`` is still to come around it, by TensorFlow's axes; only convolutions and pools do that.
    """

    name: str
    shape: tuple[int, ...]
    order: tuple[int, ...]
    padding: tuple[tuple[int, int], ...] = ()
    fill: float = 0.0


class _Converter:
    """Goes through the operations; each has a method, in the table at the end."""

    def __init__(self, graph: Graph, start: str, value: _Value) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}
        self._graph = graph
        self._start = start
        self._results: dict[str, _Value | Array] = {start: value}

    def convert(self, ends: Iterable[str]) -> None:
        """Convert everything that the values ``ends`` need."""
        needs: dict[str, list[str]] = {}
        open_names = list(ends)
        while open_names:
            name = open_names.pop()
            if name in needs:
                continue
            node = self._graph.nodes.get(name)
            needs[name] = [] if name == self._start or node is None else [i.partition(":")[0] for i in node.inputs]
            open_names += needs[name]
        for name in TopologicalSorter(needs).static_order():
            if name == self._start:
                continue
            if name in self._graph.weights:
                self._results[name] = self._graph.weights[name]
                continue
            node = self._graph.nodes.get(name)
            if node is None or node.operation not in _OPERATIONS:
                seen = "is missing" if node is None else f"is a {node.operation}, which is not converted"
                raise BadGraph(f"node {name!r} {seen}")
            results = _OPERATIONS[node.operation](self, node)
            for index, result in enumerate(results if isinstance(results, list) else [results]):
                self._results[f"{name}:{index}" if index else name] = result

    def output(self, name: str) -> _Value:
        """A converted value with its axes in TensorFlow's order."""
        return self._in_order(self._value(name), None)

    def convolution(self, node: Node) -> _Value:
        value, filters = self._in_order(self._value(node.inputs[0]), _NHWC_IN_NCHW), self._constant(node.inputs[1])
        groups = 1
        if node.operation == "DepthwiseConv2dNative":
            height, width, groups, multiplier = filters.shape
            filters = filters.reshape(height, width, 1, groups * multiplier)
        self.constants[f"{node.name}/weights"] = filters.transpose(3, 2, 0, 1).astype(np.float64)
        self.constants[f"{node.name}/bias"] = np.zeros(filters.shape[3])
        inputs = [value.name, f"{node.name}/weights", f"{node.name}/bias"]
        return self._window(node, "Conv", value, inputs, filters.shape[:2], filters.shape[3], fill=0.0, group=groups)

    def max_pool(self, node: Node) -> _Value:
        value = self._in_order(self._value(node.inputs[0]), _NHWC_IN_NCHW)
        kernel = node.attributes["ksize"][1:3]
        return self._window(node, "MaxPool", value, [value.name], kernel, value.shape[3], fill=-math.inf)

    def pad(self, node: Node) -> _Value:
        value = self._value(node.inputs[0])
        fill = float(self._constant(node.inputs[2])) if len(node.inputs) > 2 else 0.0
        padding = tuple((int(before), int(after)) for before, after in self._constant(node.inputs[1]))
        return _Value(value.name, value.shape, value.order, padding, fill)

    def combine(self, node: Node) -> _Value | Array:
        first, second = (self._results[name] for name in node.inputs)
        if node.operation == "Sub":
            second = -self._constant(node.inputs[1])
        operator = "Mul" if node.operation == "Mul" else "Add"
        values = [self._plain(node, side) for side in (first, second) if isinstance(side, _Value)]
        constants = [side for side in (first, second) if not isinstance(side, _Value)]
        match values, constants:
            case [value, other], []:
                return self._same(operator, node.name, value, [self._in_order(other, value.order).name])
            case [value], [constant]:
                return self._with_constant(operator, node.name, value, constant)
        return np.asarray(np.prod(constants, axis=0) if operator == "Mul" else np.sum(constants, axis=0))

    def batch_norm(self, node: Node) -> _Value:
        gamma, beta, mean, variance = (self._constant(name).astype(np.float64) for name in node.inputs[1:])
        scale = gamma / np.sqrt(variance + node.attributes["epsilon"])
        scaled = self._with_constant("Mul", f"{node.name}/scaled", self._value(node.inputs[0]), scale)
        return self._with_constant("Add", node.name, scaled, beta - mean * scale)

    def relu6(self, node: Node) -> _Value:
        self.constants["zero"], self.constants["six"] = np.asarray(0.0), np.asarray(6.0)
        return self._same("Clip", node.name, self._plain(node, self._value(node.inputs[0])), ["zero", "six"])

    def leaky_relu(self, node: Node) -> _Value:
        value = self._plain(node, self._value(node.inputs[0]))
        return self._same("LeakyRelu", node.name, value, [], alpha=node.attributes["alpha"])

    def sigmoid(self, node: Node) -> _Value:
        return self._same("Sigmoid", node.name, self._plain(node, self._value(node.inputs[0])), [])

    def transpose(self, node: Node) -> _Value:
        value, axes = self._value(node.inputs[0]), [int(axis) for axis in self._constant(node.inputs[1])]
        padding = tuple(value.padding[axis] for axis in axes) if value.padding else ()
        shape, order = tuple(value.shape[axis] for axis in axes), tuple(value.order[axis] for axis in axes)
        return _Value(value.name, shape, order, padding, value.fill)

    def resize(self, node: Node) -> _Value:
        value = self._in_order(self._plain(node, self._value(node.inputs[0])), _NHWC_IN_NCHW)
        if not node.attributes["half_pixel_centers"] or node.attributes["align_corners"]:
            raise BadGraph(f"node {node.name!r} resizes without half_pixel_centers, which is not converted")
        height, width = (int(side) for side in self._constant(node.inputs[1]))
        batch, old_height, old_width, channels = value.shape
        scales = np.asarray([1, 1, height / old_height, width / old_width], np.float32)
        self.constants[f"{node.name}/scales"] = scales
        inputs, mode = [value.name, "", f"{node.name}/scales"], "half_pixel"
        self._emit("Resize", inputs, node.name, mode="linear", coordinate_transformation_mode=mode)
        return _Value(node.name, (batch, height, width, channels), value.order)

    def reshape(self, node: Node) -> _Value:
        shape = [int(length) for length in self._constant(node.inputs[1])]
        if shape[0] not in (_BATCH, 1):
            raise BadGraph(f"node {node.name!r} changes the batch, which is not converted: {shape}")
        return self._reshaped(node, shape[1:])

    def squeeze(self, node: Node) -> _Value:
        shape, gone = self._value(node.inputs[0]).shape, node.attributes["squeeze_dims"]
        return self._reshaped(node, [length for axis, length in enumerate(shape) if axis not in (0, *gone)])

    def concatenate(self, node: Node) -> _Value:
        axis = int(self._constant(node.inputs[-1]))
        first, *others = (self._plain(node, self._value(name)) for name in node.inputs[:-1])
        values = [first, *(self._in_order(other, first.order) for other in others)]
        self._emit("Concat", [value.name for value in values], node.name, axis=first.order[axis])
        shape = list(first.shape)
        shape[axis] = sum(value.shape[axis] for value in values)
        return _Value(node.name, tuple(shape), first.order)

    def split(self, node: Node) -> list[_Value | Array]:
        value, axis = self._plain(node, self._value(node.inputs[0])), int(self._constant(node.inputs[2]))
        lengths = self._constant(node.inputs[1]).astype(np.int64)
        self.constants[f"{node.name}/lengths"] = lengths
        names = [f"{node.name}:{index}" for index in range(len(lengths))]
        inputs = [value.name, f"{node.name}/lengths"]
        self.nodes.append(helper.make_node("Split", inputs, names, name=node.name, axis=value.order[axis]))
        before, after = value.shape[:axis], value.shape[axis + 1 :]
        return [
            _Value(name, (*before, int(length), *after), value.order)
            for name, length in zip(names, lengths, strict=True)
        ]

    def same(self, node: Node) -> _Value | Array:
        return self._results[node.inputs[0]]

    def shape(self, node: Node) -> Array:
        return np.asarray(self._value(node.inputs[0]).shape, np.int64)

    def slice_of_shape(self, node: Node) -> Array:
        values, begin, end, step = (self._constant(name) for name in node.inputs)
        part = values[slice(int(begin[0]), int(end[0]), int(step[0]))]
        return np.asarray(part[0] if node.attributes["shrink_axis_mask"] == 1 else part)

    def pack(self, node: Node) -> Array:
        return np.stack([self._constant(name) for name in node.inputs])

    def dense(self, node: Node) -> Array:
        indices, shape, _, default = (self._constant(name) for name in node.inputs)
        if indices.size:
            raise BadGraph(f"node {node.name!r} is a SparseToDense with values, which is not converted")
        return np.full(tuple(int(length) for length in shape), default)

    def _window(
        self,
        node: Node,
        operator: str,
        value: _Value,
        inputs: list[str],
        kernel: Sequence[int],
        channels: int,
        *,
        fill: float,
        **attributes: Any,
    ) -> _Value:
        """An operation on windows of ``kernel``: TensorFlow's padding, and the padding before it, as attributes."""
        strides = node.attributes["strides"][1:3]
        if any(step != 1 for step in node.attributes.get("dilations", ())):
            raise BadGraph(f"node {node.name!r} has dilations, which are not converted")
        if value.padding and (value.fill != fill or node.attributes["padding"] != "VALID"):
            raise BadGraph(f"node {node.name!r} pads what is padded with {value.fill}, which is not converted")
        pads, sides = [], []
        for axis, size, stride in zip((1, 2), kernel, strides, strict=True):
            if node.attributes["padding"] == "SAME":
                missing = max((math.ceil(value.shape[axis] / stride) - 1) * stride + size - value.shape[axis], 0)
                pads.append((missing // 2, missing - missing // 2))
            else:
                pads.append(value.padding[axis] if value.padding else (0, 0))
            sides.append((value.shape[axis] + sum(pads[-1]) - size) // stride + 1)
        attributes |= {
            "kernel_shape": list(kernel),
            "strides": list(strides),
            "pads": [before for before, _ in pads] + [after for _, after in pads],
        }
        self._emit(operator, inputs, node.name, **attributes)
        return _Value(node.name, (value.shape[0], *sides, channels), value.order)

    def _with_constant(self, operator: str, name: str, value: _Value, constant: Array) -> _Value:
        """``value`` and a constant, a number or one for each entry of the last axis."""
        shape = [1] * len(value.shape)
        if constant.size > 1:
            if constant.shape != value.shape[-1:]:
                raise BadGraph(f"node {name!r} combines shapes {value.shape} and {constant.shape}")
            shape[value.order[-1]] = constant.size
        self.constants[f"{name}/constant"] = constant.astype(np.float64).reshape(shape)
        return self._same(operator, name, value, [f"{name}/constant"])

    def _same(self, operator: str, name: str, value: _Value, others: list[str], **attributes: Any) -> _Value:
        """An operation that leaves shape and order as they are."""
        self._emit(operator, [value.name, *others], name, **attributes)
        return _Value(name, value.shape, value.order)

    def _reshaped(self, node: Node, lengths: list[int]) -> _Value:
        value = self._in_order(self._plain(node, self._value(node.inputs[0])), None)
        if -1 in lengths:
            known = math.prod(length for length in lengths if length != -1)
            lengths[lengths.index(-1)] = math.prod(value.shape[1:]) // known
        self.constants[f"{node.name}/shape"] = np.asarray([_BATCH, *lengths], np.int64)
        self._emit("Reshape", [value.name, f"{node.name}/shape"], node.name)
        return _Value(node.name, (_BATCH, *lengths), tuple(range(1 + len(lengths))))

    def _in_order(self, value: _Value, order: tuple[int, ...] | None) -> _Value:
        """The value with its axes at ``order`` in ONNX, or as TensorFlow has them."""
        order = tuple(range(len(value.shape))) if order is None else order
        if value.order == order:
            return value
        axes = [value.order[order.index(axis)] for axis in range(len(order))]
        name = f"{value.name}/{''.join(map(str, axes))}"
        if all(node.output[0] != name for node in self.nodes):
            self._emit("Transpose", [value.name], name, perm=axes)
        return _Value(name, value.shape, order, value.padding, value.fill)

    def _plain(self, node: Node, value: _Value) -> _Value:
        if value.padding:
            raise BadGraph(f"node {node.name!r} is a {node.operation} of a padded value, which is not converted")
        return value

    def _value(self, name: str) -> _Value:
        result = self._results[name]
        if not isinstance(result, _Value):
            raise BadGraph(f"node {name!r} is a constant; expected a value")
        return result

    def _constant(self, name: str) -> Array:
        result = self._results[name]
        if isinstance(result, _Value):
            raise BadGraph(f"node {name!r} depends on the input; expected a constant")
        return result

    def _emit(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> None:
        self.nodes.append(helper.make_node(operator, inputs, [output], name=output, **attributes))


_OPERATIONS: dict[str, Callable[[_Converter, Node], _Value | Array | list[_Value | Array]]] = {
    "Add": _Converter.combine,
    "AddN": _Converter.combine,
    "AddV2": _Converter.combine,
    "BiasAdd": _Converter.combine,
    "ConcatV2": _Converter.concatenate,
    "Conv2D": _Converter.convolution,
    "DepthwiseConv2dNative": _Converter.convolution,
    "FusedBatchNorm": _Converter.batch_norm,
    "Identity": _Converter.same,
    "LeakyRelu": _Converter.leaky_relu,
    "MaxPool": _Converter.max_pool,
    "Mul": _Converter.combine,
    "Pack": _Converter.pack,
    "Pad": _Converter.pad,
    "PadV2": _Converter.pad,
    "Relu6": _Converter.relu6,
    "Reshape": _Converter.reshape,
    "ResizeBilinear": _Converter.resize,
    "Shape": _Converter.shape,
    "Sigmoid": _Converter.sigmoid,
    "SparseToDense": _Converter.dense,
    "SplitV": _Converter.split,
    "Squeeze": _Converter.squeeze,
    "StridedSlice": _Converter.slice_of_shape,
    "Sub": _Converter.combine,
    "Transpose": _Converter.transpose,
}
