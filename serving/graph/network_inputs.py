"""Gives a network's inputs what a pipeline file says: pixels, the picture's size, values of the request, constants.

The served graph takes ``pixels``, ``pixels/NAME`` for another picture of the request, ``image_size`` where an input
follows from it, and the inputs of the request, under these names on every engine. Constants, and what follows from the
picture's size, are computed by nodes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from onestream.preprocess import Definition
from onestream.preprocess.plan import Planner
from onestream.serving.engine.served import DOOR_PREFIX, other_inputs
from onestream.serving.errors import BadNetwork, BadPipeline
from onestream.serving.pipeline import InputSource, InputValue, NetworkInput
from onestream.wire.tensor_names import IMAGE, IMAGE_SIZE, PIXELS, PIXELS_OF

TENSOR_NAME = r"[\w.:/@+-]{1,200}"
"""The names of tensors that Triton's configuration can hold, and that a comma separates."""
_ALLOWED = f"{', '.join(get_args(InputSource))}, {{image: NAME}}, a number or a list of numbers"
NUMERIC_DTYPES = (
    TensorProto.UINT8,
    TensorProto.INT32,
    TensorProto.INT64,
    TensorProto.BOOL,
    TensorProto.FLOAT16,
    TensorProto.FLOAT,
    TensorProto.DOUBLE,
)
"""Of tensors that a network's clients send and receive."""
EXAMPLE_SIDE = 4
"""Of a dimension that may have any size, for runs whose results do not matter."""
_PICTURES = ((480, 640), (375, 500), (1080, 810))


def with_inputs(model: onnx.ModelProto, wanted: Mapping[str, NetworkInput], definition: Definition) -> dict[str, str]:
    """Give a network's inputs what a pipeline file says; the model is changed, and takes the picture first.

    Returns the inputs that take pictures, that of the picture first, and under which names they are served.
    The input that ``wanted`` does not name takes the pixels. A constant is a number or a row of some; an input of one
    dimension more has a batch, of which each image gets it. Raises ``BadPipeline`` for a name that no input has, and
    ``BadNetwork`` where an input is left, or does not take what it is given.
    """
    graph = model.graph
    constants = {tensor.name for tensor in graph.initializer}
    inputs = {value.name: value for value in graph.input if value.name not in constants}
    if unknown := sorted(wanted.keys() - inputs.keys()):
        raise BadPipeline(f"network_inputs names {unknown[0]!r}; the inputs are {', '.join(inputs)}")
    left = [name for name in inputs if name not in wanted]
    named = [name for name, source in wanted.items() if source == "pixels"]
    pictures = named or left
    if len(pictures) != 1 or (named and left):
        raise BadNetwork(
            f"expected one input, the image; got {len(named + left)}: {', '.join(named + left)}. network_inputs says "
            f"what each takes: {_ALLOWED}"
        )
    nodes, doors = _Nodes(model, pictures[0]), {pictures[0]: PIXELS}
    for name, source in wanted.items():
        if isinstance(source, str):
            _FROM[source](nodes, inputs[name], definition)
        elif isinstance(source, dict):
            served = PIXELS_OF + source["image"]
            _check_picture(name, source["image"], definition, is_taken=served in doors.values())
            doors[name], nodes.inputs[name] = served, inputs[name]
        else:
            _constant(nodes, inputs[name], source)
    kept = [value for value in graph.input if value.name in constants]
    own = list(graph.node)
    del graph.input[:], graph.node[:]
    graph.input.extend([inputs[pictures[0]], *nodes.inputs.values(), *kept])
    graph.node.extend([*nodes.nodes, *own])
    return doors


def require_pixels_alone(served: onnx.ModelProto, what: str) -> None:
    """Raise ``BadPipeline`` where a served network has inputs beside its pixels; ``what`` cannot give these."""
    if others := other_inputs(served):
        names = ", ".join(one.name for one in others)
        raise BadPipeline(
            f"{what} takes a network of the pixels and constants; by network_inputs this one takes {names} too"
        )


def examples(served: onnx.ModelProto, images: int) -> dict[str, npt.NDArray[Any]]:
    """Small values of the inputs beside the pixels for so many images, to run a network with."""
    generator = np.random.default_rng(0)
    found: dict[str, npt.NDArray[Any]] = {}
    for one in other_inputs(served):
        shape = (images, *(EXAMPLE_SIDE if side < 0 else side for side in one.dims))
        # Words of a text are numbers below the length of a table, which nothing states; 0 and 1 are in every one.
        low, high = (200, 900) if one.name == IMAGE_SIZE else (0, 2)
        found[one.name] = generator.integers(low, high, shape).astype(one.dtype)
    return found


class _Nodes:
    """The nodes before a network, and the inputs of the served one beside the pixels."""

    def __init__(self, model: onnx.ModelProto, picture: str) -> None:
        self.graph, self._picture = model.graph, picture
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: dict[str, onnx.ValueInfoProto] = {}

    def add(self, op: str, *inputs: str, output: str = "", **attributes: object) -> str:
        """The name of the one output of a new node."""
        name = output or f"{DOOR_PREFIX}input_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def number(self, values: npt.NDArray[Any]) -> str:
        """The name of a new constant."""
        name = f"{DOOR_PREFIX}input_value_{len(self.graph.initializer)}"
        self.graph.initializer.append(numpy_helper.from_array(values, name))
        return name

    def batch(self) -> str:
        """How many images there are, of shape (1,)."""
        return self.add("Gather", self.add("Shape", self._picture), self.number(np.array([0], np.int64)), axis=0)

    def size(self) -> str:
        """Heights and widths of the pictures, int32 (batch, 2)."""
        value = helper.make_tensor_value_info(IMAGE_SIZE, TensorProto.INT32, ["batch", 2])
        self.inputs[IMAGE_SIZE] = value
        return IMAGE_SIZE


def _constant(nodes: _Nodes, value: onnx.ValueInfoProto, numbers: InputValue) -> None:
    array = _cast(numbers, value)
    sides = _sides(value)
    has_batch = len(sides) == array.ndim + 1
    fits = has_batch or len(sides) == array.ndim
    own = sides[1:] if has_batch else sides
    if not fits or any(side not in (None, length) for side, length in zip(own, array.shape, strict=True)):
        raise BadNetwork(
            f"network_inputs has {list(array.shape)} numbers for {value.name!r}, which takes {_shape(value)}"
        )
    if not has_batch:
        nodes.graph.initializer.append(numpy_helper.from_array(array, value.name))
        return
    target = nodes.add("Concat", nodes.batch(), nodes.number(np.array(array.shape, np.int64)), axis=0)
    nodes.add("Expand", nodes.number(array[None]), target, output=value.name)


def _cast(numbers: InputValue, value: onnx.ValueInfoProto) -> npt.NDArray[Any]:
    """The numbers as an input holds them. Raises ``BadNetwork`` for one that it cannot hold."""
    elem_type = value.type.tensor_type.elem_type
    if elem_type == TensorProto.STRING:
        raise BadNetwork(f"the input {value.name!r} takes text; network_inputs gives numbers")
    given, dtype = np.asarray(numbers, np.float64), helper.tensor_dtype_to_np_dtype(elem_type)
    with np.errstate(all="ignore"):
        array: npt.NDArray[Any] = given.astype(dtype)
    # Floats may be rounded; a number never becomes another otherwise.
    held = np.isfinite(array.astype(np.float64)) if "float" in dtype.name else array == given
    if not held.all():
        raise BadNetwork(f"the input {value.name!r} takes {dtype.name}, which does not hold {given[~held].flat[0]:g}")
    return array


def _from_request(nodes: _Nodes, value: onnx.ValueInfoProto, _definition: Definition) -> None:
    tensor = value.type.tensor_type
    is_own = value.name in (IMAGE, PIXELS, IMAGE_SIZE) or value.name.startswith(PIXELS_OF)
    if is_own or not re.fullmatch(TENSOR_NAME, value.name):
        raise BadNetwork(
            f"the input {value.name[:60]!r} cannot come with a request; allowed: {TENSOR_NAME}, but {IMAGE}, {PIXELS}, "
            f"{PIXELS_OF}… and {IMAGE_SIZE}, which are tensors of onestream's"
        )
    if tensor.elem_type not in NUMERIC_DTYPES:
        names = ", ".join(TensorProto.DataType.Name(dtype).lower() for dtype in NUMERIC_DTYPES)
        seen = TensorProto.DataType.Name(tensor.elem_type).lower()
        raise BadNetwork(f"the input {value.name!r} takes {seen}, which cannot come with a request; allowed: {names}")
    if len(_sides(value)) < 2:
        raise BadNetwork(
            f"the input {value.name!r} takes {_shape(value)}; one that comes with a request has the batch first and at "
            "least one dimension more, such as ['any', 1]"
        )
    nodes.inputs[value.name] = value


def _check_picture(name: str, picture: str, definition: Definition, *, is_taken: bool) -> None:
    """Raise ``BadPipeline`` where an input cannot take another picture of this name."""
    where = f"network_inputs.{name}: {{image: {picture}}}"
    if is_taken or picture in (IMAGE, PIXELS, IMAGE_SIZE):
        reason = "another input takes it" if is_taken else "a tensor of onestream's has this name"
        raise BadPipeline(f"{where}: {reason}; expected a name of its own, such as second")
    if None in definition.output_spec.size_hw:
        raise BadPipeline(
            f"{where} is for a definition whose output has one size; end its geometry with center_crop, pad, letterbox "
            "or an exact resize"
        )


def _size(nodes: _Nodes, value: onnx.ValueInfoProto, _definition: Definition) -> None:
    _from_size(nodes, value, nodes.size())


def _size_wh(nodes: _Nodes, value: onnx.ValueInfoProto, _definition: Definition) -> None:
    _from_size(nodes, value, nodes.add("Gather", nodes.size(), nodes.number(np.array([1, 0], np.int64)), axis=1))


def _scale(nodes: _Nodes, value: onnx.ValueInfoProto, definition: Definition) -> None:
    """Of the two sides of the network's input as shares of the picture's."""
    planner, (height, width) = Planner(definition), definition.output_spec.size_hw
    found = [planner.mapping(size) for size in _PICTURES] if height and width else []
    if not found or any(
        one.offset != (0, 0) or not np.allclose(np.multiply(one.scale, one.source_hw), one.canvas_hw) for one in found
    ):
        raise BadPipeline(
            f"network_inputs.{value.name}: image_scale is for a definition that resizes every picture to one size; "
            "its geometry must be one exact resize"
        )
    size = nodes.add("Cast", nodes.size(), to=TensorProto.FLOAT)
    _from_size(nodes, value, nodes.add("Div", nodes.number(np.array([height, width], np.float32)), size))


def _from_size(nodes: _Nodes, value: onnx.ValueInfoProto, numbers: str) -> None:
    sides = _sides(value)
    if len(sides) != 2 or sides[1] not in (None, 2):
        raise BadNetwork(f"the input {value.name!r} takes {_shape(value)}; a size is ['any', 2]")
    nodes.add("Cast", numbers, output=value.name, to=value.type.tensor_type.elem_type)


def _pixels(nodes: _Nodes, value: onnx.ValueInfoProto, definition: Definition) -> None:
    """The picture's own input, which the definition's last steps lead to (``onnx_graph``)."""


_FROM = {
    "pixels": _pixels,
    "request": _from_request,
    "image_size": _size,
    "image_size_wh": _size_wh,
    "image_scale": _scale,
}
"""What makes the values of an input, by its ``InputSource``."""


def _sides(value: onnx.ValueInfoProto) -> list[int | None]:
    """The sizes of an input, with the batch; None where they vary, which Paddle's exporters write as -1."""
    return [dim.dim_value if dim.dim_value > 0 else None for dim in value.type.tensor_type.shape.dim]


def _shape(value: onnx.ValueInfoProto) -> list[int | str]:
    return ["any" if side is None else side for side in _sides(value)]
