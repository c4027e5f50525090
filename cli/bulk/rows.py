"""The result of one image, as a line of JSON and as a row of a table."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from onestream.cli.messages import without_name
from onestream.client import BadImage, Classification, Label, OnestreamError


@dataclass(frozen=True, slots=True)
class Row:
    """The classes of an image, best first, or ``error`` and ``reason``; ``path`` and ``key`` as of its Sample."""

    path: str
    key: str
    labels: tuple[Label, ...] = ()
    latency_ms: float | None = None
    error: str | None = None
    reason: str | None = None

    @classmethod
    def of_result(cls, path: str, key: str, result: Classification, top: int) -> Row:
        """The row of an image that went well, with its ``top`` best labels."""
        return cls(path, key, labels=result.labels[:top], latency_ms=round(result.latency_ms, 3))

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
        if self.error is not None:
            return fields | {"error": self.error, "reason": self.reason}
        return fields | {"labels": [label.to_dict() for label in self.labels], "latency_ms": self.latency_ms}

    def to_json(self) -> str:
        """One line, without its end."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, line: str | bytes) -> Row:
        """The row in a line. Raises ValueError where it holds none."""
        try:
            fields = json.loads(line)
            labels = tuple(Label(**label) for label in fields.pop("labels", ()))
            return cls(**{"key": "", **fields}, labels=labels)
        except (TypeError, AttributeError) as error:
            raise ValueError(f"{line[:80]!r} is no row: {error}") from None

    def cells(self, top: int) -> tuple[str | float | int | None, ...]:
        """One value for each of ``columns(top)``."""
        labels = [*self.labels, *[None] * (top - len(self.labels))]
        ranked = [
            value
            for label in labels
            for value in ((label.label, label.class_id, label.score) if label else (None, None, None))
        ]
        return (self.path, self.key or None, *ranked, self.latency_ms, self.error, self.reason)


def columns(top: int) -> list[tuple[str, type]]:
    """Names and types of a table's columns; of the second label on with its rank, as ``label_2``."""
    ranked = [
        (name + ("" if rank == 1 else f"_{rank}"), kind)
        for rank in range(1, top + 1)
        for name, kind in (("label", str), ("class_id", int), ("score", float))
    ]
    return [("path", str), ("key", str), *ranked, ("latency_ms", float), ("error", str), ("reason", str)]
