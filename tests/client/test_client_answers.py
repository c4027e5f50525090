"""How much of an answer is taken, and its tensors as they come over the wire."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from tritonclient.grpc import service_pb2 as messages

from onestream.client import OnestreamError, UnexpectedResponse
from onestream.client._transports import grpc_calls, http_calls
from onestream.client._transports.base import InferRequest, RequestMetadata
from onestream.client._transports.tensors import decode_tensor
from onestream.client.calls import limits_of
from onestream.client.fields import MAX_DOCUMENT_BYTES

MOST = 1000
REQUEST = InferRequest("m", RequestMetadata("id"), b"image", max_answer_bytes=MOST)
BY_GRPC, BY_HTTP = grpc_calls.infer(REQUEST, timeout_s=1), http_calls.infer(REQUEST, timeout_s=1)


def output(*dims: Any, data_type: str = "TYPE_FP32") -> dict[str, Any]:
    return {"name": "x", "data_type": data_type, "dims": list(dims)}


@pytest.mark.parametrize(
    ("outputs", "allowed"),
    [
        ([output(5)], 20),
        ([output("5")], 20),
        ([output(2, 3, data_type="TYPE_UINT8"), output(4)], 22),
        ([output(1000)], MOST),
        ([output(-1)], MOST),
        ([output("-1", 5)], MOST),
        ([output(5), output(5, data_type="TYPE_STRING")], MOST),
        ([], MOST),
    ],
)
def test_an_answer_may_be_as_large_as_the_outputs_that_its_model_declares(
    outputs: list[dict[str, Any]], allowed: int
) -> None:
    assert limits_of({"output": outputs}, max_answer_bytes=MOST).answer_bytes == allowed


@pytest.mark.parametrize(
    "config",
    [
        {"output": 5},
        {"output": [output(-5)]},
        {"parameters": []},
        # More digits than a number has.
        {"parameters": {"timeout_s": {"string_value": "9" * 100}}},
    ],
)
def test_what_is_no_configuration(config: Mapping[str, Any]) -> None:
    with pytest.raises(UnexpectedResponse):
        limits_of(config, max_answer_bytes=MOST)


def test_an_answer_of_an_inference_is_bounded() -> None:
    """One byte more than allowed is refused before it is looked at; its tensors may be larger than a document."""
    most = MOST + MAX_DOCUMENT_BYTES
    assert BY_HTTP.allowed_bytes(200) == most
    assert BY_HTTP.allowed_bytes(500) == MAX_DOCUMENT_BYTES
    with pytest.raises(UnexpectedResponse, match=f"with {most + 1} bytes, allowed are at most {most}"):
        BY_GRPC.result(bytes(most + 1), url="grpc://x")
    large = messages.ModelInferResponse(raw_output_contents=[bytes(3 * MAX_DOCUMENT_BYTES)])
    large.outputs.add(name="x", datatype="UINT8", shape=[3 * MAX_DOCUMENT_BYTES])
    call = grpc_calls.infer(replace(REQUEST, max_answer_bytes=4 * MAX_DOCUMENT_BYTES), timeout_s=1)
    assert call.result(large.SerializeToString(), url="grpc://x")["x"].size == 3 * MAX_DOCUMENT_BYTES


@pytest.mark.parametrize("kind", [messages.ModelInferResponse, messages.ModelStreamInferResponse])
def test_only_tensors_may_be_large(kind: Any) -> None:
    """Before an answer is parsed, since empty fields take fifty times as much memory as objects."""
    response = messages.ModelInferResponse(raw_output_contents=[bytes(100), b"", bytes(2 * MAX_DOCUMENT_BYTES)])

    def sent(name_bytes: int) -> bytes:
        response.model_name = "n" * name_bytes
        whole = response if kind is messages.ModelInferResponse else kind(infer_response=response)
        return whole.SerializeToString()

    beside = len(sent(MAX_DOCUMENT_BYTES)) - 100 - 2 * MAX_DOCUMENT_BYTES - MAX_DOCUMENT_BYTES
    assert grpc_calls.parsed(kind, sent(MAX_DOCUMENT_BYTES - beside)).ByteSize()
    floods = [sent(MAX_DOCUMENT_BYTES - beside + 1)]
    if kind is messages.ModelInferResponse:
        # Empty outputs, empty contents, a field of another type, a number without an end, a field that is cut.
        floods += [field * (1 << 20) for field in (b"\x2a\x00", b"\x32\x00", b"\x33", b"\xff", b"\x32\xff\xff\xff\x7f")]
    for flood in floods:
        with pytest.raises(UnexpectedResponse):
            grpc_calls.parsed(kind, flood)


JSON = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just([]), st.just({}))
FIELDS = st.fixed_dictionaries(
    {
        "name": st.text(max_size=5) | JSON,
        "datatype": st.sampled_from(["FP32", "BYTES"]) | JSON,
        "shape": st.lists(st.integers(), max_size=4) | JSON,
        "parameters": st.fixed_dictionaries({"binary_data_size": st.integers(0, 9) | JSON}) | JSON,
    }
)


def seen(call: Any, *arguments: Any, **options: Any) -> str:
    """The error of ours that reading an answer ends with, or nothing."""
    try:
        call.result(*arguments, **options)
    except OnestreamError as error:
        return str(error)
    return ""


@given(st.lists(FIELDS | JSON, max_size=3) | JSON, st.binary(max_size=40))
def test_any_head_over_http_is_tensors_or_refused_by_what_is_checked(outputs: object, data: bytes) -> None:
    head = json.dumps({"outputs": outputs}).encode()
    headers = {"inference-header-content-length": str(len(head))}
    assert "cannot be read" not in seen(BY_HTTP, http_calls.Answer("http://x", 200, headers, head + data))


@given(st.binary(max_size=200))
def test_any_bytes_over_grpc_are_tensors_or_refused_by_what_is_checked(data: bytes) -> None:
    assert "cannot be read" not in seen(BY_GRPC, data, url="grpc://x")


DATATYPES = {f"{kind}{bits}": f"<{kind[0].lower()}{bits // 8}" for kind in ("UINT", "INT") for bits in (8, 16, 32, 64)}
DATATYPES |= {"BOOL": "?", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8"}


@given(st.sampled_from(sorted(DATATYPES)), st.data())
def test_numbers(datatype: str, data: st.DataObject) -> None:
    shapes = array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    array = data.draw(arrays(DATATYPES[datatype], shapes))
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
