"""Turns a network's float32 arithmetic into float16 by rewriting its ONNX graph.

TensorRT 11 takes the precision of every layer from the graph. Inputs and outputs keep their types, and so do the
definition's last steps at the door (``onestream.serving.graph.onnx_graph``). What stays in float32, with casts
around it:

* operators that sum over many values, grow fast, or rank results (``KEPT_OPERATORS``);
* nodes with a constant that float16 cannot hold: a finite value above 65504, or a single number that would become 0
  (an epsilon);
* inputs and outputs that ONNX itself allows in float32 only (the scales of Resize), and operators of other domains.

Which inputs go together is read from ONNX's operator schemas, hence no list of operators to keep up to date. ONNX
Runtime's own converter is none for this: between two operators that it leaves alone it still rounds to float16, which
at the door more than doubles the mean error, and it replaces constants that float16 cannot hold by ones that it can.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from onestream.serving.engine.served import DOOR_PREFIX
from onestream.serving.errors import BadNetwork
from onestream.wire.plain_text import first_line

KEPT_OPERATORS = frozenset(
    {
        "ArgMax",
        "ArgMin",
        "Cast",
        "CumSum",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "Exp",
        "GroupNormalization",
        "InstanceNormalization",
        "LayerNormalization",
        "LogSoftmax",
        "LpNormalization",
        "MeanVarianceNormalization",
        "NonMaxSuppression",
        "Pow",
        "QuantizeLinear",
        "RMSNormalization",
        "Range",
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceMean",
        "ReduceProd",
        "ReduceSum",
        "ReduceSumSquare",
        "Softmax",
        "TopK",
    }
)
"""Operators that are left in float32: sums of many terms, powers and exponentials, conversions, and rankings."""

_HALF = np.finfo(np.float16)
_FLOAT, _FLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16


def to_float16(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same network with its weights and activations in float16; the argument is not changed.

    Raises ``BadNetwork`` where the types of its tensors cannot be inferred.
    """
    half = onnx.ModelProto()
    half.CopyFrom(model)
    _Conversion(half).run()
    return half


class _Conversion:
    """One pass over a graph, which it changes."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._graph = model.graph
        # The standard domain has two names.
        self._opsets = {
            "" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in model.opset_import
        }
        self._types = _tensor_types(model)
        self._floats = {name for name, kind in self._types.items() if kind == _FLOAT}
        self._constants = _constants(model.graph)
        self._captured = {name for node in model.graph.node for name in _captured(node)}
        self._native: dict[str, int] = {}  # what its producer gives
        self._copies: dict[tuple[str, int], str] = {}
        self._nodes: list[onnx.NodeProto] = []

    def run(self) -> None:
        for node in list(self._graph.node):
            convertible = self._convertible(node)
            for index, name in enumerate(node.input):
                if name in self._floats:
                    node.input[index] = self._as_type(name, _FLOAT16 if index in convertible[0] else _FLOAT)
            self._nodes.append(node)
            for index, name in enumerate(node.output):
                if index in convertible[1] and name in self._floats:
                    self._native[name] = _FLOAT16
        self._restore_outputs()
        used = {name for node in self._nodes for name in (*node.input, *_captured(node))}
        used.update(value.name for value in self._graph.output)
        kept = [node for node in self._nodes if node.op_type != "Constant" or node.output[0] in used]
        del self._graph.node[:]
        self._graph.node.extend(kept)
        # An old file lists its weights as inputs too, and one without a value would be asked for.
        used.update(value.name for value in self._graph.input)
        initializers = [tensor for tensor in self._graph.initializer if tensor.name in used]
        del self._graph.initializer[:]
        self._graph.initializer.extend(initializers)
        del self._graph.value_info[:]

    def _convertible(self, node: onnx.NodeProto) -> tuple[set[int], set[int]]:
        """Indices of the node's inputs and outputs that become float16 together; empty where it is left alone."""
        alone: tuple[set[int], set[int]] = (set(), set())
        if node.name.startswith(DOOR_PREFIX) or node.op_type in KEPT_OPERATORS or _has_subgraph(node):
            return alone
        if any(name in self._captured for name in node.output) or not self._constants_fit(node):
            return alone
        try:
            domain = "" if node.domain == "ai.onnx" else node.domain
            schema = onnx.defs.get_schema(node.op_type, self._opsets.get(domain, 1), domain)
        except onnx.defs.SchemaError:
            return alone
        free = {
            constraint.type_param_str
            for constraint in schema.type_constraints
            if "tensor(float16)" in constraint.allowed_type_strs
        }
        inputs = {i for i in range(len(node.input)) if _type_of(schema.inputs, i) in free}
        outputs = {i for i in range(len(node.output)) if _type_of(schema.outputs, i) in free}
        # What comes from an operator that ONNX does not know is left to meet the type that it always met.
        if any(node.input[i] and node.input[i] not in self._types for i in inputs):
            return alone
        # Sequences of tensors, whose type would have to change with that of their elements.
        if any(self._types.get(name) == TensorProto.UNDEFINED for name in (*node.input, *node.output)):
            return alone
        # Without a float input the type of the output is an attribute's, or that of what the node makes out of nothing.
        if not any(node.input[i] in self._floats for i in inputs):
            return alone
        return inputs, outputs

    def _constants_fit(self, node: onnx.NodeProto) -> bool:
        return all(_fits(self._constants[name]) for name in node.input if name in self._constants)

    def _as_type(self, name: str, wanted: int) -> str:
        """The name of a float tensor in the wanted type, after a cast or a copy where it comes in the other."""
        if self._native.get(name, _FLOAT) == wanted:
            return name
        if (name, wanted) not in self._copies:
            copy = f"{name}/{'float16' if wanted == _FLOAT16 else 'float32'}"
            self._copies[name, wanted] = copy
            if name in self._constants:
                values = self._constants[name].astype(np.float16)
                self._graph.initializer.append(numpy_helper.from_array(values, copy))
            else:
                self._nodes.append(helper.make_node("Cast", [name], [copy], name=copy, to=wanted))
        return self._copies[name, wanted]

    def _restore_outputs(self) -> None:
        """Give the graph's outputs their own type and name back."""
        for value in self._graph.output:
            if self._native.get(value.name, _FLOAT) != _FLOAT16 or value.name not in self._floats:
                continue
            inner = value.name + "/inner"
            for node in self._nodes:
                node.input[:] = [inner if name == value.name else name for name in node.input]
                node.output[:] = [inner if name == value.name else name for name in node.output]
            name = value.name + "/float32_output"
            self._nodes.append(helper.make_node("Cast", [inner], [value.name], name=name, to=_FLOAT))


def _tensor_types(model: onnx.ModelProto) -> dict[str, int]:
    """Element types of the main graph's tensors by name; what other domains' operators make is left out."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    except onnx.shape_inference.InferenceError as error:
        raise BadNetwork(
            f"float16 needs every tensor's type, and ONNX cannot infer them: {first_line(error)}"
        ) from None
    graph = inferred.graph
    values = (*graph.input, *graph.value_info, *graph.output)
    found = {value.name: value.type.tensor_type.elem_type for value in values}
    return found | {tensor.name: tensor.data_type for tensor in graph.initializer}


def _constants(graph: onnx.GraphProto) -> dict[str, npt.NDArray[np.float32]]:
    """The float32 constants: initializers that no input overrides, and the outputs of Constant nodes."""
    inputs = {value.name for value in graph.input}
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer if tensor.name not in inputs}
    for node in graph.node:
        if node.op_type == "Constant":
            value = helper.get_attribute_value(node.attribute[0])
            if node.attribute[0].name == "value":
                found[node.output[0]] = numpy_helper.to_array(value)
            elif node.attribute[0].name in ("value_float", "value_floats"):
                found[node.output[0]] = np.asarray(value, np.float32)
    return {name: values for name, values in found.items() if values.dtype == np.float32}


def _fits(values: npt.NDArray[np.float32]) -> bool:
    """Whether float16 holds a constant: nothing finite overflows, and a single number other than 0 stays one."""
    magnitudes = np.abs(values[np.isfinite(values)])
    if magnitudes.size and magnitudes.max() > _HALF.max:
        return False
    return values.size != 1 or float(values.astype(np.float16).item()) != 0 or values.item() == 0


def _type_of(formal: list[onnx.defs.OpSchema.FormalParameter], index: int) -> str:
    """The type parameter of an input or output; the last formal one stands for all that follow if it is variadic."""
    if index < len(formal):
        parameter = formal[index]
    elif formal and formal[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic:
        parameter = formal[-1]
    else:
        return ""
    return str(parameter.type_str)


def _subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _has_subgraph(node: onnx.NodeProto) -> bool:
    return next(_subgraphs(node), None) is not None


def _captured(node: onnx.NodeProto) -> set[str]:
    """Names that the bodies of a node read; those of the outer graph among them are its hidden inputs."""
    names: set[str] = set()
    for graph in _subgraphs(node):
        names.update(value.name for value in graph.output)
        for inner in graph.node:
            names.update(inner.input)
            names |= _captured(inner)
    return names
