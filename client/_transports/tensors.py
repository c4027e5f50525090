"""Tensors in the binary form of the inference protocol."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.client import fields
from onestream.client._transports.base import InferRequest, RegionSlice, Tensors
from onestream.client.errors import UnexpectedResponse, UnsupportedInput
from onestream.wire.tensor_names import IMAGE

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
_MOST_DIMENSIONS = 32
"""What NumPy 1 allows."""
MAX_STRINGS = 1 << 17
"""Strings in one tensor. As a Python object a string of two bytes takes ten times as much memory as on the wire."""


def byte_size(datatype: str, count: int) -> int | None:
    """The bytes that so many elements take; None for BYTES, whose elements may have any length."""
    return count * np.dtype(_DTYPES[datatype]).itemsize if datatype in _DTYPES else None


def dtype_of(datatype: str) -> np.dtype[Any] | None:
    """The NumPy type of a datatype; None for one whose elements are no numbers."""
    return np.dtype(_DTYPES[datatype]) if datatype in _DTYPES else None


Input = tuple[str, str, Sequence[int], "bytes | RegionSlice"]
"""Name, datatype, shape, and the data or where they lie."""


def inputs_of(request: InferRequest) -> list[Input]:
    """All inputs of a request. Raises UnsupportedInput for an array that no tensor can hold."""
    arrays = [_encoded(name, np.asarray(array)) for name, array in request.arrays.items()]
    image = request.image
    if image is None:
        return arrays
    return [(IMAGE, "UINT8", (1, image.byte_size if isinstance(image, RegionSlice) else len(image)), image), *arrays]


def _encoded(name: str, array: npt.NDArray[Any]) -> Input:
    if array.dtype == np.object_ and all(isinstance(one, bytes) for one in array.flat):
        return name, "BYTES", array.shape, b"".join(len(one).to_bytes(4, "little") + one for one in array.flat)
    for datatype, dtype in _DTYPES.items():
        if array.dtype.newbyteorder("=") == dtype:
            return name, datatype, array.shape, array.astype(np.dtype(dtype).newbyteorder("<"), copy=False).tobytes()
    raise UnsupportedInput(f"input {name!r} is of {array.dtype}, expected numbers of 8 to 64 bits, bool or bytes")


def decode_tensors(outputs: Iterable[tuple[str, str, Sequence[object], bytes | memoryview]]) -> Tensors:
    """Arrays by name, from each output's name, datatype, shape and data. Raises UnexpectedResponse."""
    tensors: Tensors = {}
    for name, datatype, shape, data in outputs:
        if name in tensors:
            raise UnexpectedResponse(f"output {name!r} came twice")
        tensors[name] = decode_tensor(name, datatype, shape, data)
    return tensors


def decode_tensor(name: str, datatype: str, shape: Sequence[object], data: bytes | memoryview) -> npt.NDArray[Any]:
    """The array in ``data``; BYTES become an object array of ``bytes``.

    Raises UnexpectedResponse when ``data`` does not hold exactly ``shape`` elements of ``datatype``.
    """
    if len(shape) > _MOST_DIMENSIONS:
        raise UnexpectedResponse(f"output {name!r}: {len(shape)} dimensions, can read {_MOST_DIMENSIONS}")
    sizes = [fields.whole(size, f"the shape of output {name!r}") for size in shape]
    expected = prod(sizes)
    if datatype == "BYTES":
        flat = _strings(name, sizes, memoryview(data))
    elif datatype not in _DTYPES:
        raise UnexpectedResponse(f"output {name!r}: data type {datatype!r:.80}, can read {', '.join(_DTYPES)}, BYTES")
    else:
        dtype = np.dtype(_DTYPES[datatype]).newbyteorder("<")
        if len(data) != expected * dtype.itemsize:
            raise UnexpectedResponse(
                f"output {name!r}: {len(data)} bytes, {datatype} {sizes} needs {expected * dtype.itemsize}"
            )
        flat = np.frombuffer(data, dtype=dtype)
        if datatype == "BOOL" and np.frombuffer(data, dtype=np.uint8).max(initial=0) > 1:
            raise UnexpectedResponse(f"output {name!r}: a BOOL that is neither 0 nor 1")
    try:
        return flat.reshape(sizes)
    except (ValueError, OverflowError):
        # Without an element, sizes may be such that no array can have them.
        raise UnexpectedResponse(f"output {name!r}: the shape {sizes} is too large") from None


def _strings(name: str, shape: Sequence[int], data: memoryview) -> npt.NDArray[Any]:
    """Strings written one after the other, each behind its length in four little-endian bytes."""
    expected = prod(shape)
    if expected > MAX_STRINGS:
        raise UnexpectedResponse(f"output {name!r}: {expected} strings, can read {MAX_STRINGS}")
    strings: list[bytes] = []
    at = 0
    while at < len(data) and len(strings) <= expected:
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        if at + 4 > len(data) or end > len(data):
            raise UnexpectedResponse(f"output {name!r}: a string ends behind the {len(data)} bytes received")
        strings.append(bytes(data[at + 4 : end]))
        at = end
    if len(strings) != expected:
        seen = len(strings) if at == len(data) else f"more than {expected}"
        raise UnexpectedResponse(f"output {name!r}: {seen} strings, shape {list(shape)} needs {expected}")
    array = np.empty(expected, dtype=object)
    array[:] = strings
    return array
