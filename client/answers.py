"""Reads what a pipeline answered: typed results from tensors, for each kind of postprocessing."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.client._transports.base import Tensors
from onestream.client._transports.tensors import MAX_STRINGS
from onestream.client.errors import UnexpectedResponse
from onestream.client.regions import Reading, Regions, quads_of
from onestream.client.results import Classification, Detections, Embedding, Label, Outputs, Result, Segmentation
from onestream.wire.tensor_names import (
    BOXES,
    CLASS_IDS,
    EMBEDDING,
    IMAGE_SIZE,
    LABELS,
    LEFT_OUT,
    MASKS,
    QUADS,
    SCORES,
    TEXTS,
)


def result(model: str, tensors: Tensors, request_id: str, latency_ms: float) -> Result:
    """The result in the outputs of a pipeline of any kind, which the names of all its outputs tell.

    Raises UnexpectedResponse for outputs of a known kind that are not as they must be.
    """
    read = regions if holds_regions(tensors) else _READERS.get(frozenset(tensors), _outputs)
    return read(model, tensors, request_id, latency_ms)


def classification(model: str, tensors: Tensors, request_id: str, latency_ms: float) -> Classification:
    """The typed result in the outputs of a classification pipeline. Raises UnexpectedResponse for other outputs.

    A server without strings (TensorRT alone) sends no ``labels``; a class is then named by its id.
    """
    names = (SCORES, CLASS_IDS, LABELS) if LABELS in tensors else (SCORES, CLASS_IDS)
    shapes = [list(tensors[name].shape) for name in names if name in tensors]
    first = shapes[0] if len(shapes) == len(names) else []
    is_other = len(first) != 2 or first[0] != 1 or first[1] < 1 or any(shape != first for shape in shapes)
    if is_other or BOXES in tensors or QUADS in tensors:
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
    if any(shapes.get(name) != shape for name, shape in expected.items()) or LEFT_OUT in tensors:
        raise _unexpected(
            model,
            tensors,
            f"{BOXES} of shape [1, n, 4], {SCORES}, {CLASS_IDS} and {LABELS} of [1, n], and {IMAGE_SIZE} of [1, 2]; "
            "for any kind use predict",
        )
    boxes, image_size = _places(model, tensors, BOXES)
    scores, class_ids = _scores_and_ids(model, tensors)
    return Detections(
        boxes=boxes,
        scores=scores.astype(np.float32, copy=False),
        class_ids=class_ids.astype(np.int32, copy=False),
        labels=tuple(_texts(model, tensors[LABELS][0])),
        image_size=image_size,
        model=model,
        request_id=request_id,
        latency_ms=latency_ms,
    )


def holds_regions(tensors: Tensors) -> bool:
    """Whether these are the outputs of a cascade, or of a pipeline that finds quadrilaterals."""
    return IMAGE_SIZE in tensors and (QUADS in tensors or {BOXES, LEFT_OUT} <= tensors.keys())


def regions(model: str, tensors: Tensors, request_id: str, latency_ms: float) -> Regions:
    """The typed result in the outputs of a cascade, a ``Reading`` where its last stage reads text.

    Raises UnexpectedResponse for other outputs.
    """
    places = QUADS if QUADS in tensors else BOXES
    shapes = {name: list(array.shape) for name, array in tensors.items()}
    _, count, *_ = *shapes.get(places, []), 0, 0
    said = [name for name in tensors if name not in (places, IMAGE_SIZE, LEFT_OUT)]
    expected = {places: [1, count, 4, 2] if places == QUADS else [1, count, 4], IMAGE_SIZE: [1, 2]}
    if LEFT_OUT in tensors:
        expected[LEFT_OUT] = [1, 1]
    reads = TEXTS in tensors and SCORES in tensors
    if reads:
        expected |= {TEXTS: [1, count], SCORES: [1, count]}
    if any(shapes.get(name) != shape for name, shape in expected.items()) or any(
        shapes[name][:2] != [1, count] for name in said
    ):
        raise _unexpected(
            model,
            tensors,
            f"{QUADS} of shape [1, n, 4, 2] or {BOXES} of [1, n, 4], {IMAGE_SIZE} of [1, 2], {LEFT_OUT} of [1, 1], "
            f"{TEXTS} with {SCORES} of [1, n], and others of [1, n, …]; for any kind use predict",
        )
    found, image_size = _places(model, tensors, places)
    _check_near(model, places, found, image_size)
    left_out = tensors.get(LEFT_OUT, np.zeros((1, 1), np.int32))
    if left_out.dtype.kind not in "iu" or left_out[0, 0] < 0:
        raise UnexpectedResponse(
            f"model {model!r} answered {LEFT_OUT} {left_out.tolist()}, expected a whole number from 0 on"
        )
    return (Reading if reads else Regions)(
        quads=found if places == QUADS else quads_of(found),
        boxes=None if places == QUADS else found,
        tensors={name: _said(model, name, tensors[name][0]) for name in said},
        left_out=int(left_out[0, 0]),
        image_size=image_size,
        model=model,
        request_id=request_id,
        latency_ms=latency_ms,
    )


def reading(model: str, tensors: Tensors, request_id: str, latency_ms: float) -> Reading:
    """The typed result in the outputs of a pipeline that reads text. Raises UnexpectedResponse for other outputs."""
    found = regions(model, tensors, request_id, latency_ms)
    if not isinstance(found, Reading):
        raise _unexpected(
            model, tensors, f"{QUADS}, {TEXTS}, {SCORES}, {IMAGE_SIZE} and {LEFT_OUT}; for any kind use predict"
        )
    return found


def embedding(model: str, tensors: Tensors, request_id: str, latency_ms: float) -> Embedding:
    """The typed result in the outputs of an embedding pipeline. Raises UnexpectedResponse for other outputs."""
    vectors = tensors.get(EMBEDDING, np.empty(0))
    if vectors.ndim != 2 or vectors.shape[0] != 1 or not vectors.size:
        raise _unexpected(model, tensors, f"{EMBEDDING} of shape [1, values]; for any kind use predict")
    if vectors.dtype.kind != "f" or not np.isfinite(vectors).all():
        raise UnexpectedResponse(f"model {model!r} answered an embedding of {vectors.dtype}, expected finite floats")
    return Embedding(
        vector=vectors[0].astype(np.float32, copy=False), model=model, request_id=request_id, latency_ms=latency_ms
    )


def segmentation(model: str, tensors: Tensors, request_id: str, latency_ms: float) -> Segmentation:
    """The typed result in the outputs of a segmentation pipeline. Raises UnexpectedResponse for other outputs."""
    shapes = {name: list(array.shape) for name, array in tensors.items()}
    masks, classes = ((shapes.get(name) or [0])[-1] for name in (MASKS, CLASS_IDS))
    expected = {MASKS: [1, masks], CLASS_IDS: [1, classes], LABELS: [1, classes], IMAGE_SIZE: [1, 2]}
    if any(shapes.get(name) != shape for name, shape in expected.items()) or masks not in (1, classes) or not classes:
        raise _unexpected(
            model,
            tensors,
            f"{CLASS_IDS} and {LABELS} of shape [1, n], {MASKS} of [1, 1] or [1, n], and {IMAGE_SIZE} of [1, 2]; "
            "for any kind use predict",
        )
    class_ids, size = tensors[CLASS_IDS][0], tensors[IMAGE_SIZE][0]
    is_size = size.dtype.kind in "iu" and (size > 0).all() and (size <= _LONGEST_SIDE).all()
    if class_ids.dtype.kind not in "iu" or (class_ids < 0).any() or not is_size:
        raise UnexpectedResponse(
            f"model {model!r} answered class_ids of {class_ids.dtype} for a picture of {size.tolist()}, expected whole "
            f"numbers from 0 on, and a height and width of 1 to {_LONGEST_SIDE}"
        )
    height, width = int(size[0]), int(size[1])
    files = tuple(tensors[MASKS][0].tolist())
    # Length and name of the first chunk, then width, height, bits and kind of colour: https://www.w3.org/TR/png
    head = _PNG_SIGNATURE + struct.pack(">I4sIIBB", 13, b"IHDR", width, height, 8, 0)
    if tensors[MASKS].dtype != object or not all(file.startswith(head) for file in files):
        raise UnexpectedResponse(
            f"model {model!r} answered masks that are not all PNG files, 8-bit gray, of the picture's {width}x{height} "
            "pixels"
        )
    return Segmentation(
        masks=files,
        class_ids=tuple(class_ids.tolist()),
        labels=tuple(_texts(model, tensors[LABELS][0])),
        image_size=(height, width),
        model=model,
        request_id=request_id,
        latency_ms=latency_ms,
    )


def _outputs(model: str, tensors: Tensors, request_id: str, latency_ms: float) -> Outputs:
    return Outputs(tensors=tensors, model=model, request_id=request_id, latency_ms=latency_ms)


# A network that answers as it is may call some of its outputs so, too.
_READERS: dict[frozenset[str], Callable[[str, Tensors, str, float], Result]] = {
    frozenset({BOXES, SCORES, CLASS_IDS, LABELS, IMAGE_SIZE}): detections,
    frozenset({MASKS, CLASS_IDS, LABELS, IMAGE_SIZE}): segmentation,
    frozenset({EMBEDDING}): embedding,
    frozenset({SCORES, CLASS_IDS, LABELS}): classification,
    frozenset({SCORES, CLASS_IDS}): classification,
}

_LONGEST_SIDE = 2**31 - 1
"""Of a PNG file."""
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def _places(model: str, tensors: Tensors, name: str) -> tuple[npt.NDArray[np.float32], tuple[int, int]]:
    """Boxes or quads of one picture and its height and width, which are what they must be for every kind."""
    found, size = tensors[name][0], tensors[IMAGE_SIZE][0]
    if found.dtype.kind != "f" or not np.isfinite(found).all() or size.dtype.kind not in "iu" or (size < 1).any():
        raise UnexpectedResponse(
            f"model {model!r} answered {name} of {found.dtype} for a picture of {size.tolist()}, expected finite "
            "floats and a height and width from 1 on"
        )
    return found.astype(np.float32, copy=False), (int(size[0]), int(size[1]))


def _check_near(model: str, name: str, found: npt.NDArray[np.float32], image_size: tuple[int, int]) -> None:
    """Refuse corners further from the picture than its longer side: turned regions reach out of it, but not so far."""
    height, width = image_size
    far = max(height, width)
    corners = found.reshape(-1, 2)
    outside = ((corners < -far) | (corners > (width + far, height + far))).any(axis=1)
    if outside.any():
        raise UnexpectedResponse(
            f"model {model!r} answered {name} with a corner at {corners[outside][0].tolist()} for a picture of "
            f"{width}x{height} pixels, expected no corner further from it than its longer side"
        )


def _said(model: str, name: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """What a stage said of each region, with labels and texts as ``str``."""

    def holds(kind: str) -> bool:
        return name == kind or name.endswith(f"_{kind}")

    if holds(LABELS) or holds(TEXTS):
        texts = np.empty(values.size, object)
        texts[:] = _texts(model, values.ravel(), name)
        return texts.reshape(values.shape)
    if holds(SCORES):
        if values.dtype.kind != "f" or not np.isfinite(values).all():
            raise UnexpectedResponse(f"model {model!r} answered {name} of {values.dtype}, expected finite floats")
        return values.astype(np.float32, copy=False)
    if holds(CLASS_IDS) and (values.dtype.kind not in "iu" or (values < 0).any()):
        raise UnexpectedResponse(f"model {model!r} answered {name} of {values.dtype}, expected whole numbers from 0 on")
    return values


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


def _texts(model: str, texts: npt.NDArray[Any], name: str = LABELS) -> Sequence[str]:
    if texts.dtype != object:
        raise UnexpectedResponse(f"model {model!r} answered {name} of {texts.dtype}, expected strings")
    try:
        return [str(text, "utf-8") for text in texts]
    except UnicodeDecodeError as error:
        raise UnexpectedResponse(f"model {model!r} answered {name} that are no UTF-8: {error}") from None


def _unexpected(model: str, tensors: Tensors, expected: str) -> UnexpectedResponse:
    seen = {name: list(array.shape) for name, array in tensors.items()}
    return UnexpectedResponse(f"model {model!r} answered {seen or 'nothing'}, expected {expected}")
