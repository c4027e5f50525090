"""Reads a served network's inputs and outputs from its ONNX file."""

from __future__ import annotations

from itertools import takewhile

import onnx
from onnx import helper

from onestream.postprocess.network import Activation, NetworkOutput
from onestream.serving.engine.base import EngineTensor
from onestream.serving.errors import BadNetwork
from onestream.wire.tensor_names import PIXELS, PIXELS_OF

DOOR = PIXELS
DOOR_PREFIX = "onestream/"
"""Begins the names of the nodes that run the definition's last steps."""

_ACTIVATIONS: dict[str, Activation] = {"Softmax": "softmax", "Sigmoid": "sigmoid"}
"""Operators whose output are scores already. LogSoftmax is none: softmax of its output are the right scores."""

_KEEP_VALUES = frozenset(
    {"Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Dropout"}
    | {"QuantizeLinear", "DequantizeLinear"}
)
"""Operators that change the shape, type or precision of values, or nothing."""


def first_activation(model: onnx.ModelProto, output: str) -> Activation | None:
    """The activation of an output's first columns: as ``NetworkOutput.activation``, also within a concatenation."""
    makers = _makers(model.graph)
    while (node := makers.get(output)) is not None and node.op_type == "Concat":
        output = node.input[0]
    return _activation(output, makers)


def load_served(model: bytes, *, sizes_vary: bool = False) -> onnx.ModelProto:
    """Parse a served network (``onestream.serving.graph.onnx_graph``), ``sizes_vary``: one that may take any size.

    Raises ``BadNetwork`` where it is not ONNX, or its input is not the pixels, uint8 (batch, height, width, channels).
    """
    try:
        loaded = onnx.load_model_from_string(model)
    except Exception as error:  # the parser's exception type differs between protobuf versions
        raise BadNetwork(f"not an ONNX file ({type(error).__name__})") from None
    pixels = next((value for value in loaded.graph.input if value.name == DOOR), None)
    known = slice(2, None) if sizes_vary else slice(None)
    if pixels is None or pixels.type.tensor_type.elem_type != onnx.TensorProto.UINT8 or 0 in _dims(pixels)[known]:
        seen = ", ".join(_text(value) for value in loaded.graph.input) or "no input"
        raise BadNetwork(
            f"expected a served network, which takes {DOOR!r}, uint8 (batch, height, width, channels); got {seen}. "
            "Build the pipeline again: onestream build"
        )
    return loaded


def outputs(model: onnx.ModelProto) -> list[NetworkOutput]:
    """The outputs of a served network, with NumPy dtype names."""
    found, makers = [], _makers(model.graph)
    for value in model.graph.output:
        tensor = value.type.tensor_type
        dims = tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim[1:])
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
        found.append(NetworkOutput(value.name, dtype, dims, _activation(value.name, makers)))
    return found


def other_inputs(model: onnx.ModelProto) -> tuple[EngineTensor, ...]:
    """The inputs of a served network beside its pixels, with -1 for sizes that vary."""
    constants = {tensor.name for tensor in model.graph.initializer}
    return tuple(
        EngineTensor(
            value.name,
            helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name,
            tuple(size or -1 for size in _dims(value)),
        )
        for value in model.graph.input
        if value.name not in {*constants, DOOR}
    )


def tensors(model: onnx.ModelProto) -> tuple[tuple[EngineTensor, ...], tuple[EngineTensor, ...]]:
    """The inputs and the outputs of a served network, of the inputs the pixels first.

    Raises ``BadNetwork`` where a size depends on the image or the request, or ONNX cannot tell: memory is allocated
    once.
    """
    given = outputs(model)
    if any(None in output.dims for output in given):
        given = outputs(onnx.shape_inference.infer_shapes(model))
    found = []
    for output in given:
        dims = tuple(dim for dim in output.dims if dim is not None)
        if len(dims) < len(output.dims):
            raise BadNetwork(f"output {output.name!r} has size {list(output.dims)}; on a GPU every size must be known")
        found.append(EngineTensor(output.name, output.dtype, dims))
    pixels = next(value for value in model.graph.input if value.name == DOOR)
    inputs = (EngineTensor(DOOR, "uint8", _dims(pixels)), *other_inputs(model))
    for one in inputs:
        if any(size < 1 for size in one.dims):
            raise BadNetwork(f"input {one.name!r} has size {list(one.dims)}; on a GPU every size must be known")
    return inputs, tuple(found)


def without_door(model: onnx.ModelProto) -> onnx.ModelProto:
    """The network behind the door of a served one: it takes what the definition gives, normalized.

    The argument is not changed.
    """
    behind = onnx.ModelProto()
    behind.CopyFrom(model)
    graph = behind.graph
    door = list(takewhile(lambda node: node.name.startswith(DOOR_PREFIX), graph.node))
    start = door[-1].output[0]
    inferred = onnx.shape_inference.infer_shapes(model).graph
    given = next(value for value in (*inferred.value_info, *inferred.output) if value.name == start)
    own = list(graph.node)[len(door) :]
    kept = [value for value in graph.input if value.name != DOOR]
    del graph.node[:], graph.input[:]
    graph.node.extend(own)
    graph.input.extend([given, *kept])
    return behind


def cast_first(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same served network with its pixels cast before they are transposed, which TensorRT asks for.

    Moving values about and casting them commute, so every value stays the same. The door transposes first, since uint8
    has a quarter of the bytes; TensorRT fuses both. The argument is not changed; a network whose pixels reach
    something else than Transpose, Identity and Cast is returned as it is.
    """
    for one in model.graph.input:
        if one.name == DOOR or one.name.startswith(PIXELS_OF):
            model = _cast_first(model, one.name)
    return model


def _cast_first(model: onnx.ModelProto, door: str) -> onnx.ModelProto:
    followed: list[onnx.NodeProto] = []
    current = door
    while True:
        readers = [node for node in model.graph.node if current in node.input]
        if len(readers) != 1 or readers[0].op_type not in ("Transpose", "Identity"):
            break
        followed.append(readers[0])
        current = readers[0].output[0]
    types = {node.attribute[0].i for node in readers if node.op_type == "Cast"}
    is_output = any(value.name == current for value in model.graph.output)
    if not followed or is_output or len(types) != 1 or any(node.op_type != "Cast" for node in readers):
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    start = f"{DOOR_PREFIX}cast_{door}"
    moved = {door: start} | {node.output[0]: node.output[0] + "_cast" for node in followed}
    for node in changed.graph.node:
        if node.op_type == "Cast" and node.input[0] == current:
            node.op_type = "Identity"
            del node.attribute[:]
        node.input[:] = [moved.get(name, name) for name in node.input]
        node.output[:] = [moved.get(name, name) for name in node.output]
    changed.graph.node.insert(0, helper.make_node("Cast", [door], [start], name=start, to=types.pop()))
    del changed.graph.value_info[:]
    return changed


def _makers(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    """The node that computed the values of each tensor, before those that keep values."""
    makers: dict[str, onnx.NodeProto] = {}
    for node in graph.node:
        maker = makers.get(node.input[0]) if node.input and node.op_type in _KEEP_VALUES else node
        if maker is not None:
            makers.update(dict.fromkeys(node.output, maker))
    return makers


def _activation(tensor: str, makers: dict[str, onnx.NodeProto]) -> Activation | None:
    node = makers.get(tensor)
    if node is None or node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type == "Div":
        # Softmax in its parts, as exporters write it that know no such operator.
        above, below = (makers.get(name) for name in (*node.input, "", "")[:2])
        is_softmax = (
            above is not None
            and below is not None
            and (above.op_type, below.op_type) == ("Exp", "ReduceSum")
            and any(makers.get(name) is above for name in below.input[:1])
        )
        return "softmax" if is_softmax else None
    return _ACTIVATIONS.get(node.op_type)


def _dims(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    """Sizes without the batch, 0 where they vary."""
    return tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim[1:])


def _text(value: onnx.ValueInfoProto) -> str:
    tensor = value.type.tensor_type
    dims = ", ".join(str(dim.dim_value or dim.dim_param or "?") for dim in tensor.shape.dim)
    return f"{value.name!r}, {onnx.TensorProto.DataType.Name(tensor.elem_type).lower()} ({dims})"
