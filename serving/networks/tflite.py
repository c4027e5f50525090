"""Reads TensorFlow Lite files: operators, their options and constants. Only what converting a network takes.

A file is a FlatBuffer (https://flatbuffers.dev/internals): a table begins with the signed distance back to its vtable,
which holds the size of itself, of the table, and each field's place in the table or 0 where the field is left out. The
numbers of fields and the codes are those of TensorFlow's ``lite/schema/schema.fbs``, version 3.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.serving.errors import ServingError

_IDENTIFIER = b"TFL3"
_DTYPES: dict[int, type[np.generic]] = {0: np.float32, 1: np.float16, 2: np.int32}
_CUSTOM = 32
_OPERATORS = {
    0: "ADD",
    1: "AVERAGE_POOL_2D",
    3: "CONV_2D",
    4: "DEPTHWISE_CONV_2D",
    6: "DEQUANTIZE",
    14: "LOGISTIC",
    18: "MUL",
    19: "RELU",
    23: "RESIZE_BILINEAR",
    117: "HARD_SWISH",
}


class BadTflite(ServingError):
    """A file is not TensorFlow Lite's, or holds what cannot be read here."""


@dataclass(frozen=True, slots=True)
class TfliteTensor:
    """``shape`` as the file states it; ``values`` of a constant, else None."""

    shape: tuple[int, ...]
    values: npt.NDArray[Any] | None


@dataclass(frozen=True, slots=True)
class TfliteOperator:
    """``kind`` is the schema's name, or the name of a custom operator; the tensors are numbers, -1 where left out."""

    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Table | None
    custom_options: bytes


@dataclass(frozen=True, slots=True)
class TfliteNetwork:
    """The first subgraph of a file, its operators in the order of execution."""

    tensors: tuple[TfliteTensor, ...]
    operators: tuple[TfliteOperator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a FlatBuffer; fields are asked for by number, and a field that was left out has its default."""

    data: bytes
    at: int

    def integer(self, field: int, default: int = 0, *, format: str = "<i") -> int:
        """A scalar; ``format`` is that of ``struct``."""
        place = self._place(field)
        return default if place is None else int(_unpack(format, self.data, place))

    def table(self, field: int) -> Table | None:
        """A table, or None where it was left out."""
        place = self._place(field)
        return None if place is None else Table(self.data, place + _unpack("<I", self.data, place))

    def tables(self, field: int) -> list[Table]:
        """A vector of tables."""
        start, count = self._vector(field)
        return [Table(self.data, at + _unpack("<I", self.data, at)) for at in range(start, start + 4 * count, 4)]

    def integers(self, field: int) -> tuple[int, ...]:
        """A vector of 32-bit integers."""
        start, count = self._vector(field)
        return struct.unpack(f"<{count}i", self.part(start, 4 * count))

    def content(self, field: int) -> bytes:
        """A vector of bytes, or a string."""
        return self.part(*self._vector(field))

    def part(self, start: int, count: int) -> bytes:
        """A part of the file. Raises ``BadTflite`` where it reaches past the end."""
        if start + count > len(self.data):
            raise BadTflite(f"the file ends at byte {len(self.data)}, inside a vector that ends at {start + count}")
        return self.data[start : start + count]

    def _place(self, field: int) -> int | None:
        vtable = self.at - _unpack("<i", self.data, self.at)
        slot = 4 + 2 * field
        if slot >= _unpack("<H", self.data, vtable):
            return None
        offset = _unpack("<H", self.data, vtable + slot)
        return self.at + offset if offset else None

    def _vector(self, field: int) -> tuple[int, int]:
        place = self._place(field)
        if place is None:
            return 0, 0
        start = place + _unpack("<I", self.data, place)
        return start + 4, _unpack("<I", self.data, start)


def read_tflite(data: bytes) -> TfliteNetwork:
    """Read the content of a file. Raises ``BadTflite`` saying what was seen."""
    if data[4:8] != _IDENTIFIER:
        raise BadTflite(f"not a TensorFlow Lite file: bytes 4 to 8 are {data[4:8]!r}, expected {_IDENTIFIER!r}")
    model = Table(data, _unpack("<I", data, 0))
    subgraphs = model.tables(2)
    if not subgraphs:
        raise BadTflite("the file holds no network")
    graph, buffers = subgraphs[0], [buffer.content(0) for buffer in model.tables(4)]
    kinds = [_kind(code) for code in model.tables(1)]
    operators = tuple(
        TfliteOperator(_item(kinds, op.integer(0)), op.integers(1), op.integers(2), op.table(4), op.content(5))
        for op in graph.tables(3)
    )
    tensors = tuple(_tensor(tensor, buffers) for tensor in graph.tables(0))
    return TfliteNetwork(tensors, operators, graph.integers(1), graph.integers(2))


def _kind(code: Table) -> str:
    # Codes above 127 do not fit the older field, whose value is then 127.
    number = max(code.integer(0, format="<b"), code.integer(3))
    if number == _CUSTOM:
        return code.content(1).decode(errors="replace")
    if number not in _OPERATORS:
        raise BadTflite(f"operator {number} is not supported; supported are {', '.join(_OPERATORS.values())}")
    return _OPERATORS[number]


def _tensor(tensor: Table, buffers: list[bytes]) -> TfliteTensor:
    shape, content = tensor.integers(0), _item(buffers, tensor.integer(2))
    if not content:
        return TfliteTensor(shape, None)
    dtype = _DTYPES.get(tensor.integer(1, format="<b"))
    if dtype is None:
        raise BadTflite(f"a constant has type {tensor.integer(1, format='<b')}; read are float32, float16 and int32")
    stored = np.dtype(dtype).newbyteorder("<")
    if min(shape, default=1) < 1 or len(content) != math.prod(shape) * stored.itemsize:
        raise BadTflite(f"a constant of shape {list(shape)} has {len(content)} bytes")
    return TfliteTensor(shape, np.frombuffer(content, stored).reshape(shape).astype(dtype))


def _item(values: list[Any], index: int) -> Any:
    if not 0 <= index < len(values):
        raise BadTflite(f"a reference to entry {index} of {len(values)}")
    return values[index]


def _unpack(format: str, data: bytes, at: int) -> Any:
    try:
        return struct.unpack_from(format, data, at)[0]
    except struct.error:
        raise BadTflite(f"the file ends at byte {len(data)}, before an entry at {at}") from None
