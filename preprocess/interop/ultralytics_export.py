"""Pipelines of ONNX files that ultralytics exports, by what they say of themselves in their metadata.

YOLOv8 to 12, YOLO26 and RT-DETR, exported by the package ultralytics, say their task, the size of their input and their
classes; YOLOv5's own ``export.py`` writes ``stride`` and ``names`` alone.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import CannotImport
from onestream.preprocess.interop.common import Imported, assemble, class_names, pair, refusing
from onestream.preprocess.interop.letterbox import from_letterbox
from onestream.preprocess.interop.libraries import load
from onestream.preprocess.operations import CenterCrop, Decode, DType, Operation, Resize

Dims = tuple[int | None, ...]

_DTYPES: dict[int, DType] = {1: "float32", 10: "float16"}
"""Of ``onnx.TensorProto``."""
_PREDICT = {"score_threshold": 0.25, "iou_threshold": 0.7, "max_detections": 300, "max_candidates": 1000}
"""The defaults of ultralytics' ``predict``, which bounds candidates far above any number of them."""
_DETECT_V5 = {"score_threshold": 0.25, "iou_threshold": 0.45, "max_detections": 1000, "max_candidates": 1000}
"""The defaults of YOLOv5's ``detect.py``, likewise."""
_THRESHOLDS = "The thresholds are the defaults of ultralytics' predict."
_ONE_SIZE = (
    "The file takes pictures of any size, and ultralytics pads them no more than to a multiple of its stride; a served "
    "network has one size, to which every picture is padded: the size that the file names."
)
_MANY_CLASSES = (
    "An object may leave with several classes, as in RT-DETR's own code; ultralytics' predict keeps the best of each."
)


@dataclass(frozen=True)
class _Export:
    """An ONNX file. A size is None where the file leaves it open; ``dtype`` None where it is no float."""

    metadata: Mapping[str, str]
    input_dims: Dims
    dtype: DType | None
    outputs: tuple[Dims, ...]

    def stated(self, key: str, default: Any = None) -> Any:
        """An entry of the metadata as the value that it was written from; ``default`` where it is missing."""
        if key not in self.metadata:
            return default
        try:
            return ast.literal_eval(self.metadata[key])
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            raise CannotImport(f"its metadata {key} is {self.metadata[key][:60]!r}, which cannot be read") from None


def of_letterbox(definition: Definition, origin: str) -> Imported:
    """A letterbox with the postprocessing of the networks that take it. The names of their classes are not known."""
    note = f"{_THRESHOLDS} The family is that of YOLOv8 to 12; of YOLOv5 to v7 it is yolov5."
    return Imported(definition, origin, (note,), {"kind": "detection", "family": "yolo", **_PREDICT})


@refusing()
def from_ultralytics(path: Path) -> Imported:
    """The definition and postprocessing of an ONNX file that ultralytics exported for *detect* or *classify*.

    Raises ``CannotImport`` for any other file and task, and ``BackendMissing`` without the package onnx.
    """
    export = _read(path)
    if not {"names", "stride"} <= export.metadata.keys():
        raise CannotImport(
            f"{path} carries no metadata of ultralytics (names, stride), so it does not say what it takes. For a YOLO, "
            "letterbox:640 prints a pipeline; for other networks, import what they were trained with"
        )
    task = export.metadata.get("task", "detect")
    if task not in ("detect", "classify"):
        raise CannotImport(
            f"{path} is an export for the task {task!r}; what its outputs mean is known for detect and classify only. "
            "The nearest is letterbox:640, with postprocess: {kind: raw} and code of your own after it"
        )
    names = class_names(export.stated("names"), where="its metadata names")
    size_hw, notes = _size(export)
    if export.dtype is None:
        raise CannotImport("its input is neither float32 nor float16")
    origin = f"{export.metadata.get('description', 'a YOLOv5 network').strip()} in {path}"
    if task == "classify":
        postprocess: dict[str, Any] = {"kind": "classification", "labels": names}
        return Imported(_classifier(size_hw, export.dtype), origin, notes, postprocess)
    family = _family(export, len(names))
    # RT-DETR's predictor stretches the picture.
    definition = from_letterbox(size_hw, scale_fill=family == "detr", dtype=export.dtype)
    if family == "detr":
        notes = (*notes, _MANY_CLASSES)
    options: dict[str, float] = dict(_DETECT_V5 if family == "yolov5" else _PREDICT)
    if family in ("detr", "boxes"):
        # Nothing is suppressed.
        del options["iou_threshold"], options["max_candidates"]
    thresholds = "The thresholds are the defaults of YOLOv5's detect.py." if family == "yolov5" else _THRESHOLDS
    postprocess = {"kind": "detection", "family": family, **options, "labels": names}
    return Imported(definition, origin, (*notes, thresholds), postprocess)


def _read(path: Path) -> _Export:
    onnx = load("onnx")
    try:
        model = onnx.load(str(path), load_external_data=False)
    except OSError as error:
        raise CannotImport(f"{path}: {error.strerror or error}") from None
    except Exception as error:  # the parser's exception type differs between protobuf versions
        raise CannotImport(f"{path} is not an ONNX file ({type(error).__name__})") from None
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    if len(inputs) != 1:
        raise CannotImport(f"{path} has {len(inputs)} inputs; expected one, the image")
    return _Export(
        {entry.key: entry.value for entry in model.metadata_props},
        _dims(inputs[0]),
        _DTYPES.get(inputs[0].type.tensor_type.elem_type),
        tuple(_dims(value) for value in model.graph.output),
    )


def _dims(value: Any) -> Dims:
    return tuple(dim.dim_value if dim.dim_value > 0 else None for dim in value.type.tensor_type.shape.dim)


def _size(export: _Export) -> tuple[tuple[int, int], tuple[str, ...]]:
    """(height, width) of the network's input, and what is to be said of it."""
    dims = export.input_dims
    channels = dims[1] if len(dims) == 4 and dims[1] else export.stated("channels", 3)
    if len(dims) not in (0, 4) or channels != 3:
        raise CannotImport(f"its input is {_text(dims)}; expected images of 3 channels, [batch, 3, height, width]")
    if dims and dims[2] and dims[3]:
        return (dims[2], dims[3]), ()
    stated = export.stated("imgsz")
    if stated is None:
        raise CannotImport(
            "its input has no fixed size, and its metadata names none (imgsz): export it without --dynamic"
        )
    return pair(stated, where="its metadata imgsz"), (_ONE_SIZE,)


def _classifier(size_hw: tuple[int, int], dtype: DType) -> Definition:
    """``classify_transforms`` of ultralytics: torchvision's ``Resize`` and ``CenterCrop`` on PIL images."""
    square = size_hw[0] == size_hw[1]
    resize = Resize(mode="shorter", size=size_hw[0]) if square else Resize(mode="exact", size=size_hw)
    operations: list[Operation] = [Decode(), resize, CenterCrop(size=size_hw)]
    return assemble(operations, scale=255.0, steps=(), dtype=dtype)


def _family(export: _Export, classes: int) -> str:
    """The family by what the file says and, where it says nothing, by the shape of its output."""
    if len(export.outputs) != 1 or len(export.outputs[0]) != 3:
        seen = ", ".join(_text(dims) for dims in export.outputs)
        raise CannotImport(f"its outputs are {seen}; a detector of ultralytics has one, of three sizes")
    _, rows, columns = export.outputs[0]
    is_v5 = "task" not in export.metadata
    arguments = export.stated("args", {})
    suppressed = isinstance(arguments, Mapping) and bool(arguments.get("nms"))
    if suppressed or export.stated("end2end", False) is True:
        return "boxes"
    named = f"{export.metadata.get('head', '')} {export.metadata.get('description', '')}".lower()
    if "rtdetr" in named or "rt-detr" in named:
        return "detr"
    if rows == 4 + classes:
        return "yolo"
    if is_v5 and columns == 5 + classes:
        return "yolov5"
    # RT-DETR of two classes under a name of its own has 6 columns, too; older files do not say that it is no end2end.
    if not is_v5 and columns == 4 + classes and (columns != 6 or "end2end" in export.metadata):
        return "detr"
    if columns == 6:
        return "boxes"
    raise CannotImport(
        f"its output is {_text(export.outputs[0])}, which fits no detector of its metadata's {classes} classes: "
        f"[batch, {4 + classes}, anchors], [batch, anchors, {5 + classes}], [batch, queries, {4 + classes}] or "
        "[batch, rows, 6]"
    )


def _text(dims: Sequence[int | None]) -> str:
    return "[" + ", ".join("any" if size is None else str(size) for size in dims) + "]"
