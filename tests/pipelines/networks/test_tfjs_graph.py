"""Graphs of a few nodes: what is folded, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from onestream.pipelines.networks.errors import BadGraph
from onestream.pipelines.networks.tfjs_graph import Graph, Node, read_graph
from onestream.pipelines.networks.tfjs_to_onnx import to_onnx

SIZE = 6
IMAGES = np.random.default_rng(3).uniform(-1, 1, (2, 3, SIZE, SIZE)).astype(np.float32)
FILTERS = np.random.default_rng(4).uniform(-1, 1, (3, 3, 3, 4)).astype(np.float32)
SCALE, SHIFT = np.float32([1, -2, 3, 0.5]), np.float32([5, 6, -7, 8])
WINDOW = {"strides": [1, 1, 1, 1], "padding": "SAME"}


def graph_of(*nodes: tuple[str, str, list[str], dict[str, Any]], **weights: Any) -> Graph:
    made = {name: Node(name, operation, tuple(inputs), attributes) for name, operation, inputs, attributes in nodes}
    return Graph(made, {"filters": FILTERS, "scale": SCALE, "shift": SHIFT} | weights)


def convert(graph: Graph, *outputs: str) -> onnx.ModelProto:
    named = {f"out_{name}": name for name in outputs}
    return to_onnx(graph, name="test", start="image", size=SIZE, channels_last=True, outputs=named)


def run(model: onnx.ModelProto) -> list[Any]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, {"input": IMAGES}))


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([("end", "Einsum", ["image"], {})], "'end' is a Einsum, which is not converted"),
        ([("end", "Relu6", ["gone"], {})], "'gone' is missing"),
        (
            [("wide", "Pad", ["image", "border"], {}), ("end", "Relu6", ["wide"], {})],
            "'end' is a Relu6 of a padded value",
        ),
        (
            [("wide", "Pad", ["image", "border"], {}), ("end", "Conv2D", ["wide", "filters"], WINDOW)],
            "'end' pads what is padded with 0.0",
        ),
        ([("end", "Conv2D", ["image", "filters"], WINDOW | {"dilations": [1, 2, 2, 1]})], "'end' has dilations"),
        ([("end", "Add", ["image", "shift"], {})], r"'end' combines shapes \(0, 6, 6, 3\) and \(4,\)"),
        ([("end", "Reshape", ["image", "flat"], {})], "'end' changes the batch"),
        ([("end", "Reshape", ["image", "image"], {})], "'image' depends on the input"),
        (
            [("end", "ResizeBilinear", ["image", "flat"], {"half_pixel_centers": False, "align_corners": False})],
            "'end' resizes without half_pixel_centers",
        ),
    ],
)
def test_what_is_not_converted_is_refused_by_the_name_of_its_node(nodes: list[Any], reason: str) -> None:
    graph = graph_of(*nodes, border=np.int32([[0, 0], [1, 1], [1, 1], [0, 0]]), flat=np.int32([108, 1]))
    with pytest.raises(BadGraph, match=reason):
        convert(graph, "end")


@pytest.mark.parametrize(("kept", "reason"), [(5, "end inside 'half'"), (7, "take 6 bytes; the files hold 7")])
def test_weights_of_another_size_are_refused(tmp_path: Path, kept: int, reason: str) -> None:
    half = {"name": "half", "shape": [3], "dtype": "float32", "quantization": {"dtype": "float16"}}
    topology = tmp_path / "model.json"
    topology.write_text(json.dumps({"modelTopology": {"node": []}, "weightsManifest": [{"weights": [half]}]}))
    (tmp_path / "one").write_bytes(np.float16([0.5, -2, 3]).tobytes()[:4])
    (tmp_path / "two").write_bytes(np.float16([3]).tobytes())
    weights = read_graph(topology, [tmp_path / "one", tmp_path / "two"]).weights
    assert weights["half"].dtype == np.float32
    np.testing.assert_array_equal(weights["half"], [0.5, -2, 3])

    (tmp_path / "all").write_bytes(bytes(kept))
    with pytest.raises(BadGraph, match=reason):
        read_graph(topology, [tmp_path / "all"])
