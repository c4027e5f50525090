"""Tables of results, by their kind: which columns they have, and what a row of a run puts into them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.cli.bulk.rows import Answer, Row
from onestream.client import Classification, Detections, Embedding, Outputs, Regions
from onestream.client.plain_values import plain
from onestream.wire.tensor_names import (
    BOXES,
    CLASS_IDS,
    EMBEDDING,
    IMAGE_SIZE,
    LABELS,
    LEFT_OUT,
    QUADS,
    SCORES,
    TEXTS,
)

Column = tuple[str, Any]
"""A name, and the type of its cells: a plain type, a ``list`` of a type, or a ``tuple`` of one."""

_Point = tuple[float, float]
_Box = tuple[float, float, float, float]
_Quad = tuple[_Point, _Point, _Point, _Point]
_ONE_OF = {TEXTS: "text", LABELS: "label", CLASS_IDS: "class_id", SCORES: "score"}
"""What one value of these tensors is called."""

_OF_ROWS = ("path", "key", "latency_ms", "error", "reason")
"""Columns of every table, whose names a tensor may have, too."""

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


def one_for_each_image(like: Answer | None, top: int) -> Table:
    """A table for results ``like`` this: one record for each image; classes have columns of their own, others lists.

    None stands for classes.
    """
    if like is None or isinstance(like, Classification):
        return _classes(top)
    if isinstance(like, Embedding):
        return Table([(EMBEDDING, list[float])], lambda result: [(result.vector.tolist(),)])
    if isinstance(like, Outputs):
        return _tensors(like)
    if isinstance(like, Regions):
        return _regions(like)
    columns: list[Column] = [
        ("boxes", list[_Box]),
        ("scores", list[float]),
        ("class_ids", list[int]),
        ("labels", list[str]),
        ("image_size", list[int]),
    ]

    def cells(result: Detections) -> list[Record]:
        fields = result.to_dict()
        return [tuple(fields[name] for name, _ in columns)]

    return Table(columns, cells)


def one_for_each_find(like: Answer | None, top: int) -> Table:
    """As ``one_for_each_image`` with plain cells: one record for each object or text, or classes side by side.

    An image without objects or text has one record, without a label.
    """
    if like is None or isinstance(like, Classification):
        return _classes(top)
    if isinstance(like, Embedding | Outputs):
        return _as_json(one_for_each_image(like, top))
    if isinstance(like, Regions):
        return _each_region(like)
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


def _tensors(like: Outputs) -> Table:
    """One record for each image: its tensors without the batch dimension, by their names."""
    names = sorted(like.tensors)
    columns = [(f"tensor_{name}" if name in _OF_ROWS else name, _type_of(like.tensors[name][0])) for name in names]
    return Table(columns, lambda result: [tuple(plain(np.asarray(result.tensors[name][0])) for name in names)])


def _as_json(table: Table) -> Table:
    """The same with lists as JSON, for plain cells."""

    def cells(result: Any) -> list[Record]:
        return [tuple(_cell(value, is_best=False) for value in record) for record in table.cells(result)]

    return Table([(name, Any) for name, _ in table.answer_columns], cells)


def _regions(like: Regions) -> Table:
    """One record for each image: the fields of the answer, what a stage said of each region in a list."""
    places: Column = (QUADS, list[_Quad]) if like.boxes is None else (BOXES, list[_Box])
    said = [(name, _type_of(array)) for name, array in like.tensors.items()]
    columns = [places, *said, (IMAGE_SIZE, list[int]), (LEFT_OUT, int)]

    def cells(result: Regions) -> list[Record]:
        fields = result.to_dict()
        return [tuple(fields.get(name) for name, _ in columns)]

    return Table(columns, cells)


def _each_region(like: Regions) -> Table:
    """One record for each region: one value of everything that the stages said of it, and its corners.

    Of classes that is the best; other lists, such as vectors, are written as JSON.
    """
    of_boxes = like.boxes is not None
    names = {name: _name_of_one(name) for name in like.tensors}
    said: list[Column] = [(one, Any) for one in names.values()]
    corners: list[Column] = [(f"{axis}{number}", float) for number in range(2 if of_boxes else 4) for axis in "xy"]
    sizes: list[Column] = [("image_height", int), ("image_width", int), (LEFT_OUT, int)]

    def cells(result: Regions) -> list[Record]:
        whole = (*result.image_size, result.left_out)
        found = []
        for one in result:
            values = [_cell(one.values.get(name), is_best=singular != name) for name, singular in names.items()]
            corner = [side for point in one.quad[:: 2 if of_boxes else 1] for side in point]
            found.append((*values, *corner, *whole))
        return found or [(*(None,) * (len(said) + len(corners)), *whole)]

    return Table([*said, *corners, *sizes], cells)


def _type_of(array: npt.NDArray[Any]) -> Any:
    """The type of a tensor's cell in a record for each image: lists as deep as it has dimensions."""
    kind: Any = {"O": str, "i": int, "u": int, "b": bool}.get(array.dtype.kind, float)
    for _ in array.shape:
        kind = list[kind]
    return kind


def _name_of_one(tensor: str) -> str:
    """What one value of a tensor is called: *detect_label* of *detect_labels*."""
    for several, one in _ONE_OF.items():
        if tensor == several or tensor.endswith(f"_{several}"):
            return tensor.removesuffix(several) + one
    return tensor


def _cell(value: Any, *, is_best: bool) -> Any:
    while is_best and isinstance(value, list):
        value = value[0] if value else None
    return json.dumps(value) if isinstance(value, list) else value
