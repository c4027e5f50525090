"""Writes postprocessing as the last nodes of the network's own graph, for forms in which no Python runs after it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from onestream.postprocess.kinds import AnyPostprocess, read_postprocess
from onestream.serving.engine import served as served_network
from onestream.serving.errors import BadNetwork
from onestream.serving.graph import onnx_graph
from onestream.serving.graph.onnx_nodes import OLDEST_OPSET, TAIL_PREFIX, Nodes, opset
from onestream.wire.kinds import KINDS
from onestream.wire.tensor_names import CLASS_IDS, LABELS


def fused_network(model: Path, postprocess_json: str) -> bytes:
    """The content of the fused form's network, always the same for the same file, since a plan is found by it.

    ``model`` is the served network's file, ``postprocess_json`` the ``postprocess`` parameter of the model's
    configuration. Raises ``BadNetwork`` where one does not fit the other.
    """
    postprocess = read_postprocess(postprocess_json)
    return bytes(with_postprocess(onnx_graph.load(model), postprocess).SerializeToString(deterministic=True))


def with_postprocess(model: onnx.ModelProto, postprocess: AnyPostprocess) -> onnx.ModelProto:
    """Append a pipeline's postprocessing to its network; the argument is not changed.

    The outputs become those of the kind, with the batch first, as its ``tail`` computes them. ONNX orders equal logits
    by class id; a runtime may keep its own order among them (TensorRT documents none). Raw outputs stay as they are,
    and so do a detector's and a text recognizer's, which have their tails from the build, and those of other kinds,
    whose answers are made on the host.

    Raises ``BadNetwork`` where the network has not the one output that the kind takes or an opset below 11, and
    ``BadPipeline`` where it has fewer than ``top_k`` classes, or ends in the activation that would be appended.
    """
    extended = onnx.ModelProto()
    extended.CopyFrom(model)
    if not postprocess.ends_in_graph:
        return extended
    postprocess = postprocess.suited_to(served_network.outputs(model))
    if opset(model) < OLDEST_OPSET:
        raise BadNetwork(
            f"the graph's own postprocessing takes ONNX opset {OLDEST_OPSET} or newer; the file has {opset(model)}"
        )
    if _names(extended.graph) & {one.name for one in KINDS[postprocess.kind].outputs}:
        extended = onnx.compose.add_prefix(
            extended, f"{TAIL_PREFIX}network_", rename_nodes=False, rename_inputs=False, rename_functions=False
        )
    graph = extended.graph
    made = postprocess.tail(Nodes(extended), served_network.outputs(extended))
    batch = graph.output[0].type.tensor_type.shape.dim[0]
    values = []
    for name, one in made.items():
        graph.node.append(helper.make_node("Identity", [one.tensor], [name], name=TAIL_PREFIX + name))
        dtype = helper.np_dtype_to_tensor_dtype(np.dtype(one.dtype))
        values.append(helper.make_tensor_value_info(name, dtype, [1, *one.dims]))
        values[-1].type.tensor_type.shape.dim[0].CopyFrom(batch)
    del graph.output[:]
    graph.output.extend(values)
    onnx.checker.check_model(extended)
    return extended


def with_labels(model: onnx.ModelProto, labels: Sequence[str] | None) -> onnx.ModelProto:
    """Append ``labels``, string (batch, k), to a network with ``class_ids``; the argument is not changed.

    ``labels`` holds one name for each class; with None an id is its own name. ONNX Runtime has strings, TensorRT has
    none.
    """
    extended = onnx.ModelProto()
    extended.CopyFrom(model)
    graph = extended.graph
    class_ids = next(value for value in graph.output if value.name == CLASS_IDS)
    if labels is None:
        node = helper.make_node("Cast", [CLASS_IDS], [LABELS], name=f"{TAIL_PREFIX}labels", to=TensorProto.STRING)
    else:
        names = helper.make_tensor(
            f"{TAIL_PREFIX}names", TensorProto.STRING, [len(labels)], [label.encode() for label in labels]
        )
        graph.initializer.append(names)
        node = helper.make_node("Gather", [names.name, CLASS_IDS], [LABELS], name=f"{TAIL_PREFIX}labels", axis=0)
    graph.node.append(node)
    graph.output.add().CopyFrom(class_ids)
    graph.output[-1].name = LABELS
    graph.output[-1].type.tensor_type.elem_type = TensorProto.STRING
    onnx.checker.check_model(extended)
    return extended


def _names(graph: onnx.GraphProto) -> set[str]:
    """Every tensor of a graph; those of its subgraphs may shadow none of the outer ones."""
    return {value.name for value in (*graph.output, *graph.initializer)} | {
        name for node in graph.node for name in node.output
    }
