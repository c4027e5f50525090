"""What the build makes of the outputs of a network, by the names of those that a kind says it takes.

A step of text has a probability for every character, of which there are thousands: only the best leaves the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from onestream.postprocess.kinds import AnyPostprocess
from onestream.postprocess.kinds.detection import Detector
from onestream.postprocess.network import NetworkClasses
from onestream.preprocess import Definition
from onestream.serving.engine import served as served_network
from onestream.serving.errors import BadNetwork
from onestream.serving.graph.detector_layout import read_layout
from onestream.serving.graph.detector_tail import append_tail
from onestream.serving.graph.onnx_nodes import OLDEST_OPSET, TAIL_PREFIX, Nodes, opset
from onestream.serving.graph.score_check import check_family, check_scores, runs
from onestream.wire.tensor_names import CANDIDATE_VALUES, CANDIDATES, CTC, PROTOTYPES


@dataclass(frozen=True, slots=True)
class Asked:
    """What a network must give: what the kind with these options takes.

    ``is_whole`` says that the file's own outputs leave; ``anchors`` are those of the file that the options name.
    """

    options: AnyPostprocess
    definition: Definition
    is_whole: bool
    anchors: npt.NDArray[Any] | None

    def of(self, served: onnx.ModelProto) -> NetworkClasses:
        """Let a served network give it; what is known of its classes. Raises ``BadNetwork`` where it cannot."""
        if not self.options.network_gives:
            self.options.check_values(served_network.outputs(served), runs(served, self.definition))
            return NetworkClasses()
        return _TAILS[self.options.network_gives](served, self)


def _candidates(served: onnx.ModelProto, asked: Asked) -> NetworkClasses:
    options = cast("Detector", asked.options)
    network_hw = cast("tuple[int, int]", asked.definition.output_spec.size_hw)
    layout = read_layout(served, options, network_hw=network_hw)
    if asked.is_whole:
        check_family(served, options, layout)
    largest = check_scores(served, layout, options, asked.definition)
    append_tail(served, options, network_hw=network_hw, max_candidates=options.max_candidates, anchors=asked.anchors)
    return NetworkClasses(layout.classes, largest)


_TAILS: dict[tuple[str, ...], Callable[[onnx.ModelProto, Asked], NetworkClasses]] = {
    CANDIDATES: _candidates,
    (*CANDIDATES, CANDIDATE_VALUES): _candidates,
    (*CANDIDATES, CANDIDATE_VALUES, PROTOTYPES): _candidates,
    CTC: lambda served, _: NetworkClasses(append_ctc_tail(served)),
}


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
