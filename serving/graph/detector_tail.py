"""Appends to a detector the nodes that make candidates of its outputs, the same for every family.

The best anchors are chosen by their best class first, and everything else is computed for these alone. No node
multiplies matrices, which a GPU would do in TF32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from onestream.postprocess.detector_family import ANCHORS, MOST_CANDIDATES, DetectorFamily
from onestream.serving.errors import BadNetwork
from onestream.serving.graph.detector_layout import Columns, Layout, Size, grid, read_layout
from onestream.serving.graph.onnx_nodes import OLDEST_OPSET, TAIL_PREFIX, Nodes, opset
from onestream.wire.tensor_names import CANDIDATE_VALUES, CANDIDATES, PROTOTYPES

_Table = npt.NDArray[np.floating[Any]]


def append_tail(
    model: onnx.ModelProto,
    options: DetectorFamily,
    *,
    network_hw: Size,
    max_candidates: int,
    anchors: _Table | None = None,
) -> None:
    """Let a detector give candidates in the place of its own outputs; the model is changed.

    ``network_hw`` is the height and width of its input in pixels. With k, the smaller of ``max_candidates`` (at most
    3840) and the number of anchors, the outputs become ``candidate_boxes``, float32 (batch, k, 4), x0 y0 x1 y1 in
    pixels of the input; ``candidate_scores``, float32 (batch, k), best first; ``candidate_classes``, int32 (batch, k),
    from 0. Where the options read more of each box, ``candidate_values``, float32 (batch, k, values), are that;
    ``prototypes``, float32 (batch, maps, height, width), are those of a network with such an output.
    ``anchors`` are those of *ssd*, float (anchors, 4), where they are not in the network.

    An anchor with a NaN among its scores, or an infinite best score, leaves first, with an infinite score, so that it
    can be counted. Boxes that are not finite leave as they are. Of *detr* whose scores are sigmoid's, pairs of a query
    and a class are chosen in the place of anchors, as RT-DETR does.

    A model that gives candidates already stays as it is. Raises as ``read_layout``; ``BadNetwork`` also for an opset
    below 11 and for anchors that are missing or do not fit.
    """
    if not 1 <= max_candidates <= MOST_CANDIDATES:
        raise ValueError(f"max_candidates must be from 1 to {MOST_CANDIDATES}, got {max_candidates}")
    names = {*CANDIDATES, CANDIDATE_VALUES, PROTOTYPES}
    if set(CANDIDATES) <= {output.name for output in model.graph.output} <= names:
        return
    if opset(model) < OLDEST_OPSET:
        raise BadNetwork(f"a detector takes ONNX opset {OLDEST_OPSET} or newer; the file has {opset(model)}")
    taken = {name for node in model.graph.node for name in node.output} & names
    if taken:
        raise BadNetwork(f"its tensor {min(taken)!r} has the name of a candidate; rename it")
    layout = read_layout(model, options, network_hw=network_hw)
    _Tail(model, options, layout, network_hw, min(max_candidates, layout.anchors), anchors).append()
    onnx.checker.check_model(model)


class _Tail:
    def __init__(
        self,
        model: onnx.ModelProto,
        options: DetectorFamily,
        layout: Layout,
        network_hw: Size,
        k: int,
        anchors: _Table | None,
    ) -> None:
        self.nodes = Nodes(model)
        self.graph, self.options, self.layout, self.k, self.given_anchors = model.graph, options, layout, k, anchors
        self.network_hw = network_hw
        self.sides = np.array([*network_hw[::-1]] * 2, np.float32)
        """Width and height, twice."""
        self.outputs = {output.name: output.type.tensor_type for output in model.graph.output}
        self.joined: dict[tuple[str, ...], str] = {}
        self.chosen: dict[tuple[str, ...], str] = {}
        self.indices = self.rows = ""
        """The places of the chosen: among the anchors of their image, and among those of all images."""

    def append(self) -> None:
        scores, classes = self.best_anchors() if self.layout.one_class_each else self.best_pairs()
        boxes = self.decoded(self.picked(self.layout.boxes))
        if self.layout.count_output:
            counted = self.nodes.reshaped(self.is_counted(self.indices), [0, -1, 1])
            boxes = self.nodes.add("Where", counted, boxes, self.nodes.floats(0))
        classes = self.nodes.add("Cast", classes, to=TensorProto.INT32)
        batch = onnx.TensorShapeProto.Dimension()
        batch.CopyFrom(self.graph.output[0].type.tensor_type.shape.dim[0])
        dtypes = (TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.INT32)
        shapes = ([1, self.k, 4], [1, self.k], [1, self.k])
        made = list(zip(CANDIDATES, (boxes, scores, classes), dtypes, shapes, strict=True))
        if (more := self.layout.values) is not None:
            made.append((CANDIDATE_VALUES, self.picked(more), TensorProto.FLOAT, [1, self.k, more.width]))
        if (maps := self.layout.prototypes) is not None:
            sides = [dim.dim_value for dim in self.outputs[maps].shape.dim]
            made.append((PROTOTYPES, self.as_float(maps), TensorProto.FLOAT, sides))
        del self.graph.output[:]
        for name, tensor, dtype, shape in made:
            self.graph.node.append(helper.make_node("Identity", [tensor], [name], name=TAIL_PREFIX + name))
            value = helper.make_tensor_value_info(name, dtype, shape)
            value.type.tensor_type.shape.dim[0].CopyFrom(batch)
            self.graph.output.append(value)

    def best_anchors(self) -> tuple[str, str]:
        """Scores and classes of the anchors whose best class has the best score."""
        layout, nodes = self.layout, self.nodes
        scores = self.columns(layout.with_background)
        if layout.apply == "softmax":
            scores = nodes.add("Softmax", scores, axis=2)
        if layout.scores != layout.with_background:
            scores = nodes.sliced(scores, layout.scores.start, layout.scores.stop)
        best = nodes.reduced("ReduceMax", scores, axis=2)
        # The largest of values with a NaN is any of them; their mean is NaN.
        probe = nodes.reduced("ReduceMean", scores, axis=2)
        if layout.objectness:
            best = nodes.add("Mul", best, self.flat(self.columns(layout.objectness)))
            probe = nodes.add("Add", probe, best)
        if layout.class_ids:
            probe = nodes.add("Add", probe, nodes.scaled(self.flat(self.columns(layout.class_ids)), 0))
        best = self.without_nan(best, probe)
        if layout.count_output:
            counted = self.is_counted(nodes.integers(np.arange(layout.anchors)))
            best = nodes.add("Where", counted, best, nodes.floats(0))
        best, self.indices = nodes.top(best, self.k)
        self.rows = self.row_numbers()
        if layout.class_ids:
            return best, self.flat(self.picked(layout.class_ids))
        together = layout.scores.outputs == layout.boxes.outputs
        rows = self.picked(layout.scores) if together else self.taken(scores, layout.scores.width)
        return self.activated(best), nodes.add("ArgMax", rows, axis=2, keepdims=0)

    def best_pairs(self) -> tuple[str, str]:
        """Scores and classes of the best pairs of a query and a class; a query may leave with several classes."""
        nodes, classes = self.nodes, self.nodes.integers(self.layout.scores.width)
        scores = self.columns(self.layout.scores)
        best, pairs = nodes.top(nodes.reshaped(self.without_nan(scores, scores), [0, -1]), self.k)
        self.indices = nodes.add("Div", pairs, classes)
        self.rows = self.row_numbers()
        return self.activated(best), nodes.add("Sub", pairs, nodes.add("Mul", self.indices, classes))

    def activated(self, best: str) -> str:
        """Scores of the chosen; an infinite one stays so."""
        if self.layout.apply != "sigmoid":
            return best
        infinity = self.nodes.floats(np.inf)
        is_infinite = self.nodes.add("Equal", best, infinity)
        return self.nodes.add("Where", is_infinite, infinity, self.nodes.add("Sigmoid", best))

    def without_nan(self, values: str, probe: str) -> str:
        return self.nodes.add("Where", self.nodes.add("IsNaN", probe), self.nodes.floats(np.inf), values)

    def is_counted(self, places: str) -> str:
        """Which places are below the number of boxes that the network says it found."""
        assert self.layout.count_output is not None
        count = self.nodes.add("Cast", self.layout.count_output, to=TensorProto.INT64)
        return self.nodes.add("Less", places, self.nodes.reshaped(count, [-1, 1]))

    def decoded(self, values: str) -> str:
        """The chosen boxes, x0 y0 x1 y1 in pixels."""
        family, coding = self.options.family, self.options.coding
        if family in ("yolo", "yolov5", "detr") or self.options.box_format == "cxcywh":
            values = self.corners(self.nodes.sliced(values, 0, 2), self.nodes.sliced(values, 2, 4))
        if family == "yolox":
            column, row, stride = grid(self.network_hw, self.layout.strides).T
            table = np.stack([column * stride, row * stride, stride, stride], axis=1)
            return self.from_anchors(values, self.looked_up(table), (1.0, 1.0))
        if family == "nanodet":
            return self.from_distances(values)
        if family == "ssd" and coding in ("xywh", "yxhw"):
            y_first = coding == "yxhw"
            return self.from_anchors(values, self.anchors(y_first), self.options.variances, y_first=y_first)
        if family == "ssd" and coding == "yxyx":
            values = self.swapped(values)
        return self.nodes.scaled(values, self.sides) if self.normalized else values

    @property
    def normalized(self) -> bool:
        asked = self.options.normalized
        return self.options.family in ("ssd", "detr") if asked is None else asked

    def from_anchors(self, values: str, anchors: str, variances: tuple[float, float], *, y_first: bool = False) -> str:
        """Centre and size beside an anchor's: SSD's coding, https://arxiv.org/abs/1512.02325, section 2.2.

        ``anchors`` are x, y, width and height in pixels; ``values`` are in this order, or with ``y_first`` y, x, height
        and width.
        """
        nodes = self.nodes
        place, size = nodes.sliced(anchors, 0, 2), nodes.sliced(anchors, 2, 4)
        moved = nodes.scaled(nodes.sliced(values, 0, 2, turned=y_first), variances[0])
        grown = nodes.scaled(nodes.sliced(values, 2, 4, turned=y_first), variances[1])
        centre = nodes.add("Add", place, nodes.add("Mul", moved, size))
        return self.corners(centre, nodes.add("Mul", nodes.add("Exp", grown), size))

    def from_distances(self, values: str) -> str:
        """The expected distance of each side from a cell: https://arxiv.org/abs/2006.04388, section 3."""
        nodes, bins = self.nodes, self.options.reg_max + 1
        cells = grid(self.network_hw, self.layout.strides)
        middle = self.options.cell_center == "middle"
        if self.options.cell_center == "auto":
            middle = len(self.layout.strides) == 3
        stride = cells[:, 2:]
        place = (cells[:, :2] + (0.5 if middle else 0.0)) * stride
        weights = nodes.add("Softmax", nodes.reshaped(values, [0, 0, 4, bins]), axis=3)
        # The mean of so many times each is their sum. ReduceSum changed its form between opsets once more.
        distance = nodes.reduced("ReduceMean", nodes.scaled(weights, np.arange(bins) * bins), axis=3)
        signed = nodes.add("Mul", distance, self.looked_up(stride * [-1, -1, 1, 1]))
        return nodes.add("Add", self.looked_up(np.tile(place, 2)), signed)

    def anchors(self, y_first: bool) -> str:
        """The anchors of the chosen: x, y, width and height in pixels."""
        if (output := self.layout.anchor_output) is not None:
            values, rank = self.as_float(output), len(self.outputs[output].shape.dim)
            found = self.taken(values, 4) if rank == 3 else self.nodes.add("Gather", values, self.indices, axis=0)
            found = self.swapped(found) if y_first else found
            return self.nodes.scaled(found, self.sides) if self.normalized else found
        table = self.constant_anchors()
        table = table[:, [1, 0, 3, 2]] if y_first else table
        return self.looked_up(table * self.sides if self.normalized else table)

    def constant_anchors(self) -> _Table:
        table, count = self.given_anchors, self.layout.anchors
        if table is None:
            own = next((each for each in self.graph.initializer if each.name == ANCHORS), None)
            if own is None:
                raise BadNetwork(
                    f"the network has no third output and no constant {ANCHORS!r} with the anchors; give them as "
                    "postprocess.anchors, or say with postprocess.coding that boxes are decoded"
                )
            table = np.asarray(numpy_helper.to_array(own))
        if table.shape != (count, 4) or table.dtype.kind != "f" or not np.isfinite(table).all():
            raise BadNetwork(f"the anchors must be [{count}, 4] finite numbers, got {list(table.shape)} {table.dtype}")
        return table

    def corners(self, centre: str, size: str) -> str:
        half = self.nodes.scaled(size, 0.5)
        low, high = self.nodes.add("Sub", centre, half), self.nodes.add("Add", centre, half)
        return self.nodes.add("Concat", low, high, axis=2)

    def swapped(self, values: str) -> str:
        """With x before y, twice."""
        return self.nodes.add("Gather", values, self.nodes.integers([1, 0, 3, 2]), axis=2)

    def columns(self, part: Columns) -> str:
        """These columns of every anchor, float32 (batch, anchors, columns)."""
        return self.cut(self.whole(part.outputs), part)

    def picked(self, part: Columns) -> str:
        """These columns of the chosen."""
        if part.outputs not in self.chosen:
            self.chosen[part.outputs] = self.taken(self.whole(part.outputs), self.layout.width(part.outputs))
        return self.cut(self.chosen[part.outputs], part)

    def cut(self, values: str, part: Columns) -> str:
        whole = (part.start, part.stop) == (0, self.layout.width(part.outputs))
        return values if whole else self.nodes.sliced(values, part.start, part.stop)

    def whole(self, outputs: tuple[str, ...]) -> str:
        """Outputs one after the other as float32 (batch, anchors, values)."""
        if outputs not in self.joined:
            tensors = [self.as_float(output) for output in outputs]
            joined = tensors[0] if len(tensors) == 1 else self.nodes.add("Concat", *tensors, axis=1)
            if self.layout.turned:
                joined = self.nodes.add("Transpose", joined, perm=[0, 2, 1])
            elif len(self.outputs[outputs[0]].shape.dim) == 2:
                joined = self.nodes.reshaped(joined, [0, -1, 1])
            self.joined[outputs] = joined
        return self.joined[outputs]

    def as_float(self, output: str) -> str:
        is_float = self.outputs[output].elem_type == TensorProto.FLOAT
        return output if is_float else self.nodes.add("Cast", output, to=TensorProto.FLOAT)

    def row_numbers(self) -> str:
        """The places of the chosen where the anchors of all images follow each other."""
        nodes = self.nodes
        zero, one = nodes.integers(0), nodes.integers(1)
        batch = nodes.add("Gather", nodes.add("Shape", self.indices), zero, axis=0)
        image = nodes.add("Range", zero, batch, one)
        first = nodes.add("Mul", image, nodes.integers(self.layout.anchors))
        return nodes.add("Add", self.indices, nodes.reshaped(first, [-1, 1]))

    def taken(self, values: str, width: int) -> str:
        """The chosen rows of (batch, anchors, ``width``). Far faster than GatherElements on a CPU."""
        return self.nodes.add("Gather", self.nodes.reshaped(values, [-1, width]), self.rows, axis=0)

    def looked_up(self, table: _Table) -> str:
        """The rows of a constant (anchors, values) that belong to the chosen."""
        return self.nodes.add("Gather", self.nodes.floats(table), self.indices, axis=0)

    def flat(self, values: str) -> str:
        """(batch, n, 1) as (batch, n)."""
        return self.nodes.reshaped(values, [0, -1])
