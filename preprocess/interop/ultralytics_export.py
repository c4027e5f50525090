"""Pipelines of ONNX files that ultralytics exports, by what they say of themselves in their metadata."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import CannotImport
from onestream.preprocess.interop.common import Imported, assemble, refusing
from onestream.preprocess.interop.letterbox import from_letterbox
from onestream.preprocess.interop.libraries import load
from onestream.preprocess.interop.ultralytics_metadata import (
    Export,
    check_kind,
    detector_fields,
    dims_text,
)
from onestream.preprocess.moves import CenterCrop, Resize
from onestream.preprocess.operations import Decode, DType, Operation
from onestream.preprocess.user_files import read_bounded

_MOST_BYTES = 2**31 - 1
"""The largest ONNX file: protobuf takes no more."""
_PREDICT = {"score_threshold": 0.25, "iou_threshold": 0.7, "max_detections": 300, "max_candidates": 1000}
"""The defaults of ultralytics' ``predict``, which bounds candidates far above any number of them."""
_DETECT_V5 = {"score_threshold": 0.25, "iou_threshold": 0.45, "max_detections": 1000, "max_candidates": 1000}
"""The defaults of YOLOv5's ``detect.py``, likewise."""
_IMPORTED = ("detect", "classify", "pose", "obb", "segment")
_THRESHOLDS = "The thresholds are the defaults of ultralytics' predict."
_ONE_SIZE = (
    "The file takes pictures of any size, and ultralytics pads them no more than to a multiple of its stride; a served "
    "network has one size, to which every picture is padded: the size that the file names."
)
_TWO_LAYOUTS = (
    "Its rows of 6 are a box with the scores of both classes or, since ultralytics 8.4.48, a box with score and class; "
    "the file does not say which. Below kind, add family: detr for the former, or family: boxes, box_format: cxcywh "
    "and normalized: true for the latter."
)
_MANY_CLASSES = (
    "An object may leave with several classes, as in RT-DETR's own code; ultralytics' predict keeps the best of each."
)


def of_letterbox(definition: Definition, origin: str) -> Imported:
    """A letterbox with the postprocessing of the networks that take it. The names of their classes are not known."""
    note = f"{_THRESHOLDS} The family is that of YOLOv8 to 12; of YOLOv5 to v7 it is yolov5."
    return Imported(definition, origin, (note,), {"kind": "detection", "family": "yolo", **_PREDICT})


@refusing()
def from_ultralytics(path: Path) -> Imported:
    """The definition and postprocessing of an ONNX file that ultralytics exported, for any task but *semantic*.

    Raises ``CannotImport`` for any other file and task, and ``BackendMissing`` without the package onnx.
    """
    export = _read(path)
    if not export.is_ultralytics:
        raise CannotImport(
            f"{path} carries no metadata of ultralytics (names, stride), so it does not say what it takes. For a YOLO, "
            "letterbox:640 prints a pipeline; for other networks, import what they were trained with"
        )
    is_classifier = export.task == "classify"
    kind = (export.kind if export.task in _IMPORTED else None) or "detection"
    check_kind(export, kind)
    names = export.names
    size_hw, notes = _size(export)
    if export.dtype is None:
        raise CannotImport("its input is neither float32 nor float16")
    origin = f"{export.metadata.get('description', 'a YOLOv5 network').strip()} in {path}"
    if is_classifier:
        postprocess: dict[str, Any] = {"kind": "classification", "labels": names}
        return Imported(_classifier(size_hw, export.dtype), origin, notes, postprocess)
    fields = detector_fields(export)
    is_v5 = fields.get("family") == "yolov5"
    # RT-DETR's predictor stretches the picture.
    stretches = fields.get("family", "detr") == "detr" or "box_format" in fields
    definition = from_letterbox(size_hw, scale_fill=stretches, dtype=export.dtype)
    if fields.get("family") == "detr":
        notes = (*notes, _MANY_CLASSES)
    if not fields:
        notes = (*notes, _TWO_LAYOUTS)
    options: dict[str, float] = dict(_DETECT_V5 if is_v5 else _PREDICT)
    if fields.get("family") not in ("yolo", "yolov5"):
        # Nothing is suppressed.
        del options["iou_threshold"], options["max_candidates"]
    thresholds = "The thresholds are the defaults of YOLOv5's detect.py." if is_v5 else _THRESHOLDS
    postprocess = {"kind": kind, **fields, **export.more_fields, **options, "labels": names}
    return Imported(definition, origin, (*notes, thresholds), postprocess)


def _read(path: Path) -> Export:
    onnx = load("onnx")
    try:
        model = onnx.load_model_from_string(read_bounded(path, _MOST_BYTES))
    except OSError as error:
        raise CannotImport(f"{path}: {error.strerror or error}") from None
    except Exception as error:  # the parser's exception type differs between protobuf versions
        raise CannotImport(f"{path} is not an ONNX file ({type(error).__name__})") from None
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    if len(inputs) != 1:
        raise CannotImport(f"{path} has {len(inputs)} inputs; expected one, the image")
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    export = Export.of(metadata, inputs[0], model.graph.output)
    is_open = any(None in dims[1:] for dims in export.outputs)
    size_hw = export.size_hw() if export.is_ultralytics and is_open else None
    if size_hw is None:
        return export
    # Exports that are dynamic and not simplified leave every size of their output open.
    for dim, size in zip(inputs[0].type.tensor_type.shape.dim, (1, 3, *size_hw), strict=False):
        dim.dim_value = size
    del model.graph.value_info[:]
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception as error:  # as above
        raise CannotImport(f"the sizes of its outputs cannot be inferred: {str(error).splitlines()[0][:200]}") from None
    return replace(export, outputs=Export.of(metadata, inputs[0], inferred.graph.output).outputs)


def _size(export: Export) -> tuple[tuple[int, int], tuple[str, ...]]:
    """(height, width) of the network's input, and what is to be said of it."""
    dims = export.input_dims
    channels = dims[1] if len(dims) == 4 and dims[1] else export.stated("channels", 3)
    if len(dims) not in (0, 4) or channels != 3:
        raise CannotImport(f"its input is {dims_text(dims)}; expected images of 3 channels, [batch, 3, height, width]")
    if dims and dims[2] and dims[3]:
        return (dims[2], dims[3]), ()
    stated = export.size_hw()
    if stated is None:
        raise CannotImport(
            "its input has no fixed size, and its metadata names none (imgsz): export it without --dynamic"
        )
    return stated, (_ONE_SIZE,)


def _classifier(size_hw: tuple[int, int], dtype: DType) -> Definition:
    """``classify_transforms`` of ultralytics: torchvision's ``Resize`` and ``CenterCrop`` on PIL images."""
    square = size_hw[0] == size_hw[1]
    resize = Resize(mode="shorter", size=size_hw[0]) if square else Resize(mode="exact", size=size_hw)
    operations: list[Operation] = [Decode(), resize, CenterCrop(size=size_hw)]
    return assemble(operations, scale=255.0, steps=(), dtype=dtype)
