"""The table of a run: which columns it has, and what a row puts into them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onestream.cli.bulk.rows import Row
from onestream.client import Classification, Result
from onestream.client.kinds.base import Schema

Record = tuple[Any, ...]

_NO_CLASSES = Classification((), model="", request_id="", latency_ms=0.0)
"""Stands for the results of a run of which every image failed."""


@dataclass(frozen=True, slots=True)
class Table:
    """Records of images with the columns of an answer: one for each image, or where ``is_flat`` for each find."""

    answer_columns: Schema
    is_flat: bool

    @classmethod
    def of(cls, like: Result | None, top: int, *, is_flat: bool) -> Table:
        """A table for results ``like`` this; None stands for classes. ``is_flat``: with plain cells."""
        return cls((_NO_CLASSES if like is None else like).schema(top=top, is_flat=is_flat), is_flat)

    @property
    def columns(self) -> Schema:
        """All columns; those of an answer stand between the image's name and what befell it."""
        return {"path": str, "key": str, **self.answer_columns, "latency_ms": float, "error": str, "reason": str}

    def records(self, row: Row) -> Sequence[Record]:
        """The records of one image, one at least, with a value for each of ``columns``."""
        result = row.result
        found = [{}] if result is None else result.records(is_flat=self.is_flat)
        latency_ms = None if result is None else result.latency_ms
        return [
            (
                row.path,
                row.key or None,
                *(record.get(name) for name in self.answer_columns),
                latency_ms,
                row.error,
                row.reason,
            )
            for record in found
        ]
