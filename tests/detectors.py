"""Made detectors, whose objects are known, in the layout of ultralytics' exports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import yaml
from networks import network_of
from onnx import helper
from shared_server import Served

SIDE, CELL = 64, 8
CELLS = SIDE // CELL


POINTS = [(-2, -2, 1), (3, -1, 0.5), (0, 99, 0.125)]
"""x and y of a cell's points from its middle, and their scores; the last lies far below, where many have no picture."""


ANGLE = 0.5


def level_detector(path: Path, *, bad: str = "", cells: int = CELLS, more: str = "") -> None:
    """Write a network of ``yolo``: (batch, 4 + 1, cells²), an object of class 0 in each cell of 8x8 pixels.

    Its score is the mean of the cell's red, 0 to 1, and its box the cell. ``bad`` is *nan* or *inf*: what the score of
    a cell becomes whose mean is above 0.99. ``more`` is *points* where each has those of ``POINTS``, too; *angle*
    where each box is turned by ``ANGLE``; *masks* where an object is what is more red than half.
    """
    rows, columns = np.mgrid[:cells, :cells].reshape(2, -1)
    boxes = np.stack([(columns + 0.5) * CELL, (rows + 0.5) * CELL, *np.full((2, cells * cells), CELL)])
    constants = {
        "red": np.array([1, 0, 0], np.float32).reshape(1, 3, 1, 1),
        "flat": np.array([0, 1, -1], np.int64),
        "boxes": boxes[None].astype(np.float32),
        "zero": np.float32(0),
        "most": np.float32(0.99),
        "bad": np.float32(bad or 0),
    }
    nodes = [
        helper.make_node("Conv", ["pixels_in", "red"], ["level"]),
        helper.make_node("AveragePool", ["level"], ["mean"], kernel_shape=[CELL, CELL], strides=[CELL, CELL]),
        helper.make_node("Reshape", ["mean", "flat"], ["score"]),
        helper.make_node("Mul", ["score", "zero"], ["nothing"]),
        helper.make_node("Add", ["nothing", "boxes"], ["placed"]),
    ]
    if bad:
        nodes += [
            helper.make_node("Greater", ["score", "most"], ["is_bad"]),
            helper.make_node("Where", ["is_bad", "bad", "score"], ["told"]),
        ]
    outputs: dict[str, Sequence[int | str]] = {}
    parts, width = ["placed", "told" if bad else "score"], 5
    each = [np.full((1, cells * cells), ANGLE if more == "angle" else 1)] if more in ("angle", "masks") else []
    if more == "masks":
        half = CELL // 2
        constants["middle"] = np.float32(0.5)
        nodes += [
            helper.make_node("AveragePool", ["level"], ["reds"], kernel_shape=[half, half], strides=[half, half]),
            helper.make_node("Sub", ["reds", "middle"], ["output1"]),
        ]
        outputs["output1"] = ["batch", 1, 2 * cells, 2 * cells]
    if more == "points":
        each = [np.array(point)[:, None] + np.stack([*boxes[:2], np.zeros(cells * cells)]) for point in POINTS]
    if each:
        constants["more"] = np.concatenate(each)[None].astype(np.float32)
        nodes.append(helper.make_node("Add", ["nothing", "more"], ["told_more"]))
        parts, width = [*parts, "told_more"], width + len(constants["more"][0])
    nodes.append(helper.make_node("Concat", parts, ["output0"], axis=1))
    onnx.save(
        network_of(
            nodes,
            {"pixels_in": ["batch", 3, cells * CELL, cells * CELL]},
            {"output0": ["batch", width, cells * cells], **outputs},
            constants,
        ),
        path,
    )


def pipeline(name: str, **postprocess: object) -> dict[str, object]:
    """The fields of a pipeline file for ``level_detector``: a letterbox of 64x64 on black."""
    return {
        "name": name,
        "preprocess": {
            "operations": [
                {"op": "decode", "color": "rgb"},
                {"op": "letterbox", "size": [SIDE, SIDE], "value": 0},
                {"op": "normalize", "scale": 255, "mean": [0, 0, 0], "std": [1, 1, 1]},
                {"op": "output", "layout": "NCHW", "dtype": "float32"},
            ]
        },
        "postprocess": {"kind": "detection", "family": "yolo"} | postprocess,
        "serving": {"max_batch_size": 4, "cpu_instances": 1},
    }


def served(
    name: str,
    *,
    bad: str = "",
    more: str = "",
    models: tuple[str, ...] = (),
    video: dict[str, object] | None = None,
    **postprocess: object,
) -> Served:
    """That pipeline on the shared server."""

    def write(folder: Path) -> Path:
        fields = pipeline(name, **postprocess) | ({} if video is None else {"video": video})
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(fields))
        level_detector(folder / f"{name}.onnx", bad=bad, more=more)
        return folder / f"{name}.onnx"

    return Served(name, write, models)


RED_CELLS = served("cells", score_threshold=0.5)
DRAWN: dict[str, object] = {"output": {"crf": 6}}
"""In a quality at which colours can be compared."""
POSES = served(
    "poses",
    more="points",
    score_threshold=0.5,
    video=DRAWN,
    kind="keypoints",
    points=["left", "right", "below"],
    skeleton=[["left", "right"]],
)
TURNED_CELLS = served("turned", more="angle", score_threshold=0.5, video=DRAWN, kind="oriented_boxes")
MASKED_CELLS = served("masked", more="masks", score_threshold=0.5, video=DRAWN, kind="instance_masks")
