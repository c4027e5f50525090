"""A small network with many inputs, which says in its one output what each of them was given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml
from networks import network_of
from onnx import TensorProto, helper
from shared_server import Served

SIDE = 8
NETWORK_INPUTS: dict[str, Any] = {
    "picture": "pixels",
    "im_shape": [SIDE, SIDE],
    "orig_target_sizes": "image_size_wh",
    "scale_factor": "image_scale",
    "points": "request",
    "tokens": "request",
}
FIELDS: dict[str, Any] = {
    "preprocess": {
        "operations": [{"op": "decode"}, {"op": "resize", "mode": "exact", "size": [SIDE, SIDE]}, {"op": "output"}]
    },
    "postprocess": {"kind": "raw"},
    "network_inputs": NETWORK_INPUTS,
    "serving": {"cpu_instances": 1},
}


def prompted(batch: int | str = "batch", count: int | str = "count") -> onnx.ModelProto:
    """Outputs ``y``, (batch, 12): means of colours, points and tokens, the sizes, and the scale.

    ``points`` is float32 (batch, count, 2), ``tokens`` int64 (batch, 3), of which each is a row of a table of 5.
    """
    nodes = [
        helper.make_node("GlobalAveragePool", ["picture"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["colors"]),
        helper.make_node("ReduceMean", ["points"], ["place"], axes=[1], keepdims=0),
        helper.make_node("Gather", ["table", "tokens"], ["embedded"], axis=0),
        helper.make_node("ReduceMean", ["embedded"], ["word"], axes=[1], keepdims=1),
        helper.make_node("Cast", ["orig_target_sizes"], ["size"], to=TensorProto.FLOAT),
        helper.make_node("Concat", ["colors", "place", "word", "size", "scale_factor", "im_shape"], ["y"], axis=1),
    ]
    model = network_of(
        nodes,
        {
            "im_shape": [batch, 2],
            "picture": [batch, 3, SIDE, SIDE],
            "points": [batch, count, 2],
            "scale_factor": [batch, 2],
        },
        {"y": [batch, 12]},
        {"table": np.arange(5, dtype=np.float32) * 10},
    )
    for name, sides in (("orig_target_sizes", 2), ("tokens", 3)):
        model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.INT64, [batch, sides]))
    return model


def expected(color: float, width: int, height: int, points: Any, tokens: Any) -> list[float]:
    """The output for a picture of one level of gray."""
    return [
        *[color] * 3,
        *np.mean(points, axis=0),
        10 * np.mean(tokens),
        width,
        height,
        SIDE / height,
        SIDE / width,
        SIDE,
        SIDE,
    ]


def two_images() -> tuple[dict[str, np.ndarray], list[list[float]]]:
    """Inputs of the served network for a batch of two images, and its output."""
    points, tokens = [[[1, 2], [3, 4]], [[5, 6], [7, 9]]], [[0, 1, 2], [4, 4, 4]]
    given = {
        "pixels": np.stack([np.full((SIDE, SIDE, 3), level, np.uint8) for level in (10, 200)]),
        "image_size": np.array([[30, 40], [20, 10]], np.int32),
        "points": np.array(points, np.float32),
        "tokens": np.array(tokens, np.int64),
    }
    return given, [expected(10, 40, 30, points[0], tokens[0]), expected(200, 10, 20, points[1], tokens[1])]


def write(folder: Path, name: str = "prompted", *, count: int | str = "count", **fields: Any) -> Path:
    """Write NAME.yaml and its network, which is returned; ``count`` is how many points that takes."""
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(FIELDS | fields))
    onnx.save(prompted(count=count), folder / f"{name}.onnx")
    return folder / f"{name}.onnx"


def write_sized(folder: Path) -> Path:
    """Write a pipeline whose network answers the picture's height, its width and 7, for streams too."""
    model = network_of(
        [
            helper.make_node("ReduceMax", ["picture"], ["most"], axes=[2, 3], keepdims=0),
            helper.make_node("Mul", ["most", "nothing"], ["zeros"]),
            helper.make_node("Concat", ["size", "seven"], ["row"], axis=1),
            helper.make_node("Add", ["zeros", "row"], ["y"]),
        ],
        {"picture": ["batch", 3, SIDE, SIDE], "size": ["batch", 2], "seven": ["batch", 1]},
        {"y": ["batch", 3]},
        {"nothing": np.zeros(1, np.float32)},
    )
    onnx.save(model, folder / "sized.onnx")
    inputs = {"size": "image_size", "seven": [7]}
    (folder / "sized.yaml").write_text(yaml.safe_dump(FIELDS | {"network_inputs": inputs, "video": {}}))
    return folder / "sized.onnx"


def write_painted(folder: Path) -> Path:
    """Write a pipeline whose network answers one image alone, in the picture's size: (1, height, width) of its red."""
    model = network_of(
        [
            helper.make_node("GlobalAveragePool", ["picture"], ["pooled"]),
            helper.make_node("Slice", ["pooled", "zero", "one", "one"], ["red"]),
            helper.make_node("Squeeze", ["red", "one"], ["level"]),
            helper.make_node("Cast", ["size"], ["sides"], to=TensorProto.INT64),
            helper.make_node("Squeeze", ["sides", "zero"], ["side"]),
            helper.make_node("Concat", ["one", "side"], ["shape"], axis=0),
            helper.make_node("Expand", ["level", "shape"], ["y"]),
        ],
        {"picture": ["batch", 3, SIDE, SIDE], "size": ["batch", 2]},
        {"y": ["batch", "height", "width"]},
        {"zero": np.array([0]), "one": np.array([1])},
    )
    onnx.save(model, folder / "painted.onnx")
    inputs = {"size": "image_size"}
    (folder / "painted.yaml").write_text(yaml.safe_dump(FIELDS | {"network_inputs": inputs, "video": {}}))
    return folder / "painted.onnx"


PROMPTED = Served("prompted", write)
PAINTED = Served("painted", write_painted)
