"""Detectors as ultralytics and YOLOv5 export them, written with the onnx package alone: they find coloured squares.

Each finds the red, the green and the blue square of a picture, where there are such, and says twice what it found: the
second box is larger and its score lower, so that it must be suppressed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

NAMES = {0: "red square", 1: "green square", 2: "blue square"}
SCORE, SECOND_SCORE = 0.9, 0.8
Family = Literal["yolo", "yolov5", "boxes", "detr"]
Fixed = Literal["open", "reshaped"]


def square_finder(
    family: Family = "yolo",
    *,
    size_hw: tuple[int, int] = (320, 320),
    batch: Fixed = "reshaped",
    half: bool = False,
    **metadata: Any,
) -> onnx.ModelProto:
    """A detector whose input is RGB of 0 to 1, with the metadata of its exporter.

    ``batch`` *reshaped* is fixed to 1 and has a Reshape to constant sizes, as exports have by default. ``metadata`` is
    added to what its exporter writes; an entry that is None is left out.
    """
    height, width = size_hw
    dtype, float_type = (TensorProto.FLOAT16, np.float16) if half else (TensorProto.FLOAT, np.float32)
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []

    def constant(values: Any, kind: Any = float_type) -> str:
        constants.append(numpy_helper.from_array(np.asarray(values, kind), f"constant_{len(constants)}"))
        return constants[-1].name

    def add(operator: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(operator, inputs, [f"value_{len(nodes)}"], **attributes))
        return nodes[-1].output[0]

    # A pure colour is far from gray: 1 for its own channel, a half below 0 for the others.
    gray = add("ReduceMean", "images", axes=[1], keepdims=1)
    colored = add("Cast", add("Greater", add("Sub", "images", gray), constant(0.45)), to=dtype)
    edges = []
    for axis, side in ((2, width), (3, height)):
        found = add("ReduceMax", colored, axes=[axis], keepdims=0)
        last = add("ReduceMax", add("Mul", found, constant(np.arange(1, side + 1))), axes=[2], keepdims=1)
        first = add("ReduceMax", add("Mul", found, constant(np.arange(side, 0, -1))), axes=[2], keepdims=1)
        edges.append((add("Sub", constant(side), first), last))
    is_there = add("ReduceMax", colored, axes=[2, 3], keepdims=0)
    centers = [add("Mul", add("Add", low, high), constant(0.5)) for low, high in edges]
    sizes = [add("Sub", high, low) for low, high in edges]
    larger = [add("Mul", size, constant(1.15)) for size in sizes]
    # (batch, 3, 4 + classes), one row for each colour, then the same again.
    one_class = add("Mul", add("Unsqueeze", is_there, constant([2], np.int64)), constant(np.eye(3)))
    rows = []
    for box, score in (((*centers, *sizes), SCORE), ((*centers, *larger), SECOND_SCORE)):
        rows.append(add("Concat", *box, add("Mul", one_class, constant(score)), axis=2))
    found = add("Concat", *rows, axis=1)

    anchors = 300 if family in ("boxes", "detr") else _cells(size_hw) * (3 if family == "yolov5" else 1)
    box = add("Slice", found, *(constant(value, np.int64) for value in ([0], [4], [2])))
    scores = add("Slice", found, *(constant(value, np.int64) for value in ([4], [7], [2])))
    if family == "boxes":
        best = add("ReduceMax", scores, axes=[2], keepdims=1)
        number = add("Cast", add("ArgMax", scores, axis=2, keepdims=1), to=dtype)
        center = add("Slice", box, *(constant(value, np.int64) for value in ([0], [2], [2])))
        half_size = add("Mul", add("Slice", box, *(constant(v, np.int64) for v in ([2], [4], [2]))), constant(0.5))
        box = add("Concat", add("Sub", center, half_size), add("Add", center, half_size), axis=2)
        # Decoded and suppressed: the first three rows.
        parts = [box, best, number]
    elif family == "detr":
        parts = [add("Div", box, constant([width, height, width, height])), scores]
    elif family == "yolov5":
        parts = [box, add("ReduceMax", add("Cast", add("Greater", scores, constant(0)), to=dtype), axes=[2]), scores]
    else:
        parts = [box, scores]
    kept = 6 if family in ("yolo", "yolov5") else 3
    out = add("Slice", add("Concat", *parts, axis=2), *(constant(v, np.int64) for v in ([0], [kept], [1])))
    out = add("Pad", out, constant([0, 0, 0, 0, anchors - kept, 0], np.int64))
    columns = {"yolo": 7, "yolov5": 8, "boxes": 6, "detr": 7}[family]
    dims = [anchors, columns]
    if family == "yolo":
        out, dims = add("Transpose", out, perm=[0, 2, 1]), [columns, anchors]
    if batch == "reshaped":
        out = add("Reshape", out, constant([1, *dims], np.int64))
    nodes[-1].output[0] = "output0"
    first_dim: str | int = "batch" if batch == "open" else 1
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "squares",
            [helper.make_tensor_value_info("images", dtype, [first_dim, 3, height, width])],
            [helper.make_tensor_value_info("output0", dtype, [first_dim, *dims])],
            constants,
        ),
        opset_imports=[helper.make_opsetid("", 13)],
        ir_version=8,
    )
    onnx.checker.check_model(model, full_check=True)
    written = (_of_yolov5() if family == "yolov5" else _of_ultralytics(family, size_hw)) | metadata
    helper.set_model_props(model, {key: str(value) for key, value in written.items() if value is not None})
    return model


def _cells(size_hw: Sequence[int]) -> int:
    return sum((size_hw[0] // stride) * (size_hw[1] // stride) for stride in (8, 16, 32))


def _of_yolov5() -> dict[str, Any]:
    return {"stride": 32, "names": NAMES}


def _of_ultralytics(family: Family, size_hw: tuple[int, int]) -> dict[str, Any]:
    """What ``Exporter`` of ultralytics 8.3 writes of the network, each value by ``str``."""
    network = "rtdetr-l" if family == "detr" else "YOLO11n"
    return {
        "description": f"Ultralytics {network} model trained on squares.yaml",
        "stride": 32,
        "task": "detect",
        "batch": 1,
        "imgsz": list(size_hw),
        "names": NAMES,
        "args": {
            "batch": 1,
            "half": False,
            "dynamic": False,
            "simplify": True,
            "opset": None,
            "nms": family == "boxes",
        },
        "channels": 3,
        "end2end": False,
    }
