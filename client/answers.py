"""Reads what a pipeline answered: typed results from tensors, for each kind of postprocessing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.client._transports.base import Tensors
from onestream.client._transports.tensors import MAX_STRINGS
from onestream.client.errors import UnexpectedResponse
from onestream.client.results import Classification, Detections, Label, Outputs, Result
from onestream.wire.tensor_names import BOXES, CLASS_IDS, IMAGE_SIZE, LABELS, SCORES


def result(model: str, tensors: Tensors, request_id: str, latency_ms: float) -> Result:
    """The result in the outputs of a pipeline of any kind, which the names of its outputs tell.

    Raises UnexpectedResponse for outputs of a known kind that are not as they must be.
    """
    if BOXES in tensors and IMAGE_SIZE in tensors:
        return detections(model, tensors, request_id, latency_ms)
    if SCORES in tensors and CLASS_IDS in tensors:
        return classification(model, tensors, request_id, latency_ms)
    return Outputs(tensors=tensors, model=model, request_id=request_id, latency_ms=latency_ms)


def classification(model: str, tensors: Tensors, request_id: str, latency_ms: float) -> Classification:
    """The typed result in the outputs of a classification pipeline. Raises UnexpectedResponse for other outputs.

    A server without strings (TensorRT alone) sends no ``labels``; a class is then named by its id.
    """
    names = (SCORES, CLASS_IDS, LABELS) if LABELS in tensors else (SCORES, CLASS_IDS)
    shapes = [list(tensors[name].shape) for name in names if name in tensors]
    first = shapes[0] if len(shapes) == len(names) else []
    if len(first) != 2 or first[0] != 1 or first[1] < 1 or any(shape != first for shape in shapes):
        raise _unexpected(
            model, tensors, f"{SCORES}, {CLASS_IDS}, usually {LABELS}, each of shape [1, k]; for any kind use predict"
        )
    scores, class_ids = _scores_and_ids(model, tensors)
    labels = _texts(model, tensors[LABELS][0]) if LABELS in tensors else [str(class_id) for class_id in class_ids]
    return Classification(
        labels=tuple(
            Label(label=label, class_id=int(class_id), score=float(score))
            for score, class_id, label in zip(scores, class_ids, labels, strict=True)
        ),
        model=model,
        request_id=request_id,
        latency_ms=latency_ms,
    )


def detections(model: str, tensors: Tensors, request_id: str, latency_ms: float) -> Detections:
    """The typed result in the outputs of a detection pipeline. Raises UnexpectedResponse for other outputs."""
    shapes = {name: list(array.shape) for name, array in tensors.items()}
    boxes_shape = shapes.get(BOXES, [])
    count = boxes_shape[1] if len(boxes_shape) == 3 else -1
    expected = {
        BOXES: [1, count, 4],
        SCORES: [1, count],
        CLASS_IDS: [1, count],
        LABELS: [1, count],
        IMAGE_SIZE: [1, 2],
    }
    if any(shapes.get(name) != shape for name, shape in expected.items()):
        raise _unexpected(
            model,
            tensors,
            f"{BOXES} of shape [1, n, 4], {SCORES}, {CLASS_IDS} and {LABELS} of [1, n], and {IMAGE_SIZE} of [1, 2]; "
            "for any kind use predict",
        )
    boxes, size = tensors[BOXES][0], tensors[IMAGE_SIZE][0]
    if boxes.dtype.kind != "f" or not np.isfinite(boxes).all() or size.dtype.kind not in "iu" or (size < 1).any():
        raise UnexpectedResponse(
            f"model {model!r} answered boxes of {boxes.dtype} for a picture of {size.tolist()}, expected finite floats "
            "and a height and width from 1 on"
        )
    scores, class_ids = _scores_and_ids(model, tensors)
    return Detections(
        boxes=boxes.astype(np.float32, copy=False),
        scores=scores.astype(np.float32, copy=False),
        class_ids=class_ids.astype(np.int32, copy=False),
        labels=tuple(_texts(model, tensors[LABELS][0])),
        image_size=(int(size[0]), int(size[1])),
        model=model,
        request_id=request_id,
        latency_ms=latency_ms,
    )


def _scores_and_ids(model: str, tensors: Tensors) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Scores and class ids of shape [k], which are what they must be for every kind that has them."""
    scores, class_ids = tensors[SCORES][0], tensors[CLASS_IDS][0]
    if scores.dtype.kind != "f" or class_ids.dtype.kind not in "iu":
        raise UnexpectedResponse(
            f"model {model!r} answered scores of {scores.dtype} and class_ids of {class_ids.dtype}, expected floats "
            "and whole numbers"
        )
    if len(scores) > MAX_STRINGS:
        raise UnexpectedResponse(f"model {model!r} answered {len(scores)} classes, expected at most {MAX_STRINGS}")
    if not np.isfinite(scores).all() or (np.diff(scores) > 0).any():
        raise UnexpectedResponse(f"model {model!r} answered the scores {scores}, expected numbers, the best first")
    if (class_ids < 0).any():
        raise UnexpectedResponse(f"model {model!r} answered the class_ids {class_ids}, expected them from 0 on")
    return scores, class_ids


def _texts(model: str, labels: npt.NDArray[Any]) -> Sequence[str]:
    if labels.dtype != object:
        raise UnexpectedResponse(f"model {model!r} answered labels of {labels.dtype}, expected strings")
    try:
        return [str(label, "utf-8") for label in labels]
    except UnicodeDecodeError as error:
        raise UnexpectedResponse(f"model {model!r} answered labels that are no UTF-8: {error}") from None


def _unexpected(model: str, tensors: Tensors, expected: str) -> UnexpectedResponse:
    seen = {name: list(array.shape) for name, array in tensors.items()}
    return UnexpectedResponse(f"model {model!r} answered {seen or 'nothing'}, expected {expected}")
