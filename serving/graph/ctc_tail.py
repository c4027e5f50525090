"""Appends to a text recognizer the nodes that choose the best class of each step, and finds its characters.

A step has a probability for every character, of which there are thousands: only the best leaves the graph.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from onestream.postprocess.labels import labels_in, text_of
from onestream.serving.engine import served as served_network
from onestream.serving.errors import BadNetwork, BadPipeline
from onestream.serving.graph.onnx_nodes import OLDEST_OPSET, TAIL_PREFIX, Nodes, opset
from onestream.wire.tensor_names import CTC

_CHARACTERS_KEY = "character"
"""Where PaddleOCR's exports keep their characters, one a line."""


def append_ctc_tail(model: onnx.ModelProto) -> int:
    """Let a recognizer give ``ctc_classes``, int32 (batch, steps), and ``ctc_scores``, float32, their probabilities.

    The model is changed. Its output is float (batch, steps, classes), probabilities where it ends in softmax and
    logits where it does not. Returns how many classes there are. Raises ``BadNetwork`` for any other network, and for
    an opset below 11.
    """
    outputs = served_network.outputs(model)
    output = outputs[0]
    classes = output.dims[-1] if output.dims else None
    is_float = output.dtype.startswith("float")
    if len(outputs) != 1 or len(output.dims) != 2 or classes is None or classes < 2 or not is_float:
        shapes = ", ".join(f"{out.name} {out.dtype} {[None, *out.dims]}" for out in outputs)
        raise BadNetwork(
            f"text takes one output of floats, (batch, steps, classes), with a known number of classes; got {shapes}. "
            "network_outputs: [NAME] in the pipeline file takes one of several"
        )
    if output.activation == "sigmoid":
        raise BadNetwork(f"text takes logits or softmax over the classes; {output.name!r} comes from sigmoid")
    if opset(model) < OLDEST_OPSET:
        raise BadNetwork(f"text takes ONNX opset {OLDEST_OPSET} or newer; the file has {opset(model)}")
    if taken := {name for node in model.graph.node for name in node.output} & set(CTC):
        raise BadNetwork(f"its tensor {min(taken)!r} has a name that the build gives; rename it")
    nodes, graph = Nodes(model), model.graph
    values = output.name
    if output.dtype != "float32":
        values = nodes.add("Cast", values, to=TensorProto.FLOAT)
    if output.activation is None:
        values = nodes.add("Softmax", values, axis=2)
    best = (nodes.add("ArgMax", values, axis=2, keepdims=0), nodes.reduced("ReduceMax", values, axis=2))
    sides = list(graph.output[0].type.tensor_type.shape.dim)[:2]
    del graph.output[:]
    for name, tensor, dtype in zip(CTC, best, (TensorProto.INT32, TensorProto.FLOAT), strict=True):
        graph.node.append(helper.make_node("Cast", [tensor], [name], name=TAIL_PREFIX + name, to=dtype))
        value = helper.make_tensor_value_info(name, dtype, [None, None])
        for dim, side in zip(value.type.tensor_type.shape.dim, sides, strict=True):
            dim.CopyFrom(side)
        graph.output.append(value)
    onnx.checker.check_model(model)
    return classes


def characters_of(model: onnx.ModelProto, classes: int | None, given: str | None) -> str:
    """The characters of a recognizer's classes from 1 on, one a line: the text of its labels file.

    ``given`` is the text of the file that the pipeline names; without it they are the network's own. A class after the
    last is a space. Raises ``BadPipeline`` where there are none, or another number than there are classes.
    """
    text = given
    if text is None:
        text = next((entry.value for entry in model.metadata_props if entry.key == _CHARACTERS_KEY), None)
    if text is None:
        raise BadPipeline(
            f"postprocess.characters is missing, and the network's metadata hold no {_CHARACTERS_KEY!r}; name a file "
            "with one character a line"
        )
    try:
        characters = labels_in(text.encode(), f"the network's {_CHARACTERS_KEY!r}", spaces=True)
    except ValueError as error:
        raise BadPipeline(f"postprocess.characters: {error}") from None
    if classes is not None and len(characters) == classes - 2:
        characters.append(" ")
    if classes is not None and len(characters) != classes - 1:
        raise BadPipeline(
            f"postprocess.characters has {len(characters)} lines, the network {classes} classes; expected "
            f"{classes - 1}, one for each class but the blank, or {classes - 2} and the last class is a space"
        )
    return text_of(characters)
