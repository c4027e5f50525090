"""Tables of results, by their kind: which columns they have, and what a row of a run puts into them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from onestream.cli.bulk.rows import Answer, Row
from onestream.client import Classification, Detections

Column = tuple[str, Any]
"""A name, and the type of its cells: ``str``, ``int``, ``float``, or ``list`` of one of these or of a list."""

Record = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """``cells`` makes of a result one tuple or more, each with a value for every one of its ``columns``."""

    answer_columns: Sequence[Column]
    cells: Callable[[Any], Sequence[Record]]

    @property
    def columns(self) -> list[Column]:
        """All columns; those of an answer stand between the image's name and what befell it."""
        names: list[Column] = [("path", str), ("key", str)]
        return [*names, *self.answer_columns, ("latency_ms", float), ("error", str), ("reason", str)]

    def records(self, row: Row) -> list[Record]:
        """The records of one image, one at least, with a value for each of ``columns``."""
        name = (row.path, row.key or None)
        if row.result is None:
            return [(*name, *(None for _ in self.answer_columns), None, row.error, row.reason)]
        return [(*name, *cells, row.result.latency_ms, None, None) for cells in self.cells(row.result)]


def one_for_each_image(kind: type[Answer], top: int) -> Table:
    """A table with one record for each image; classes have columns of their own, objects are lists."""
    if kind is Classification:
        return _classes(top)
    columns: list[Column] = [
        ("boxes", list[list[float]]),
        ("scores", list[float]),
        ("class_ids", list[int]),
        ("labels", list[str]),
        ("image_size", list[int]),
    ]

    def cells(result: Detections) -> list[Record]:
        fields = result.to_dict()
        return [tuple(fields[name] for name, _ in columns)]

    return Table(columns, cells)


def one_for_each_find(kind: type[Answer], top: int) -> Table:
    """A table with plain cells only: one record for each object, or an image's classes side by side.

    An image without objects has one record, without a label.
    """
    if kind is Classification:
        return _classes(top)
    corners: list[Column] = [(name, float) for name in ("x0", "y0", "x1", "y1")]
    sizes: list[Column] = [("image_height", int), ("image_width", int)]

    def cells(result: Detections) -> list[Record]:
        found = [(one.label, one.class_id, one.score, *one.box, *result.image_size) for one in result]
        return found or [(*(None,) * 7, *result.image_size)]

    return Table([("label", str), ("class_id", int), ("score", float), *corners, *sizes], cells)


def _classes(top: int) -> Table:
    """Of the second class on with its rank, as ``label_2``."""
    columns = [
        (name + ("" if rank == 1 else f"_{rank}"), kind)
        for rank in range(1, top + 1)
        for name, kind in (("label", str), ("class_id", int), ("score", float))
    ]

    def cells(result: Classification) -> list[Record]:
        found = [value for one in result.labels for value in (one.label, one.class_id, one.score)]
        return [(*found, *(None,) * (len(columns) - len(found)))]

    return Table(columns, cells)
