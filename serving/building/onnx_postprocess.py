"""Writes postprocessing as the last nodes of the network's own graph, for forms in which no Python runs after it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onestream.postprocess.options import AnyPostprocess, Classification, Detection, Matte, Raw
from onestream.serving.engine import served as served_network
from onestream.serving.engine.served import NetworkOutput
from onestream.serving.errors import BadNetwork, BadPipeline
from onestream.wire.tensor_names import CLASS_IDS, LABELS, MATTE, SCORES

_PREFIX = "onestream/tail_"
_OLDEST_OPSET = 11
"""The first in which TopK promises the lower index among equals, and the first with GatherElements."""


def with_postprocess(model: onnx.ModelProto, postprocess: AnyPostprocess) -> onnx.ModelProto:
    """Append a pipeline's postprocessing to its network; the argument is not changed.

    For a classification the outputs become ``scores``, float32 (batch, k), and ``class_ids``, int32 (batch, k), best
    first: what ``postprocess.top_k`` computes from the same logits. Classes are chosen by their logits, as there, so
    that logits which softmax rounds to one score keep their order. ONNX orders equal logits by class id; a runtime may
    keep its own order among them (TensorRT documents none). For a matte the output becomes ``matte``, uint8
    (batch, height, width), what ``onestream.postprocess.matte.composer.alpha`` computes. Raw outputs
    stay as they are, and so do a detector's, which has its tail from the build.

    Raises ``BadNetwork`` where the network has not one output (batch, classes) or an opset below 11, and
    ``BadPipeline`` where it has fewer than ``top_k`` classes, or ends in the activation that would be appended.
    """
    extended = onnx.ModelProto()
    extended.CopyFrom(model)
    if isinstance(postprocess, Raw | Detection):
        return extended
    if isinstance(postprocess, Classification):
        postprocess = with_activation(postprocess, served_network.outputs(model))
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
    if opset < _OLDEST_OPSET:
        raise BadNetwork(
            f"the graph's own postprocessing takes ONNX opset {_OLDEST_OPSET} or newer; the file has {opset}"
        )
    if _names(extended.graph) & {SCORES, CLASS_IDS, LABELS, MATTE}:
        extended = onnx.compose.add_prefix(
            extended, f"{_PREFIX}network_", rename_nodes=False, rename_inputs=False, rename_functions=False
        )
    if isinstance(postprocess, Matte):
        _append_matte(extended.graph, postprocess)
        onnx.checker.check_model(extended)
        return extended
    _append(extended.graph, postprocess)
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
        node = helper.make_node("Cast", [CLASS_IDS], [LABELS], name=f"{_PREFIX}labels", to=TensorProto.STRING)
    else:
        names = helper.make_tensor(
            f"{_PREFIX}names", TensorProto.STRING, [len(labels)], [label.encode() for label in labels]
        )
        graph.initializer.append(names)
        node = helper.make_node("Gather", [names.name, CLASS_IDS], [LABELS], name=f"{_PREFIX}labels", axis=0)
    graph.node.append(node)
    graph.output.add().CopyFrom(class_ids)
    graph.output[-1].name = LABELS
    graph.output[-1].type.tensor_type.elem_type = TensorProto.STRING
    onnx.checker.check_model(extended)
    return extended


def check_classification(outputs: Sequence[NetworkOutput], postprocess: Classification) -> int | None:
    """Number of classes of a network, None where it does not say. Raises as ``with_postprocess``."""
    if len(outputs) != 1 or len(outputs[0].dims) != 1:
        shapes = ", ".join(f"{out.name} {[None, *out.dims]}" for out in outputs)
        raise BadNetwork(
            f"classification takes one output (batch, classes); got {shapes}. Use postprocess: {{kind: raw}}"
        )
    classes = outputs[0].dims[0]
    if classes is not None and postprocess.top_k > classes:
        raise BadPipeline(f"postprocess.top_k is {postprocess.top_k}, the network has {classes} classes")
    return classes


def with_activation(postprocess: Classification, outputs: Sequence[NetworkOutput]) -> Classification:
    """The postprocessing with *softmax* or *none* in the place of *auto*, whichever suits the network.

    Raises as ``with_postprocess``.
    """
    check_classification(outputs, postprocess)
    (output,) = outputs
    if postprocess.activation == "auto":
        return postprocess.model_copy(update={"activation": "none" if output.activation else "softmax"})
    if postprocess.activation == "softmax" and output.activation:
        raise BadPipeline(
            f"postprocess.activation is softmax, and the network's output {output.name!r} comes from "
            f"{output.activation} already: write activation: none, or leave it out"
        )
    return postprocess


def _names(graph: onnx.GraphProto) -> set[str]:
    """Every tensor of a graph; those of its subgraphs may shadow none of the outer ones."""
    return {value.name for value in (*graph.output, *graph.initializer)} | {
        name for node in graph.node for name in node.output
    }


def _append(graph: onnx.GraphProto, postprocess: Classification) -> None:
    output = graph.output[0]
    batch = onnx.TensorShapeProto.Dimension()
    batch.CopyFrom(output.type.tensor_type.shape.dim[0])
    logits = output.name

    def add(op: str, inputs: list[str], outputs: list[str], **attributes: object) -> None:
        name = f"{_PREFIX}{op.lower()}_{len(graph.node)}"
        graph.node.append(helper.make_node(op, inputs, outputs, name=name, **attributes))

    if output.type.tensor_type.elem_type != TensorProto.FLOAT:
        add("Cast", [logits], [f"{_PREFIX}logits"], to=TensorProto.FLOAT)
        logits = f"{_PREFIX}logits"
    k = numpy_helper.from_array(np.array([postprocess.top_k], np.int64), f"{_PREFIX}k")
    graph.initializer.append(k)
    indices, best = f"{_PREFIX}indices", f"{_PREFIX}best"
    softmax = postprocess.activation == "softmax"
    add("TopK", [logits, k.name], [best if softmax else SCORES, indices], axis=1, largest=1, sorted=1)
    if softmax:
        add("Softmax", [logits], [f"{_PREFIX}probabilities"], axis=1)
        add("GatherElements", [f"{_PREFIX}probabilities", indices], [SCORES], axis=1)
    add("Cast", [indices], [CLASS_IDS], to=TensorProto.INT32)
    del graph.output[:]
    for name, dtype in ((SCORES, TensorProto.FLOAT), (CLASS_IDS, TensorProto.INT32)):
        value = helper.make_tensor_value_info(name, dtype, [1, postprocess.top_k])
        value.type.tensor_type.shape.dim[0].CopyFrom(batch)
        graph.output.append(value)


def _append_matte(graph: onnx.GraphProto, postprocess: Matte) -> None:
    """The operations of ``onestream.postprocess.matte.composer.alpha``, in float32 and in its order."""
    if len(graph.output) != 1 or graph.output[0].type.tensor_type.elem_type != TensorProto.FLOAT:
        raise BadNetwork("matte takes one output, float32 (batch, height, width)")
    value = graph.output[0].name
    one, half, levels = np.float32(1), np.float32(0.5), np.float32(255)
    steps = (
        ("Sub", [half]),
        ("Mul", [np.float32(1 / postprocess.softness)]),
        ("Add", [half]),
        ("Clip", [np.float32(0), one]),
        ("Mul", [levels]),
        ("Add", [half]),
    )
    for number, (op, constants) in enumerate(steps):
        names = [f"{_PREFIX}matte_{number}_{place}" for place in range(len(constants))]
        graph.initializer.extend(
            numpy_helper.from_array(np.asarray(constant), name) for name, constant in zip(names, constants, strict=True)
        )
        name = f"{_PREFIX}{op.lower()}_{number}"
        graph.node.append(helper.make_node(op, [value, *names], [name], name=name))
        value = name
    graph.node.append(helper.make_node("Cast", [value], [MATTE], name=f"{_PREFIX}matte", to=TensorProto.UINT8))
    graph.output[0].name = MATTE
    graph.output[0].type.tensor_type.elem_type = TensorProto.UINT8
