"""Output tensors as they are written in the binary form of the inference protocol."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from client.errors import UnexpectedResponse

_DTYPES = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}


def decode_tensor(name: str, datatype: str, shape: Sequence[int], data: bytes | memoryview) -> npt.NDArray[Any]:
    """The array in ``data``; BYTES become an object array of ``bytes``.

    Raises UnexpectedResponse when ``data`` does not hold exactly ``shape`` elements of ``datatype``.
    """
    expected = prod(shape)
    if datatype == "BYTES":
        strings = _split_strings(name, memoryview(data))
        if len(strings) != expected:
            raise UnexpectedResponse(f"output {name!r}: {len(strings)} strings, shape {list(shape)} needs {expected}")
        array = np.empty(expected, dtype=object)
        array[:] = strings
        return array.reshape(shape)
    if datatype not in _DTYPES:
        raise UnexpectedResponse(f"output {name!r}: data type {datatype!r}, can read {', '.join(_DTYPES)}, BYTES")
    dtype = np.dtype(_DTYPES[datatype]).newbyteorder("<")
    if len(data) != expected * dtype.itemsize:
        raise UnexpectedResponse(
            f"output {name!r}: {len(data)} bytes, {datatype} {list(shape)} needs {expected * dtype.itemsize}"
        )
    return np.frombuffer(data, dtype=dtype).reshape(shape)


def _split_strings(name: str, data: memoryview) -> list[bytes]:
    """Strings written one after the other, each behind its length in four little-endian bytes."""
    strings: list[bytes] = []
    at = 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        if at + 4 > len(data) or end > len(data):
            raise UnexpectedResponse(f"output {name!r}: a string ends behind the {len(data)} bytes received")
        strings.append(bytes(data[at + 4 : end]))
        at = end
    return strings
