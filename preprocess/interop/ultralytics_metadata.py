"""What an ONNX file of ultralytics says of itself, and what its outputs are by that: one reading for import and build.

The package ultralytics writes the task, the size of the input and the classes; YOLOv5's own ``export.py`` writes
``stride`` and ``names`` alone.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onestream.preprocess.errors import CannotImport
from onestream.preprocess.interop.common import class_names, pair
from onestream.preprocess.operations import DType

Dims = tuple[int | None, ...]

_DTYPES: dict[int, DType] = {1: "float32", 10: "float16"}
"""Of ``onnx.TensorProto``."""
_KINDS = {
    "detect": "detection",
    "classify": "classification",
    "semantic": "segmentation",
    "pose": "keypoints",
    "obb": "oriented_boxes",
    "segment": "instance_masks",
}
"""The kinds of postprocessing that read the outputs of a task."""
_COCO_POINTS, _WITH_SCORE = 17, 3
_MAP_DIMS = 4
_ANY_TASK = ("raw", "embedding")
"""The kinds that give no meaning to outputs."""
_RT_DETR_HEAD = "RTDETRDecoder"
_RT_DETR_ROWS = {"family": "boxes", "box_format": "cxcywh", "normalized": True}
"""RT-DETR's output since ultralytics 8.4.48: rows of cx, cy, w, h, score, class. Since 8.4.90 files name their head."""


@dataclass(frozen=True)
class Export:
    """An ONNX file. A size is None where the file leaves it open; ``dtype`` None where it is no float."""

    metadata: Mapping[str, str]
    input_dims: Dims
    dtype: DType | None
    outputs: tuple[Dims, ...]

    @classmethod
    def of(cls, metadata: Mapping[str, str], image: Any, outputs: Sequence[Any]) -> Export:
        """Of a model's metadata, its input and its outputs (``onnx.ValueInfoProto``)."""
        dtype = _DTYPES.get(image.type.tensor_type.elem_type)
        return cls(metadata, _dims(image), dtype, tuple(_dims(value) for value in outputs))

    @property
    def is_ultralytics(self) -> bool:
        """Whether ultralytics or YOLOv5 wrote it."""
        return {"names", "stride"} <= self.metadata.keys()

    @property
    def task(self) -> str:
        """What it was exported for; YOLOv5, which names no task, only detects."""
        return self.metadata.get("task", "detect")

    @property
    def kind(self) -> str | None:
        """The kind that reads its outputs; None where none does."""
        return _KINDS.get(self.task)

    @property
    def more_fields(self) -> dict[str, Any]:
        """The fields of a kind that reads more than boxes: the points of *pose*. Raises ``CannotImport``."""
        if self.task != "pose":
            return {}
        shape, named = self.stated("kpt_shape"), self.stated("kpt_names")
        match shape:
            case [int(count), 2 | 3 as values] if count > 0:
                names = next(iter(named.values()), None) if isinstance(named, Mapping) else None
                if not isinstance(names, list) or len(names) != count:
                    names = "coco" if count == _COCO_POINTS else [f"point {number}" for number in range(count)]
                return {"points": names} | ({} if values == _WITH_SCORE else {"point_scores": False})
        raise CannotImport(f"its metadata kpt_shape is {shape}; expected the number of points, and 2 or 3")

    @property
    def more_values(self) -> int:
        """How many values its output has for each box beside its sides, scores and class. Raises ``CannotImport``."""
        if self.task == "segment":
            maps = next((dims[1] for dims in self.outputs if len(dims) == _MAP_DIMS), None)
            if maps is None:
                raise CannotImport("its outputs have no prototypes of a known number, [batch, maps, height, width]")
            return maps
        return math.prod(self.stated("kpt_shape")) if self.more_fields else int(self.task == "obb")

    @property
    def names(self) -> list[str]:
        """The names of its classes. Raises ``CannotImport``."""
        return class_names(self.stated("names"), where="its metadata names")

    def stated(self, key: str, default: Any = None) -> Any:
        """An entry of the metadata as the value that it was written from; ``default`` where it is missing."""
        if key not in self.metadata:
            return default
        try:
            return ast.literal_eval(self.metadata[key])
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            raise CannotImport(f"its metadata {key} is {self.metadata[key][:60]!r}, which cannot be read") from None

    def size_hw(self) -> tuple[int, int] | None:
        """(height, width) that the metadata state; None where they state none."""
        stated = self.stated("imgsz")
        return None if stated is None else pair(stated, where="its metadata imgsz")


def check_kind(export: Export, kind: str) -> None:
    """Raise ``CannotImport`` where a kind of postprocessing cannot read the outputs of the task of an export."""
    if not export.is_ultralytics or "task" not in export.metadata or kind in _ANY_TASK or export.kind == kind:
        return
    tasks = " or ".join(repr(one) for one, its_kind in _KINDS.items() if its_kind == kind) or "no task"
    raise CannotImport(
        f"it is an export for the task {export.task!r}, and {kind} reads the outputs of {tasks}; postprocess: "
        "{kind: raw} serves them as they are"
    )


def detector_fields(export: Export) -> dict[str, Any]:
    """The fields of ``postprocess`` that state how a detector's output is read, by its layout.

    Empty where two layouts fit: RT-DETR of two classes has 6 columns with a score for each class, and with score and
    class. Raises ``CannotImport`` where no family fits.
    """
    outputs = [dims for dims in export.outputs if export.task != "segment" or len(dims) != _MAP_DIMS]
    if len(outputs) != 1 or len(outputs[0]) != 3:
        seen = ", ".join(dims_text(dims) for dims in export.outputs)
        raise CannotImport(f"its outputs are {seen}; a detector of ultralytics has one, of three sizes")
    _, rows, columns = outputs[0]
    if rows is None and columns is None:
        raise CannotImport(
            "the sizes of its output follow neither from the file nor from its metadata (imgsz): export it with "
            "simplify=True, or with dynamic=False"
        )
    classes, more = len(export.names), export.more_values
    is_v5 = "task" not in export.metadata
    arguments = export.stated("args", {})
    suppressed = isinstance(arguments, Mapping) and bool(arguments.get("nms"))
    if suppressed or export.stated("end2end", False) is True:
        return {"family": "boxes"} | ({"box_format": "cxcywh"} if export.task == "obb" else {})
    if rows == 4 + classes + more:
        return {"family": "yolo"}
    if is_v5 and columns == 5 + classes:
        return {"family": "yolov5"}
    if columns == 6 and is_rt_detr(export):
        return {} if classes == 2 and "head" not in export.metadata else dict(_RT_DETR_ROWS)
    if columns == 6 + more:
        return {"family": "boxes"}
    if not is_v5 and columns == 4 + classes:
        return {"family": "detr"}
    raise CannotImport(
        f"its output is {dims_text(outputs[0])}, which fits no detector of its metadata's {classes} classes: "
        f"[batch, {4 + classes + more}, anchors], [batch, anchors, {5 + classes}], [batch, queries, {4 + classes}] or "
        f"[batch, rows, {6 + more}]"
    )


def is_rt_detr(export: Export) -> bool:
    """Whether an export whose output is neither suppressed nor YOLO's is an RT-DETR; only then it says: no end2end."""
    if "head" in export.metadata:
        return export.metadata["head"] == _RT_DETR_HEAD
    description = export.metadata.get("description", "").lower()
    return "rtdetr" in description or "rt-detr" in description or "end2end" in export.metadata


def dims_text(dims: Sequence[int | None]) -> str:
    """Sizes as errors show them."""
    return "[" + ", ".join("any" if size is None else str(size) for size in dims) + "]"


def _dims(value: Any) -> Dims:
    return tuple(dim.dim_value if dim.dim_value > 0 else None for dim in value.type.tensor_type.shape.dim)
