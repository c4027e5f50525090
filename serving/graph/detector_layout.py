"""Where in a detector's outputs its family keeps boxes and scores; what does not fit is refused by name."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnx

from onestream.postprocess.detector_family import DetectorFamily
from onestream.postprocess.network import NetworkOutput
from onestream.serving.engine import served as served_network
from onestream.serving.engine.cpu import OnnxRuntimeEngine
from onestream.serving.engine.served import DOOR
from onestream.serving.errors import BadNetwork, BadPipeline
from onestream.serving.graph.network_inputs import examples

Size = tuple[int, int]

STRIDES = ((8, 16, 32), (8, 16, 32, 64))
_MOST_QUERIES = 1000
"""DETR has 100, RT-DETR 300, DETA 900; a grid has more cells."""
_MAP_DIMS = 3
_FLOATS = ("float32", "float16", "float64")
_INTEGERS = ("int32", "int64")
_TAKES = {
    "yolo": "one output [batch, 4 + classes, anchors]",
    "yolov5": "one output [batch, anchors, 5 + classes]",
    "yolox": "one output [batch, anchors, 5 + classes]",
    "ssd": "boxes [batch, anchors, 4], scores [batch, anchors, classes], and perhaps anchors [anchors, 4]",
    "nanodet": "one output [batch, anchors, classes + 4 * (reg_max + 1)], or for each stride scores "
    "[batch, cells, classes] and distances [batch, cells, 4 * (reg_max + 1)]",
    "detr": "boxes [batch, queries, 4] and scores [batch, queries, classes], or one output "
    "[batch, queries, 4 + classes]",
    "boxes": "one output [batch, rows, 6], or det_boxes [batch, rows, 4], det_scores [batch, rows], "
    "det_classes [batch, rows] and perhaps num_dets [batch, 1]",
}
_NAMES_OF_BOXES = r"box|det|loc|coord|reg|dis|enc"


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns ``start`` to ``stop`` of outputs (batch, anchors, values) that follow each other along the anchors."""

    outputs: tuple[str, ...]
    start: int
    stop: int

    @property
    def width(self) -> int:
        """How many columns these are."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Layout:
    """Where boxes and scores are. ``scores`` are those of the classes, without one that is no object.

    ``with_background`` are the scores that softmax goes over. ``turned`` says that the outputs are
    (batch, values, anchors). ``apply`` is the activation that is still to be computed; ``one_class_each`` that an
    anchor is of its best class only. ``anchor_output`` and ``count_output`` are other outputs, where there are such.
    ``values`` are further values of each anchor, of kinds that read more than boxes. ``prototypes`` is the output with
    the maps that they belong to.
    """

    anchors: int
    boxes: Columns
    scores: Columns
    with_background: Columns
    objectness: Columns | None = None
    class_ids: Columns | None = None
    turned: bool = False
    apply: Literal["sigmoid", "softmax"] | None = None
    one_class_each: bool = True
    strides: tuple[int, ...] = ()
    anchor_output: str | None = None
    count_output: str | None = None
    values: Columns | None = None
    prototypes: str | None = None

    @property
    def classes(self) -> int | None:
        """How many classes the network tells apart; None where its outputs do not show it."""
        return None if self.class_ids else self.scores.width

    def width(self, outputs: tuple[str, ...]) -> int:
        """How many columns these outputs have."""
        parts = (self.boxes, self.with_background, self.class_ids, self.values)
        return max(part.stop for part in parts if part is not None and part.outputs == outputs)


def read_layout(model: onnx.ModelProto, options: DetectorFamily, *, network_hw: Size) -> Layout:
    """Where the outputs of a served network hold what its family has.

    Raises ``BadNetwork`` with the outputs that were seen and what the family takes, and ``BadPipeline`` where an option
    does not suit them.
    """
    return _Reader(model, options, network_hw).read()


def grid(network_hw: Size, strides: Sequence[int]) -> npt.NDArray[np.float64]:
    """The cells of every stride, row by row: (cells, 3) of column, row and stride. Cells cut by the border count."""
    levels = []
    for stride in strides:
        rows, columns = (math.ceil(side / stride) for side in network_hw)
        y, x = np.mgrid[:rows, :columns].reshape(2, -1)
        levels.append(np.stack([x, y, np.full_like(x, stride)], axis=1))
    return np.concatenate(levels, dtype=np.float64)


class _Reader:
    def __init__(self, model: onnx.ModelProto, options: DetectorFamily, network_hw: Size) -> None:
        self.model, self.options, self.network_hw = model, options, network_hw
        self.outputs = _with_known_dims(model)
        self.cells = {_cell_count(network_hw, strides) for strides in STRIDES}
        self.more = options.more_values
        self.prototypes: str | None = None
        maps = [output for output in self.outputs if len(output.dims) == _MAP_DIMS]
        if options.has_prototypes and len(maps) == 1 and maps[0].dims[0] is not None:
            self.prototypes, self.more = maps[0].name, maps[0].dims[0]
            self.outputs.remove(maps[0])

    def read(self) -> Layout:
        for output in self.outputs:
            if output.dtype not in (*_FLOATS, *(_INTEGERS if self.options.family == "boxes" else ())):
                raise self.unfit()
        layout = {
            "yolo": self.yolo,
            "yolov5": self.with_objectness,
            "yolox": self.yolox,
            "ssd": self.ssd,
            "nanodet": self.nanodet,
            "detr": self.detr,
            "boxes": self.decoded,
        }[self.options.family]()
        if self.options.has_prototypes and self.prototypes is None:
            raise self.unfit("It needs one output [batch, maps, height, width] beside, the prototypes of masks")
        if self.more and layout.values is None:
            raise self.unfit("They are read from one output alone")
        for part in (layout.boxes, layout.scores, layout.with_background):
            if layout.anchors < 1 or part.width < 1:
                raise self.unfit()
        return replace(layout, prototypes=self.prototypes)

    def unfit(self, why: str = "") -> BadNetwork:
        seen = ", ".join(_text(output) for output in self.outputs)
        family, usual = self.options.family, self.usual_family()
        if usual not in (None, family):
            why = f"{why}{why and '. '}Such an output is usual for the family {usual}"
        more = f", with {self.more} more values for each box" if self.more else ""
        return BadNetwork(f"the family {family} takes {_TAKES[family]}{more}; got {seen}{why and '. '}{why}")

    def usual_family(self) -> str | None:
        """The family that a network with one output of these sizes most likely is of, where they tell."""
        if len(self.outputs) != 1 or len(self.outputs[0].dims) != 2 or None in self.outputs[0].dims:
            return None
        rows, columns = self.dims(self.outputs[0])
        if rows in self.cells:
            return None
        if columns > rows:
            return "yolo"
        if rows in {3 * count for count in self.cells}:
            return "yolov5"
        if columns == 6 + self.more:
            return "boxes"
        return "detr" if rows <= _MOST_QUERIES else None

    def dims(self, output: NetworkOutput) -> tuple[int, int]:
        """Its two sizes without the batch."""
        if len(output.dims) != 2 or None in output.dims:
            raise self.unfit()
        rows, columns = (size for size in output.dims if size is not None)
        return rows, columns

    def only(self) -> tuple[str, int, int]:
        if len(self.outputs) != 1:
            raise self.unfit()
        rows, columns = self.dims(self.outputs[0])
        return self.outputs[0].name, rows, columns

    def yolo(self) -> Layout:
        name, first, second = self.only()
        if self.usual_family() in ("yolov5", "boxes", "detr"):
            raise self.unfit()
        # Either order is exported. The anchors are as many as the cells, or else the more numerous.
        in_cells = first in self.cells, second in self.cells
        turned = in_cells[1] if in_cells[0] != in_cells[1] else second >= first
        anchors, values = (second, first) if turned else (first, second)
        scores = Columns((name,), 4, values - self.more)
        more = self.more_columns(name, values)
        return Layout(anchors, Columns((name,), 0, 4), scores, scores, turned=turned, values=more)

    def more_columns(self, name: str, columns: int) -> Columns | None:
        """The last of these columns, where the kind reads more than boxes."""
        return Columns((name,), columns - self.more, columns) if self.more else None

    def with_objectness(self, strides: tuple[int, ...] = ()) -> Layout:
        name, anchors, values = self.only()
        if values > anchors:
            raise self.unfit()
        scores = Columns((name,), 5, values)
        objectness = Columns((name,), 4, 5)
        return Layout(anchors, Columns((name,), 0, 4), scores, scores, objectness, strides=strides)

    def yolox(self) -> Layout:
        _, anchors, _ = self.only()
        return self.with_objectness(self.strides_of(anchors))

    def strides_of(self, anchors: int) -> tuple[int, ...]:
        counts = {strides: _cell_count(self.network_hw, strides) for strides in STRIDES}
        for strides, count in counts.items():
            if count == anchors:
                return strides
        height, width = self.network_hw
        expected = " or ".join(f"{count} (strides {', '.join(map(str, each))})" for each, count in counts.items())
        raise self.unfit(f"Its input of {height} x {width} has {expected} cells, not {anchors}")

    def boxes_and_scores(self, outputs: Sequence[NetworkOutput], width: int = 4) -> tuple[str, str, int, int]:
        """The names of both, the number of anchors, and the columns of the scores."""
        if len(outputs) != 2:
            raise self.unfit()
        shapes = {output.name: self.dims(output) for output in outputs}
        boxes = [name for name, (_, columns) in shapes.items() if columns == width]
        if len(boxes) == 2:
            boxes = [name for name in boxes if re.search(_NAMES_OF_BOXES, name.lower())]
            if len(boxes) != 1:
                raise self.unfit(f"Both have {width} values: let only the name of the boxes contain 'box'")
        if len(boxes) != 1:
            raise self.unfit()
        (scores,) = set(shapes) - set(boxes)
        if shapes[scores][0] != shapes[boxes[0]][0]:
            raise self.unfit()
        anchors, columns = shapes[scores]
        return boxes[0], scores, anchors, columns

    def activation(self, scores: str) -> tuple[Literal["sigmoid", "softmax"] | None, str | None]:
        """What is still to be computed, and what the scores are then."""
        asked = self.options.activation
        there = served_network.first_activation(self.model, scores)
        if asked == "none":
            return None, there
        if asked != "auto" and there is not None:
            raise BadPipeline(
                f"postprocess.activation is {asked}, and the network's output {scores!r} comes from {there} already: "
                "write activation: none, or leave it out"
            )
        if there is not None:
            return None, there
        if asked == "auto" and self.options.family == "ssd":
            raise BadPipeline(
                f"postprocess.activation: the network's output {scores!r} comes from no sigmoid or softmax; say which "
                "of them makes scores of it, or none"
            )
        chosen: Literal["sigmoid", "softmax"] = "softmax" if asked == "softmax" else "sigmoid"
        return chosen, chosen

    def ssd(self) -> Layout:
        outputs, anchor_output = self.outputs, None
        encoded = self.options.coding in ("yxhw", "xywh")
        if len(outputs) == 3 and encoded and self.options.anchors is None:
            last = outputs[2]
            if last.dims[-1:] != (4,):
                raise self.unfit()
            outputs, anchor_output = outputs[:2], last.name
        boxes, scores, anchors, columns = self.boxes_and_scores(outputs)
        apply, _ = self.activation(scores)
        background = self.options.background
        start, stop = int(background == "first"), columns - int(background == "last")
        return Layout(
            anchors,
            Columns((boxes,), 0, 4),
            Columns((scores,), start, stop),
            Columns((scores,), 0, columns),
            apply=apply,
            anchor_output=anchor_output,
        )

    def nanodet(self) -> Layout:
        width = 4 * (self.options.reg_max + 1)
        if len(self.outputs) == 1:
            name, anchors, columns = self.only()
            boxes, scores = Columns((name,), columns - width, columns), Columns((name,), 0, columns - width)
            strides = self.strides_of(anchors)
        else:
            boxes, scores, strides = self.nanodet_levels(width)
            anchors = _cell_count(self.network_hw, strides)
        apply, _ = self.activation(scores.outputs[0])
        if apply == "softmax":
            raise BadPipeline("postprocess.activation is softmax; nanodet takes auto, none or sigmoid")
        return Layout(anchors, boxes, scores, scores, apply=apply, strides=strides)

    def nanodet_levels(self, width: int) -> tuple[Columns, Columns, tuple[int, ...]]:
        cells: dict[int, list[NetworkOutput]] = {}
        for output in self.outputs:
            cells.setdefault(self.dims(output)[0], []).append(output)
        strides = self.strides_of(sum(cells))
        pairs = [self.boxes_and_scores(cells[count], width) for count in sorted(cells, reverse=True)]
        if [count for _, _, count, _ in pairs] != [_cell_count(self.network_hw, [stride]) for stride in strides]:
            raise self.unfit()
        columns = {each for _, _, _, each in pairs}
        if len(columns) != 1:
            raise self.unfit()
        boxes, scores = tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)
        return Columns(boxes, 0, width), Columns(scores, 0, columns.pop()), strides

    def detr(self) -> Layout:
        if len(self.outputs) == 1:
            # ultralytics' export of RT-DETR: boxes, then scores that are sigmoid's.
            name, queries, columns = self.only()
            if queries > _MOST_QUERIES or columns in self.cells:
                raise self.unfit()
            if self.options.activation not in ("auto", "none"):
                raise BadPipeline(
                    f"postprocess.activation is {self.options.activation}; in one output of detr scores are ready: "
                    "leave it out"
                )
            scores = Columns((name,), 4, columns)
            return Layout(queries, Columns((name,), 0, 4), scores, scores, one_class_each=False)
        boxes, logits, queries, columns = self.boxes_and_scores(self.outputs)
        apply, result = self.activation(logits)
        no_object = result == "softmax"
        return Layout(
            queries,
            Columns((boxes,), 0, 4),
            Columns((logits,), 0, columns - int(no_object)),
            Columns((logits,), 0, columns),
            apply=apply,
            one_class_each=no_object,
        )

    def decoded(self) -> Layout:
        if len(self.outputs) == 1:
            name, rows, columns = self.only()
            if columns != 6 + self.more:
                raise self.unfit()
            score, ids = Columns((name,), 4, 5), Columns((name,), 5, 6)
            more = self.more_columns(name, columns)
            return Layout(rows, Columns((name,), 0, 4), score, score, class_ids=ids, values=more)
        found: dict[str, NetworkOutput] = {}
        for output in self.outputs:
            for part, names in (("count", "num"), ("boxes", "box"), ("scores", "score|conf"), ("ids", "class|label")):
                if re.search(names, output.name.lower()):
                    found.setdefault(part, output)
                    break
        # Networks without suppression, such as RT-DETR, have no number of boxes.
        if not found.keys() >= {"boxes", "scores", "ids"} or len(self.outputs) != len(found):
            raise self.unfit("Which is which is read from the names")
        rows, four = self.dims(found["boxes"])
        expected = {"scores": (rows,), "ids": (rows,)}
        if four != 4 or any(found[part].dims != dims for part, dims in expected.items()):
            raise self.unfit()
        count = found.get("count")
        if count is not None and (count.dims not in ((), (1,)) or count.dtype not in _INTEGERS):
            raise self.unfit()
        if any(found[part].dtype not in _FLOATS for part in ("boxes", "scores")):
            raise self.unfit()
        score = Columns((found["scores"].name,), 0, 1)
        return Layout(
            rows,
            Columns((found["boxes"].name,), 0, 4),
            score,
            score,
            class_ids=Columns((found["ids"].name,), 0, 1),
            count_output=None if count is None else count.name,
        )


def _cell_count(network_hw: Size, strides: Sequence[int]) -> int:
    return sum(math.prod(math.ceil(side / stride) for side in network_hw) for stride in strides)


def _with_known_dims(model: onnx.ModelProto) -> list[NetworkOutput]:
    """The outputs; where ONNX cannot tell a size, with that of one run."""
    given = served_network.outputs(model)
    if not any(None in output.dims for output in given):
        return given
    pixels = next((value for value in model.graph.input if value.name == DOOR), None)
    sizes = [dim.dim_value for dim in pixels.type.tensor_type.shape.dim[1:]] if pixels else []
    if not sizes or 0 in sizes:
        return given
    inputs = {DOOR: np.zeros((1, *sizes), np.uint8)} | examples(model, 1)
    run = OnnxRuntimeEngine(model.SerializeToString(), threads=0).run(inputs)
    return [NetworkOutput(output.name, output.dtype, run[output.name].shape[1:], output.activation) for output in given]


def _text(output: NetworkOutput) -> str:
    dims = ", ".join("any" if size is None else str(size) for size in ("batch", *output.dims))
    return f"{output.name!r}, {output.dtype} [{dims}]"
