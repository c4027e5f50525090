"""Output tensors as they come over the wire."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from onestream.client import UnexpectedResponse
from onestream.client._transports.tensors import decode_tensor

DATATYPES = {
    "BOOL": "?",
    "UINT8": "u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "INT8": "i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
}


@given(
    st.sampled_from(sorted(DATATYPES)).flatmap(
        lambda name: st.tuples(
            st.just(name), arrays(DATATYPES[name], array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
        )
    )
)
def test_numbers(named: tuple[str, npt.NDArray[Any]]) -> None:
    datatype, array = named
    decoded = decode_tensor("out", datatype, array.shape, array.tobytes())
    assert decoded.dtype == array.dtype
    assert decoded.shape == array.shape
    assert decoded.tobytes() == array.tobytes()


@given(st.lists(st.binary(max_size=9), max_size=6))
def test_strings(strings: list[bytes]) -> None:
    data = b"".join(len(string).to_bytes(4, "little") + string for string in strings)
    decoded = decode_tensor("out", "BYTES", [1, len(strings)], data)
    assert decoded.shape == (1, len(strings))
    assert list(decoded[0]) == strings


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "words"),
    [
        ("FP32", [1, 2], bytes(4), r"4 bytes, FP32 \[1, 2\] needs 8"),
        ("UINT8", [1], bytes(2), r"2 bytes, UINT8 \[1\] needs 1"),
        ("BYTES", [1, 2], b"\1\0\0\0a", r"1 strings, shape \[1, 2\] needs 2"),
        ("BYTES", [1], b"\5\0\0\0abcd", "ends behind the 8 bytes"),
        ("BYTES", [1], b"\5\0", "ends behind the 2 bytes"),
        ("BF16", [1], bytes(2), "'BF16', can read BOOL"),
    ],
)
def test_what_does_not_fit_is_refused(datatype: str, shape: list[int], data: bytes, words: str) -> None:
    with pytest.raises(UnexpectedResponse, match=f"output 'out'.*{words}"):
        decode_tensor("out", datatype, shape, data)
