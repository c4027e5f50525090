"""Writes postprocessing as the last nodes of the network's own graph, for forms in which no Python runs after it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onestream.postprocess.embedding import SHORTEST
from onestream.postprocess.kinds import (
    AnyPostprocess,
    Classification,
    Embedding,
    Matte,
    Options,
    Rotation,
    Segmentation,
    read_postprocess,
)
from onestream.serving.engine import served as served_network
from onestream.serving.engine.served import NetworkOutput
from onestream.serving.errors import BadNetwork, BadPipeline
from onestream.serving.graph import onnx_graph
from onestream.serving.graph.onnx_nodes import OLDEST_OPSET, TAIL_PREFIX, Nodes, opset
from onestream.wire.tensor_names import CLASS_IDS, EMBEDDING, LABELS, MATTE, SCORES


def fused_network(model: Path, postprocess_json: str) -> bytes:
    """The content of the fused form's network, always the same for the same file, since a plan is found by it.

    ``model`` is the served network's file, ``postprocess_json`` the ``postprocess`` parameter of the model's
    configuration. Raises ``BadNetwork`` where one does not fit the other.
    """
    postprocess = read_postprocess(postprocess_json)
    return bytes(with_postprocess(onnx_graph.load(model), postprocess).SerializeToString(deterministic=True))


_Options = TypeVar("_Options", bound=Options)


def with_postprocess(model: onnx.ModelProto, postprocess: AnyPostprocess) -> onnx.ModelProto:
    """Append a pipeline's postprocessing to its network; the argument is not changed.

    For a classification the outputs become ``scores``, float32 (batch, k), and ``class_ids``, int32 (batch, k), best
    first: what ``postprocess.top_k`` computes from the same logits. Classes are chosen by their logits, as there, so
    that logits which softmax rounds to one score keep their order. ONNX orders equal logits by class id; a runtime may
    keep its own order among them (TensorRT documents none). For a matte the output becomes ``matte``, uint8
    (batch, height, width), what ``onestream.postprocess.matte.composer.alpha`` computes; for an embedding
    ``embedding``, float32 (batch, values), what ``onestream.postprocess.embedding.embeddings`` does. Raw outputs stay
    as they are, and so do a detector's and a text recognizer's, which have their tails from the build, and those of
    other kinds, whose answers are made on the host.

    Raises ``BadNetwork`` where the network has not the one output that the kind takes or an opset below 11, and
    ``BadPipeline`` where it has fewer than ``top_k`` classes, or ends in the activation that would be appended.
    """
    extended = onnx.ModelProto()
    extended.CopyFrom(model)
    if not postprocess.ends_in_graph:
        return extended
    postprocess = with_activation(postprocess, served_network.outputs(model))
    if opset(model) < OLDEST_OPSET:
        raise BadNetwork(
            f"the graph's own postprocessing takes ONNX opset {OLDEST_OPSET} or newer; the file has {opset(model)}"
        )
    if _names(extended.graph) & {SCORES, CLASS_IDS, LABELS, MATTE, EMBEDDING}:
        extended = onnx.compose.add_prefix(
            extended, f"{TAIL_PREFIX}network_", rename_nodes=False, rename_inputs=False, rename_functions=False
        )
    if isinstance(postprocess, Matte):
        _append_matte(extended.graph, postprocess)
    elif isinstance(postprocess, Embedding):
        check_embedding(served_network.outputs(model))
        _append_embedding(extended, postprocess)
    elif isinstance(postprocess, Classification):
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


def check_classification(outputs: Sequence[NetworkOutput], postprocess: Classification) -> int | None:
    """Number of classes of a network, None where it does not say. Raises as ``with_postprocess``."""
    if len(outputs) != 1 or len(outputs[0].dims) != 1:
        raise BadNetwork(
            f"classification takes one output (batch, classes); got {_shapes(outputs)}. Use postprocess: {{kind: raw}}"
        )
    classes = outputs[0].dims[0]
    if classes is not None and postprocess.top_k > classes:
        raise BadPipeline(f"postprocess.top_k is {postprocess.top_k}, the network has {classes} classes")
    return classes


def check_rotation(outputs: Sequence[NetworkOutput], postprocess: Rotation) -> None:
    """Raise ``BadNetwork`` where a network is no classifier, ``BadPipeline`` where its classes are not the angles."""
    if len(outputs) != 1 or len(outputs[0].dims) != 1 or not outputs[0].dtype.startswith("float"):
        raise BadNetwork(f"rotation takes one output of floats, (batch, classes); got {_shapes(outputs)}")
    classes = outputs[0].dims[0]
    if classes is not None and classes != len(postprocess.degrees):
        raise BadPipeline(
            f"postprocess.degrees has {len(postprocess.degrees)} angles, the network has {classes} classes"
        )


def check_text_lines(outputs: Sequence[NetworkOutput]) -> None:
    """Raise ``BadNetwork`` where a network gives no map of probabilities."""
    dims = outputs[0].dims
    is_map = len(dims) == 2 or (len(dims) == 3 and dims[0] in (1, None))
    if len(outputs) != 1 or not is_map or not outputs[0].dtype.startswith("float"):
        raise BadNetwork(
            "text_lines takes one output of floats, (batch, 1, height, width) or (batch, height, width); got "
            f"{_shapes(outputs)}. network_outputs: [NAME] in the pipeline file takes one of several"
        )
    if outputs[0].activation == "softmax":
        raise BadNetwork(f"text_lines takes probabilities of one class; {outputs[0].name!r} comes from softmax")


def check_embedding(outputs: Sequence[NetworkOutput]) -> int | None:
    """Number of values of a network's embeddings, None where it does not say. Raises ``BadNetwork``."""
    dims = outputs[0].dims
    is_vector = len(dims) == 1 or (len(dims) == 3 and dims[1:] == (1, 1))
    if len(outputs) != 1 or not is_vector or not outputs[0].dtype.startswith("float"):
        raise BadNetwork(
            f"embedding takes one output of floats, (batch, values) or (batch, values, 1, 1); got {_shapes(outputs)}. "
            "network_outputs: [NAME] in the pipeline file takes another tensor of the network"
        )
    return dims[0]


def check_segmentation(outputs: Sequence[NetworkOutput]) -> tuple[int, tuple[int, int]]:
    """Classes of a segmentation network, and (height, width) of its output. Raises ``BadNetwork``."""
    dims = [dim for dim in outputs[0].dims if dim is not None]
    if (
        len(outputs) != 1
        or len(dims) not in (2, 3)
        or len(dims) < len(outputs[0].dims)
        or not outputs[0].dtype.startswith("float")
    ):
        raise BadNetwork(
            "segmentation takes one output of floats of a known size, (batch, classes, height, width), or "
            f"(batch, height, width) for one class; got {_shapes(outputs)}. "
            "network_outputs: [NAME] in the pipeline file takes one of several"
        )
    return dims[0] if len(dims) == 3 else 1, (dims[-2], dims[-1])


def with_activation(postprocess: _Options, outputs: Sequence[NetworkOutput]) -> _Options:
    """The postprocessing with *softmax*, *sigmoid* or *none* in the place of *auto*, whichever suits the network.

    Kinds without an activation are returned as they are. Raises as ``with_postprocess``.
    """
    decided = _decided_activation(postprocess, outputs)
    return postprocess.model_copy(update={"activation": decided}) if decided else postprocess


def _decided_activation(postprocess: Options, outputs: Sequence[NetworkOutput]) -> str:
    """What stands for *auto*; empty where the kind has no activation, or names one that suits."""
    if not isinstance(postprocess, Classification | Segmentation | Rotation):
        return ""
    suited = _activation_of_scores(postprocess, outputs)
    (output,) = outputs
    if postprocess.activation == "auto":
        return "none" if output.activation else suited
    if postprocess.activation != "none" and output.activation:
        raise BadPipeline(
            f"postprocess.activation is {postprocess.activation}, and the network's output {output.name!r} comes from "
            f"{output.activation} already: write activation: none, or leave it out"
        )
    return ""


def _activation_of_scores(
    postprocess: Classification | Segmentation | Rotation, outputs: Sequence[NetworkOutput]
) -> str:
    """The activation that suits a network that ends in none."""
    if isinstance(postprocess, Classification):
        check_classification(outputs, postprocess)
        return "softmax"
    if isinstance(postprocess, Rotation):
        check_rotation(outputs, postprocess)
        return "softmax"
    classes, _ = check_segmentation(outputs)
    if classes == 1 and postprocess.activation == "softmax":
        raise BadPipeline("postprocess.activation is softmax, which is 1 everywhere for the network's one class")
    return "sigmoid" if classes == 1 else "softmax"


def _shapes(outputs: Sequence[NetworkOutput]) -> str:
    return ", ".join(
        f"{out.name} {[None, *out.dims]}" + (f" of {out.dtype}" if out.dtype != "float32" else "") for out in outputs
    )


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
        name = f"{TAIL_PREFIX}{op.lower()}_{len(graph.node)}"
        graph.node.append(helper.make_node(op, inputs, outputs, name=name, **attributes))

    if output.type.tensor_type.elem_type != TensorProto.FLOAT:
        add("Cast", [logits], [f"{TAIL_PREFIX}logits"], to=TensorProto.FLOAT)
        logits = f"{TAIL_PREFIX}logits"
    k = numpy_helper.from_array(np.array([postprocess.top_k], np.int64), f"{TAIL_PREFIX}k")
    graph.initializer.append(k)
    indices, best = f"{TAIL_PREFIX}indices", f"{TAIL_PREFIX}best"
    softmax = postprocess.activation == "softmax"
    add("TopK", [logits, k.name], [best if softmax else SCORES, indices], axis=1, largest=1, sorted=1)
    if softmax:
        add("Softmax", [logits], [f"{TAIL_PREFIX}probabilities"], axis=1)
        add("GatherElements", [f"{TAIL_PREFIX}probabilities", indices], [SCORES], axis=1)
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
        names = [f"{TAIL_PREFIX}matte_{number}_{place}" for place in range(len(constants))]
        graph.initializer.extend(
            numpy_helper.from_array(np.asarray(constant), name) for name, constant in zip(names, constants, strict=True)
        )
        name = f"{TAIL_PREFIX}{op.lower()}_{number}"
        graph.node.append(helper.make_node(op, [value, *names], [name], name=name))
        value = name
    graph.node.append(helper.make_node("Cast", [value], [MATTE], name=f"{TAIL_PREFIX}matte", to=TensorProto.UINT8))
    graph.output[0].name = MATTE
    graph.output[0].type.tensor_type.elem_type = TensorProto.UINT8


def _append_embedding(model: onnx.ModelProto, postprocess: Embedding) -> None:
    """The operations of ``onestream.postprocess.embedding.embeddings``."""
    nodes, output = Nodes(model), model.graph.output[0]
    vectors = nodes.add("Flatten", nodes.add("Cast", output.name, to=TensorProto.FLOAT), axis=1)
    if postprocess.normalize:
        lengths = nodes.reshaped(nodes.reduced("ReduceL2", vectors, axis=1), [-1, 1])
        vectors = nodes.add("Div", vectors, nodes.add("Max", lengths, nodes.floats(SHORTEST)))
    model.graph.node.append(helper.make_node("Identity", [vectors], [EMBEDDING], name=f"{TAIL_PREFIX}embedding"))
    output.name, output.type.tensor_type.elem_type = EMBEDDING, TensorProto.FLOAT
    del output.type.tensor_type.shape.dim[2:]
