"""Reads answers in Protocol Buffers' encoding; only the tensors in them may be large."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as messages

from onestream.client._transports.base import Tensors
from onestream.client._transports.tensors import decode_tensors
from onestream.client.errors import UnexpectedResponse
from onestream.client.fields import MAX_DOCUMENT_BYTES

_CONTENTS = messages.ModelInferResponse.DESCRIPTOR.fields_by_name["raw_output_contents"].number
_RESPONSE = messages.ModelStreamInferResponse.DESCRIPTOR.fields_by_name["infer_response"].number
_VARINT, _EIGHT_BYTES, _LENGTH_DELIMITED, _FOUR_BYTES = 0, 1, 2, 5
"""Types of fields on the wire: https://protobuf.dev/programming-guides/encoding/"""


def infer_response(data: bytes) -> Any:
    """The answer to a request. Raises UnexpectedResponse where more than its tensors is large."""
    _require_small_head(memoryview(data), [_CONTENTS])
    return parsed(messages.ModelInferResponse, data)


def stream_response(data: bytes) -> Any:
    """One answer of a conversation, as ``infer_response``."""
    _require_small_head(memoryview(data), [_RESPONSE, _CONTENTS])
    return parsed(messages.ModelStreamInferResponse, data)


def parsed(kind: Any, data: bytes) -> Any:
    """The message of this kind in ``data``. Raises UnexpectedResponse where it holds none."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise UnexpectedResponse(f"{len(data)} bytes that are no {kind.DESCRIPTOR.name}: {error}") from None


def outputs_of(response: Any) -> Tensors:
    """All outputs of a response."""
    if len(response.outputs) != len(response.raw_output_contents):
        raise UnexpectedResponse(f"{len(response.outputs)} outputs with {len(response.raw_output_contents)} contents")
    return decode_tensors(
        (output.name, output.datatype, output.shape, data)
        for output, data in zip(response.outputs, response.raw_output_contents, strict=True)
    )


def _require_small_head(data: memoryview, path: list[int]) -> None:
    """Raise UnexpectedResponse where there are too many bytes beside the fields at the end of ``path``.

    It looks before the message is made of them: an empty field of two bytes becomes an object of a hundred.
    """
    head = _head_bytes(data, path, 0)
    if head > MAX_DOCUMENT_BYTES:
        raise UnexpectedResponse(f"an answer with over {MAX_DOCUMENT_BYTES} bytes beside its tensors")


def _head_bytes(data: memoryview, path: list[int], head: int) -> int:
    """``head``, and the bytes beside the fields of ``path`` as far as they are not too many."""
    at = 0
    while at < len(data) and head <= MAX_DOCUMENT_BYTES:
        begin = at
        tag, at = _number(data, at)
        kind = tag & 7
        size = 0
        if kind == _LENGTH_DELIMITED:
            size, at = _number(data, at)
        elif kind == _VARINT:
            _, at = _number(data, at)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            at += 8 if kind == _EIGHT_BYTES else 4
        else:
            raise UnexpectedResponse(f"an answer with a field of the type {kind}, which Protocol Buffers do not have")
        head += at - begin
        if kind == _LENGTH_DELIMITED and tag >> 3 == path[0]:
            if len(path) > 1:
                head = _head_bytes(data[at : at + size], path[1:], head)
        else:
            head += size
        at += size
    return head


def _number(data: memoryview, at: int) -> tuple[int, int]:
    """The number of up to ten bytes at ``at``, seven bits in each, and where the next field begins."""
    number = 0
    for index, byte in enumerate(data[at : at + 10]):
        number |= (byte & 127) << 7 * index
        if byte < 128:
            return number, at + index + 1
    raise UnexpectedResponse("an answer that ends, or goes on, inside a number")
