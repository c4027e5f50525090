"""The result of one image, and its line of JSON."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from onestream.cli.messages import without_name
from onestream.cli.result_lines import best
from onestream.client import (
    BadImage,
    Classification,
    Detections,
    Embedding,
    Label,
    OnestreamError,
    Outputs,
    Reading,
    Regions,
)
from onestream.client.regions import quads_of
from onestream.wire.tensor_names import BOXES, EMBEDDING, IMAGE_SIZE, LEFT_OUT, QUADS, TEXTS

Answer = Classification | Detections | Embedding | Outputs | Regions
"""The results that have a place in a table."""

_OF_A_REQUEST = ("model", "request_id", "latency_ms")
"""Fields of a result that say nothing of the image."""
_TENSORS = "tensors"
_NO_TENSORS = ("path", "key", QUADS, BOXES, IMAGE_SIZE, LEFT_OUT, "latency_ms")
"""Fields of a row with regions that are not what a stage said of each."""


@dataclass(frozen=True, slots=True)
class Row:
    """The classes of an image, the objects or the text in it, its vector or tensors, or ``error`` and ``reason``.

    ``path`` and ``key`` are as of its Sample. Of ``result`` only what was found and ``latency_ms`` are kept.
    """

    path: str
    key: str
    result: Answer | None = None
    error: str | None = None
    reason: str | None = None

    @classmethod
    def of(cls, path: str, key: str, said: Answer | OnestreamError, top: int) -> Row:
        """The row of an image, whatever became of it."""
        return (
            cls.of_error(path, key, said) if isinstance(said, OnestreamError) else cls.of_result(path, key, said, top)
        )

    @classmethod
    def of_result(cls, path: str, key: str, result: Answer, top: int) -> Row:
        """The row of an image that went well, with its ``top`` best classes, all objects or all text."""
        return cls(path, key, dataclasses.replace(best(result, top), latency_ms=round(result.latency_ms, 3)))

    @classmethod
    def of_error(cls, path: str, key: str, error: OnestreamError) -> Row:
        """The row of an image that failed; ``error`` is the code of a bad image, else the kind, as ``timed_out``."""
        if isinstance(error, BadImage):
            return cls(path, key, error=error.code, reason=error.reason)
        kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).lower()
        return cls(path, key, error=kind, reason=without_name(error))

    def to_dict(self) -> dict[str, Any]:
        """Plain values; nothing is named that is not there."""
        fields: dict[str, Any] = {"path": self.path} | ({"key": self.key} if self.key else {})
        if self.result is None:
            return fields | {"error": self.error, "reason": self.reason}
        return fields | _plain(self.result) | {"latency_ms": self.result.latency_ms}

    def to_json(self) -> str:
        """One line, without its end."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, line: str | bytes) -> Row:
        """The row in a line. Raises ValueError where it holds none."""
        try:
            fields = json.loads(line)
            path, key = fields["path"], fields.get("key", "")
            if "error" in fields:
                return cls(path, key, error=fields["error"], reason=fields["reason"])
            return cls(path, key, _result(fields))
        except (TypeError, AttributeError, LookupError) as error:
            raise ValueError(f"{line[:80]!r} is no row: {error}") from None


def _plain(result: Answer) -> dict[str, Any]:
    if isinstance(result, Classification):
        return {"labels": [label.to_dict() for label in result.labels]}
    return {name: value for name, value in result.to_dict().items() if name not in _OF_A_REQUEST}


def _result(fields: dict[str, Any]) -> Answer:
    """The result whose ``_plain`` these fields hold."""
    latency_ms = fields["latency_ms"]
    if LEFT_OUT in fields:
        return _regions(fields)
    if EMBEDDING in fields:
        vector = np.array(fields[EMBEDDING], np.float32)
        return Embedding(vector, model="", request_id="", latency_ms=latency_ms)
    if _TENSORS in fields:
        tensors = {name: _array(value) for name, value in fields[_TENSORS].items()}
        return Outputs(tensors, model="", request_id="", latency_ms=latency_ms)
    if "boxes" not in fields:
        labels = tuple(Label(**label) for label in fields["labels"])
        return Classification(labels, model="", request_id="", latency_ms=latency_ms)
    height, width = fields["image_size"]
    return Detections(
        boxes=np.array(fields["boxes"], np.float32).reshape(-1, 4),
        scores=np.array(fields["scores"], np.float32),
        class_ids=np.array(fields["class_ids"], np.int32),
        labels=tuple(fields["labels"]),
        image_size=(height, width),
        model="",
        request_id="",
        latency_ms=latency_ms,
    )


def _regions(fields: dict[str, Any]) -> Regions:
    boxes = np.array(fields[BOXES], np.float32).reshape(-1, 4) if BOXES in fields else None
    height, width = fields[IMAGE_SIZE]
    return (Reading if TEXTS in fields else Regions)(
        quads=np.array(fields[QUADS], np.float32).reshape(-1, 4, 2) if boxes is None else quads_of(boxes),
        tensors={name: _array(value) for name, value in fields.items() if name not in _NO_TENSORS},
        left_out=fields[LEFT_OUT],
        image_size=(height, width),
        model="",
        request_id="",
        latency_ms=fields["latency_ms"],
        boxes=boxes,
    )


def _array(value: list[Any]) -> np.ndarray[Any, Any]:
    """What ``plain_values.plain`` made of an array, as one again."""
    array = np.array(value, object)
    kinds = {type(one) for one in array.flat}
    return array if str in kinds else array.astype(np.int64 if kinds <= {bool, int} else np.float64)
