"""Appends to a detector the nodes that make candidates of its outputs, the same three for every family.

The best anchors are chosen by their best class first, and everything else is computed for these alone. The operators
are those that ONNX had in opset 11 and that TensorRT has too; none multiplies matrices, which TF32 would round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from onestream.postprocess.detector_family import MOST_CANDIDATES, DetectorFamily
from onestream.serving.building.detector_layout import Columns, Layout, Size, grid, read_layout
from onestream.serving.engine.served import DOOR_PREFIX
from onestream.serving.errors import BadNetwork
from onestream.wire.tensor_names import CANDIDATES

ANCHORS = "anchors"
"""The constant of a network in which anchors are looked for."""

_PREFIX = DOOR_PREFIX + "tail_"
_OLDEST_OPSET = 11
"""The first in which TopK promises the lower index among equals."""


def append_tail(
    model: onnx.ModelProto,
    options: DetectorFamily,
    *,
    network_hw: Size,
    max_candidates: int,
    anchors: npt.NDArray[np.float32] | None = None,
) -> None:
    """Let a detector give candidates in the place of its own outputs; the model is changed.

    ``network_hw`` is the height and width of its input in pixels. With k, the smaller of ``max_candidates`` (at most
    3840) and the number of anchors, the outputs become ``candidate_boxes``, float32 (batch, k, 4), x0 y0 x1 y1 in
    pixels of the input; ``candidate_scores``, float32 (batch, k), best first; ``candidate_classes``, int32 (batch, k),
    from 0. ``anchors`` are those of *ssd*, float32 (anchors, 4), where they are not in the network.

    An anchor with a NaN among its scores, or an infinite best score, leaves first, with an infinite score, so that it
    can be counted. Boxes that are not finite leave as they are.

    A model that gives candidates already stays as it is. Raises as ``read_layout``; ``BadNetwork`` also for an opset
    below 11.
    """
    if [output.name for output in model.graph.output] == list(CANDIDATES):
        return
    taken = {name for node in model.graph.node for name in node.output} & set(CANDIDATES)
    if taken:
        raise BadNetwork(f"its tensor {min(taken)!r} has the name of a candidate; rename it")
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
    if opset < _OLDEST_OPSET:
        raise BadNetwork(f"a detector takes ONNX opset {_OLDEST_OPSET} or newer; the file has {opset}")
    if not 1 <= max_candidates <= MOST_CANDIDATES:
        raise ValueError(f"max_candidates must be from 1 to {MOST_CANDIDATES}, got {max_candidates}")
    layout = read_layout(model, options, network_hw=network_hw)
    _Tail(model, opset, options, layout, network_hw, min(max_candidates, layout.anchors), anchors).append()
    onnx.checker.check_model(model)


def class_count(model: onnx.ModelProto, options: DetectorFamily, *, network_hw: Size) -> int | None:
    """How many classes a detector tells apart; None where its outputs do not show it. Raises as ``read_layout``."""
    return read_layout(model, options, network_hw=network_hw).classes


class _Tail:
    def __init__(
        self,
        model: onnx.ModelProto,
        opset: int,
        options: DetectorFamily,
        layout: Layout,
        network_hw: Size,
        k: int,
        anchors: npt.NDArray[np.float32] | None,
    ) -> None:
        self.model, self.opset, self.options, self.layout, self.k = model, opset, options, layout, k
        self.network_hw, self.given_anchors = network_hw, anchors
        self.graph = model.graph
        self.joined: dict[tuple[str, ...], str] = {}
        self.chosen: dict[tuple[str, ...], str] = {}
        self.indices = self.rows = ""

    def append(self) -> None:
        if self.layout.one_class_each:
            scores, classes = self.best_anchors()
        else:
            scores, classes = self.best_pairs()
        boxes = self.decoded(self.picked(self.layout.boxes))
        if self.layout.count_output:
            found = self.reshaped(self.is_counted(self.indices), [0, -1, 1])
            boxes = self.add("Where", found, boxes, self.floats(0))
        batch = onnx.TensorShapeProto.Dimension()
        batch.CopyFrom(self.graph.output[0].type.tensor_type.shape.dim[0])
        del self.graph.output[:]
        for name, tensor, dtype, dims in zip(
            CANDIDATES,
            (boxes, scores, classes),
            (TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.INT32),
            ([self.k, 4], [self.k], [self.k]),
            strict=True,
        ):
            self.graph.node.append(helper.make_node("Identity", [tensor], [name], name=_PREFIX + name))
            value = helper.make_tensor_value_info(name, dtype, [1, *dims])
            value.type.tensor_type.shape.dim[0].CopyFrom(batch)
            self.graph.output.append(value)

    def best_anchors(self) -> tuple[str, str]:
        """Scores and classes of the anchors whose best class has the best score."""
        layout = self.layout
        scores = self.columns(layout.with_background)
        if layout.apply == "softmax":
            scores = self.add("Softmax", scores, axis=2)
        first = layout.scores.start - layout.with_background.start
        count = layout.scores.stop - layout.scores.start
        if layout.scores != layout.with_background:
            scores = self.sliced(scores, first, first + count)
        best = self.reduced("ReduceMax", scores)
        # The largest of values with a NaN is any of them; their mean is NaN.
        probe = self.reduced("ReduceMean", scores)
        if layout.objectness:
            best = self.add("Mul", best, self.flat(self.columns(layout.objectness)))
            probe = self.add("Add", probe, best)
        if layout.class_ids:
            ids = self.flat(self.columns(layout.class_ids))
            probe = self.add("Add", probe, self.add("Mul", ids, self.floats(0)))
        best = self.without_nan(best, probe)
        if layout.count_output:
            found = self.is_counted(self.integers(np.arange(layout.anchors)))
            best = self.add("Where", found, best, self.floats(0))
        best = self.top(best)
        self.rows = self.row_numbers(self.indices)
        if layout.class_ids:
            classes = self.flat(self.picked(layout.class_ids))
        elif layout.apply == "softmax":
            classes = self.add("ArgMax", self.taken(scores, count), axis=2, keepdims=0)
        else:
            classes = self.add("ArgMax", self.picked(layout.scores), axis=2, keepdims=0)
        return self.activated(best), self.add("Cast", classes, to=TensorProto.INT32)

    def best_pairs(self) -> tuple[str, str]:
        """Scores and classes of the best pairs of a query and a class; a query may leave with several classes."""
        count = self.layout.scores.stop - self.layout.scores.start
        scores = self.columns(self.layout.scores)
        flat = self.reshaped(self.without_nan(scores, scores), [0, -1])
        best = self.top(flat)
        classes = self.integers(count)
        self.rows, pairs = "", self.indices
        self.indices = self.add("Div", pairs, classes)
        self.rows = self.row_numbers(self.indices)
        found = self.add("Sub", pairs, self.add("Mul", self.indices, classes))
        return self.activated(best), self.add("Cast", found, to=TensorProto.INT32)

    def activated(self, best: str) -> str:
        """Scores of the chosen; an infinite one stays so."""
        if self.layout.apply != "sigmoid":
            return best
        infinity = self.floats(np.inf)
        return self.add("Where", self.add("Equal", best, infinity), infinity, self.add("Sigmoid", best))

    def without_nan(self, values: str, probe: str) -> str:
        return self.add("Where", self.add("IsNaN", probe), self.floats(np.inf), values)

    def is_counted(self, places: str) -> str:
        """Which places are below the number of boxes that the network says it found."""
        assert self.layout.count_output is not None
        count = self.reshaped(self.add("Cast", self.layout.count_output, to=TensorProto.INT64), [-1, 1])
        return self.add("Less", places, count)

    def decoded(self, values: str) -> str:
        """The chosen boxes, x0 y0 x1 y1 in pixels."""
        family, options = self.options.family, self.options
        if family in ("yolo", "yolov5"):
            return self.corners(self.sliced(values, 0, 2), self.sliced(values, 2, 4))
        if family == "detr":
            return self.in_pixels(self.corners(self.sliced(values, 0, 2), self.sliced(values, 2, 4)))
        if family == "yolox":
            cells = grid(self.network_hw, self.layout.strides)
            column, row, stride = cells.T
            table = np.stack([column * stride, row * stride, stride, stride], axis=1)
            return self.from_anchors(values, self.looked_up(table), (1.0, 1.0))
        if family == "nanodet":
            return self.from_distances(values)
        if family == "ssd" and options.coding in ("xywh", "yxhw"):
            anchors = self.anchors()
            if options.coding == "yxhw":
                values, anchors = self.swapped(values), self.swapped(anchors)
            if options.normalized is not False:
                anchors = self.in_pixels(anchors)
            return self.from_anchors(values, anchors, options.variances)
        if family == "ssd" and options.coding == "yxyx":
            values = self.swapped(values)
        normalized = family == "ssd" if options.normalized is None else options.normalized
        return self.in_pixels(values) if normalized else values

    def from_anchors(self, values: str, anchors: str, variances: tuple[float, float]) -> str:
        """Centre and size beside an anchor's: SSD's coding, https://arxiv.org/abs/1512.02325, section 2.2."""
        place, size = self.sliced(anchors, 0, 2), self.sliced(anchors, 2, 4)
        moved = self.add("Mul", self.scaled(self.sliced(values, 0, 2), variances[0]), size)
        grown = self.add("Mul", self.add("Exp", self.scaled(self.sliced(values, 2, 4), variances[1])), size)
        return self.corners(self.add("Add", place, moved), grown)

    def from_distances(self, values: str) -> str:
        """The expected distance of each side from a cell: https://arxiv.org/abs/2006.04388, section 3."""
        bins = self.options.reg_max + 1
        cells = grid(self.network_hw, self.layout.strides)
        middle = self.options.cell_center == "middle"
        if self.options.cell_center == "auto":
            middle = len(self.layout.strides) == 3
        stride = cells[:, 2:]
        place = (cells[:, :2] + (0.5 if middle else 0.0)) * stride
        weights = self.add("Softmax", self.reshaped(values, [0, 0, 4, bins]), axis=3)
        # Their mean times their number is their sum, which changed its form between opsets more often.
        distance = self.add("Mul", weights, self.floats(np.arange(bins) * bins))
        distance = self.reduced("ReduceMean", distance, axis=3)
        signed = self.add("Mul", distance, self.looked_up(stride * [-1, -1, 1, 1]))
        return self.add("Add", self.looked_up(np.tile(place, 2)), signed)

    def anchors(self) -> str:
        """The anchors of the chosen."""
        count = self.layout.anchors
        if (output := self.layout.anchor_output) is not None:
            rank = len(next(each for each in self.graph.output if each.name == output).type.tensor_type.shape.dim)
            if rank == 3:
                return self.taken(self.as_float(output), 4)
            return self.add("Gather", self.as_float(output), self.indices, axis=0)
        own = next((each for each in self.graph.initializer if each.name == ANCHORS), None)
        if self.given_anchors is None and own is None:
            raise BadNetwork(
                f"the network has no third output and no constant {ANCHORS!r} with the anchors; give them as "
                "postprocess.anchors, or say with postprocess.coding that boxes are decoded"
            )
        table = numpy_helper.to_array(own) if self.given_anchors is None else self.given_anchors
        if table.shape != (count, 4) or table.dtype.kind != "f" or not np.isfinite(table).all():
            raise BadNetwork(f"the anchors must be [{count}, 4] finite numbers, got {list(table.shape)} {table.dtype}")
        return self.looked_up(table)

    def corners(self, centre: str, size: str) -> str:
        half = self.scaled(size, 0.5)
        return self.add("Concat", self.add("Sub", centre, half), self.add("Add", centre, half), axis=2)

    def in_pixels(self, boxes: str) -> str:
        height, width = self.network_hw
        return self.add("Mul", boxes, self.floats([width, height, width, height]))

    def swapped(self, values: str) -> str:
        """With x before y."""
        return self.add("Gather", values, self.integers([1, 0, 3, 2]), axis=2)

    def scaled(self, values: str, factor: float) -> str:
        return values if factor == 1 else self.add("Mul", values, self.floats(factor))

    def columns(self, part: Columns) -> str:
        """These columns of every anchor."""
        stop = self.width(part.outputs)
        joined = self.whole(part.outputs)
        return joined if (part.start, part.stop) == (0, stop) else self.sliced(joined, part.start, part.stop)

    def picked(self, part: Columns) -> str:
        """These columns of the chosen."""
        width = self.width(part.outputs)
        if part.outputs not in self.chosen:
            self.chosen[part.outputs] = self.taken(self.whole(part.outputs), width)
        found = self.chosen[part.outputs]
        return found if (part.start, part.stop) == (0, width) else self.sliced(found, part.start, part.stop)

    def width(self, outputs: Sequence[str]) -> int:
        """How many columns there are."""
        parts = (self.layout.boxes, self.layout.scores, self.layout.with_background, self.layout.class_ids)
        return max(part.stop for part in parts if part is not None and part.outputs == tuple(outputs))

    def whole(self, outputs: tuple[str, ...]) -> str:
        """Outputs as one tensor, float32 (batch, anchors, values)."""
        if outputs not in self.joined:
            tensors = [self.as_float(output) for output in outputs]
            joined = tensors[0] if len(tensors) == 1 else self.add("Concat", *tensors, axis=1)
            if self.layout.turned:
                joined = self.add("Transpose", joined, perm=[0, 2, 1])
            elif self.rank(outputs[0]) == 2:
                joined = self.reshaped(joined, [0, -1, 1])
            self.joined[outputs] = joined
        return self.joined[outputs]

    def rank(self, output: str) -> int:
        value = next(each for each in self.graph.output if each.name == output)
        return len(value.type.tensor_type.shape.dim)

    def as_float(self, output: str) -> str:
        value = next(each for each in self.graph.output if each.name == output)
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            return output
        return self.add("Cast", output, to=TensorProto.FLOAT)

    def top(self, scores: str) -> str:
        """The k best of (batch, n); their places become ``indices``."""
        best, self.indices = f"{_PREFIX}best", f"{_PREFIX}indices"
        k = self.integers([self.k])
        self.graph.node.append(
            helper.make_node("TopK", [scores, k], [best, self.indices], name=f"{_PREFIX}topk", axis=1, sorted=1)
        )
        return best

    def row_numbers(self, indices: str) -> str:
        """The places of the chosen where the anchors of all images follow each other."""
        zero, one = self.integers(0), self.integers(1)
        batch = self.add("Gather", self.add("Shape", indices), zero, axis=0)
        first = self.add("Mul", self.add("Range", zero, batch, one), self.integers(self.layout.anchors))
        return self.add("Add", indices, self.reshaped(first, [-1, 1]))

    def taken(self, values: str, width: int) -> str:
        """The chosen rows of (batch, anchors, ``width``). Far faster than GatherElements on a CPU."""
        return self.add("Gather", self.reshaped(values, [-1, width]), self.rows, axis=0)

    def looked_up(self, table: npt.NDArray[Any]) -> str:
        """The rows of a constant (anchors, values) that belong to the chosen."""
        return self.add("Gather", self.floats(table), self.indices, axis=0)

    def reduced(self, op: str, values: str, axis: int = 2) -> str:
        """ReduceMax or ReduceMean, whose axes became an input in opset 18."""
        if self.opset >= 18:
            return self.add(op, values, self.integers([axis]), keepdims=0)
        return self.add(op, values, axes=[axis], keepdims=0)

    def sliced(self, values: str, start: int, stop: int) -> str:
        limits = [self.integers([number]) for number in (start, stop, 2)]
        return self.add("Slice", values, *limits)

    def flat(self, values: str) -> str:
        """(batch, n, 1) as (batch, n)."""
        return self.reshaped(values, [0, -1])

    def reshaped(self, values: str, shape: Sequence[int]) -> str:
        return self.add("Reshape", values, self.integers(shape))

    def add(self, op: str, *inputs: str, **attributes: object) -> str:
        name = f"{_PREFIX}{op.lower()}_{len(self.graph.node)}"
        self.graph.node.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def floats(self, values: npt.ArrayLike) -> str:
        return self.constant(np.asarray(values, np.float32))

    def integers(self, values: npt.ArrayLike) -> str:
        return self.constant(np.asarray(values, np.int64))

    def constant(self, values: npt.NDArray[Any]) -> str:
        name = f"{_PREFIX}constant_{len(self.graph.initializer)}"
        self.graph.initializer.append(numpy_helper.from_array(values, name))
        return name
