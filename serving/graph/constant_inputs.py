"""Puts constants in the place of a network's further inputs, such as the size that a detector scales its boxes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onestream.serving.engine.served import DOOR_PREFIX
from onestream.serving.errors import BadNetwork, BadPipeline

Value = float | Sequence[float]


def with_constants(model: onnx.ModelProto, values: Mapping[str, Value]) -> None:
    """Let inputs of these names be constants, the same for every image; the model is changed.

    A value is a number or a row of some. An input of one dimension more has a batch, of which each image gets it.
    Raises ``BadPipeline`` for a name that no input has, and ``BadNetwork`` where a value does not fit its input.
    """
    graph = model.graph
    constants = {tensor.name for tensor in graph.initializer}
    inputs = {value.name: value for value in graph.input if value.name not in constants}
    if unknown := sorted(values.keys() - inputs.keys()):
        raise BadPipeline(f"network_inputs names {unknown[0]!r}; the inputs are {', '.join(inputs)}")
    images = [name for name in inputs if name not in values]
    nodes: list[onnx.NodeProto] = []
    for name, value in values.items():
        tensor = inputs[name].type.tensor_type
        array = np.asarray(value, helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        sides = [dim.dim_value or None for dim in tensor.shape.dim]
        has_batch = len(sides) == array.ndim + 1
        fits = len(sides) == array.ndim or (has_batch and len(images) == 1)
        own = sides[1:] if has_batch else sides
        if not fits or any(side not in (None, length) for side, length in zip(own, array.shape, strict=True)):
            shape = ["any" if side is None else side for side in sides]
            raise BadNetwork(f"network_inputs has {list(array.shape)} numbers for {name!r}, which takes {shape}")
        if not has_batch:
            graph.initializer.append(numpy_helper.from_array(array, name))
            continue
        part = f"{DOOR_PREFIX}input_{len(nodes)}_"
        graph.initializer.append(numpy_helper.from_array(array[None], f"{part}value"))
        graph.initializer.append(numpy_helper.from_array(np.array([0], np.int64), f"{part}first"))
        graph.initializer.append(numpy_helper.from_array(np.array(array.shape, np.int64), f"{part}sides"))
        nodes += [
            helper.make_node("Shape", [images[0]], [f"{part}shape"]),
            helper.make_node("Gather", [f"{part}shape", f"{part}first"], [f"{part}batch"], axis=0),
            helper.make_node("Concat", [f"{part}batch", f"{part}sides"], [f"{part}target"], axis=0),
            helper.make_node("Expand", [f"{part}value", f"{part}target"], [name]),
        ]
    kept = [value for value in graph.input if value.name not in values]
    del graph.input[:]
    graph.input.extend(kept)
    own_nodes = list(graph.node)
    del graph.node[:]
    graph.node.extend([*nodes, *own_nodes])
