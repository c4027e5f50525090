"""What a request carries: its id, also in the result and in every error, its priority, and its caller's deadline.

The id is the caller's or a random one.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from functools import partial
from operator import methodcaller
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from async_fakes import refuse_bad
from both_clients import Connect
from client_fakes import FakeTransport
from hypothesis import given
from hypothesis import strategies as st

from onestream.client import (
    BadImage,
    Client,
    OnestreamError,
    ServerOverloaded,
    Tensors,
    UnexpectedResponse,
    UnreadableInput,
    UnsupportedInput,
)
from onestream.client._transports import grpc_calls, http_calls
from onestream.client._transports.base import InferRequest, RequestMetadata, microseconds
from onestream.client._transports.tensors import decode_tensor
from onestream.client._transports.transport import Calls

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ALLOWED = "abcXYZ019._~:/+=@-"

Call = Callable[[Any], Any]


def outcome(connect: Connect, call: Call) -> tuple[Any, list[InferRequest]]:
    """What the call comes to, and what it sent."""
    transport = FakeTransport(refuse_bad)
    with connect(transport=transport) as client:
        try:
            found = call(client)
        except Exception as error:
            found = error
    return found, [request for request, _ in transport.inferences]


def test_the_callers_id_and_parent_are_sent_and_the_id_comes_back(connect: Connect) -> None:
    result, sent = outcome(connect, lambda one: one.classify(b"image", request_id="order-7/3", traceparent=PARENT))
    assert result.request_id == "order-7/3"
    assert [request.metadata for request in sent] == [RequestMetadata("order-7/3", PARENT)]
    _, sent = outcome(connect, lambda client: client.infer("any", b"image", request_id="raw:1"))
    assert [request.metadata for request in sent] == [RequestMetadata("raw:1")]


@pytest.mark.parametrize(
    ("image", "kind", "reaches_the_server"),
    [
        (b"bad", BadImage, True),
        (b"odd", UnexpectedResponse, True),
        ("/no/such/file.jpg", UnreadableInput, False),
        (b"", BadImage, False),
    ],
)
def test_every_error_of_a_call_names_its_request(
    image: Any, kind: type[OnestreamError], reaches_the_server: bool, connect: Connect
) -> None:
    error, sent = outcome(connect, lambda client: client.classify(image, request_id="mine"))
    assert type(error) is kind
    assert error.request_id == "mine"
    assert [request.metadata.request_id for request in sent] == (["mine"] if reaches_the_server else [])


def test_an_item_of_many_names_the_request_that_failed(connect: Connect) -> None:
    transport = FakeTransport(refuse_bad)
    with connect(transport=transport) as client:
        good, bad = client.classify_many([b"image", b"bad"], in_flight=1)
    sent = [request.metadata.request_id for request, _ in transport.inferences]
    assert [good.unwrap().request_id, bad.error.request_id] == sent
    assert len(set(sent)) == 2


@given(st.text(ALLOWED, min_size=1, max_size=128))
def test_ids_in_the_allowed_form_are_taken(request_id: str) -> None:
    with Client(transport=FakeTransport()) as client:
        assert client.classify(b"image", request_id=request_id).request_id == request_id


ARRAYS = {
    "pixels": np.arange(12, dtype=np.uint8).reshape(1, 2, 6)[:, :, ::2],
    "scale": np.array([[0.5]], ">f8"),
    "texts": np.array([[b"", b"two"]], object),
}
IDS = ("", "two words", "line\n", 'quote"', "ü", "a" * 129, "percent%20", "id\x00")
PARENTS = ("", PARENT.upper(), PARENT[3:], f"{PARENT}\r\nx: y", f"01{PARENT[2:]}")
NUMBERS = ({"timeout": 1}, {"triton_x": 1}, {"top_k": True}, {"top_k": "1"}, {"x": float("nan")}, {"x": 2**63})
# The first image would read it, and the others get nothing.
FILE = {"second": io.BytesIO(b"image")}
predict, predict_many = (partial(methodcaller, name, pipeline="any") for name in ("predict", "predict_many"))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        *(
            (methodcaller("classify", b"image", request_id=one), "ValueError: request_id=.*expected 1 to 128 letters")
            for one in IDS
        ),
        *((methodcaller("infer", "any", b"image", traceparent=one), "ValueError: .*W3C") for one in PARENTS),
        *((methodcaller("detect", b"image", parameters=one), "ValueError: parameters has ") for one in NUMBERS),
        *((predict_many([b"image"], parameters=one), "ValueError: parameters has ") for one in NUMBERS),
        (predict(b"image", inputs=[1]), "TypeError: inputs is list; expected values"),
        (methodcaller("infer", "any", ARRAYS, inputs={"x": [1]}), "ValueError: .*put all inputs among these"),
        (predict_many([b"1", b"2"], inputs=FILE), "UnsupportedInput: .*second.* is a file object; for many"),
        (methodcaller("classify_many", "cat.jpg"), "UnsupportedInput: .*use classify"),
        (methodcaller("classify_many", b"bytes"), "UnsupportedInput: .*use classify"),
        (methodcaller("classify_many", [], in_flight=0), "ValueError: in_flight=0"),
        (methodcaller("classify_many", [], timeout_s=0), "ValueError: timeout_s=0"),
    ],
)
def test_what_a_call_does_not_take_is_refused_before_anything_is_sent(call: Call, said: str, connect: Connect) -> None:
    error, sent = outcome(connect, call)
    assert re.match(said, f"{type(error).__name__}: {error}")
    assert sent == []


def test_arrays_are_sent_by_the_names_of_inputs(connect: Connect) -> None:
    _, (sent,) = outcome(connect, lambda client: client.infer("any", ARRAYS))
    assert sent.arrays is ARRAYS
    message = grpc_calls.infer(sent, timeout_s=1).message
    head, *body = http_calls.infer(sent, timeout_s=1).body
    asked = [(one.name, one.datatype, one.shape) for one in message.inputs]
    stated = [(one["name"], one["datatype"], one["shape"]) for one in json.loads(head)["inputs"]]
    for described, contents in ((asked, message.raw_input_contents), (stated, body)):
        assert [name for name, *_ in described] == list(ARRAYS)
        for (name, datatype, shape), content in zip(described, contents, strict=True):
            np.testing.assert_array_equal(decode_tensor(name, datatype, list(shape), content), ARRAYS[name])
    with pytest.raises(UnsupportedInput, match="input 'x' is of complex128"):
        grpc_calls.infer(InferRequest("any", sent.metadata, b"", arrays={"x": np.zeros(1, complex)}), timeout_s=1)


def test_a_parent_is_a_header_over_both_protocols() -> None:
    for metadata, headers in ((RequestMetadata("7", PARENT), {"traceparent": PARENT}), (RequestMetadata("7"), {})):
        request = InferRequest("any", metadata, b"image")
        metadata = dict(grpc_calls.infer(request, timeout_s=1).metadata)
        # With a parent, the id is a header too.
        assert metadata == (headers | {"x-request-id": "7"} if headers else {})
        sent = http_calls.infer(request, timeout_s=1).all_headers(None)
        assert {name: value for name, value in sent.items() if name == "traceparent"} == headers


def test_parameters_go_with_every_image_of_a_call(connect: Connect) -> None:
    given = {"top_k": 1, "score_threshold": 0.5}
    _, sent = outcome(connect, predict(b"image", parameters=given))
    _, many = outcome(connect, lambda client: list(client.classify_many([b"1", b"2"], parameters=given)))
    assert [request.metadata.parameters for request in sent + many] == [given] * 3


IMAGES = [{"name": name, "data_type": "TYPE_UINT8", "dims": ["-1"]} for name in ("image", "second")]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (b"", "bad image (empty): second: 0 bytes, expected an encoded image"),
        (b"123456789", "bad image (too_large): second: 9 bytes, allowed are at most 8"),
        ("/no/photo.jpg", "second: /no/photo.jpg: the image cannot be read: No such file or directory"),
        (5, "second: an image of type int was given; expected bytes"),
    ],
)
def test_an_error_of_another_picture_begins_with_its_name(connect: Connect, given: Any, text: str) -> None:
    """As those of the server."""
    transport = FakeTransport(parameters={"pictures": "second", "max_body_bytes": "8"}, inputs=IMAGES)
    with connect(transport=transport) as client, pytest.raises(OnestreamError) as failure:
        client.predict(b"image", pipeline="any", inputs={"second": given})
    assert str(failure.value).startswith(text)


def test_a_client_learns_of_inputs_that_a_later_version_takes(connect: Connect) -> None:
    """One that lives for long, such as the gateway's. A list of no numbers is one of whole numbers too."""
    transport = FakeTransport(inputs=IMAGES[:1])
    with connect(transport=transport) as client:
        client.predict(b"image", pipeline="any")
        transport.inputs = [IMAGES[0], {"name": "tokens", "data_type": "TYPE_INT64", "dims": ["-1"]}]
        client.predict(b"image", pipeline="any", inputs={"tokens": []})
        with pytest.raises(UnsupportedInput, match=r"pipeline 'any' takes tokens \(INT64 \[any\]\)"):
            client.predict(b"image", pipeline="any", inputs={"points": [1]})
        with pytest.raises(UnsupportedInput, match=r"float64 \[1\]; expected INT64 \[any\]"):
            client.predict(b"image", pipeline="any", inputs={"tokens": [0.5]})
    first, second = (request.arrays for request, _ in transport.inferences)
    assert first == {}
    assert list(second) == ["tokens"]
    assert (second["tokens"].dtype, second["tokens"].shape) == (np.int64, (1, 0))


class FullOnce(Calls):
    """Refuses the first request as a full queue does, and answers the others with no tensors."""

    url = "fake://server:1"

    def __init__(self, protocol: ModuleType) -> None:
        self.calls, self.sent = protocol, []

    def _call(self, call: Any, timeout_s: float) -> Tensors:
        self.sent.append((call, timeout_s))
        if len(self.sent) == 1:
            raise ServerOverloaded("Exceeds maximum queue size", status="UNAVAILABLE")
        return {}

    def close(self) -> None:
        pass


def said_by_grpc(call: Any) -> tuple[int, int]:
    return call.message.parameters["priority"].uint64_param, call.message.parameters["timeout"].int64_param


def said_by_http(call: Any) -> tuple[int, int]:
    parameters = json.loads(call.body[0])["parameters"]
    return parameters["priority"], parameters["timeout"]


@pytest.mark.parametrize(("protocol", "said"), [(grpc_calls, said_by_grpc), (http_calls, said_by_http)])
@pytest.mark.parametrize(("options", "level"), [({"priority": "high"}, 1), ({}, 2), ({"priority": "low"}, 3)])
def test_priority_and_what_is_left_of_the_deadline_travel_with_each_attempt(
    protocol: ModuleType, said: Callable[[Any], tuple[int, int]], options: dict[str, Any], level: int
) -> None:
    transport = FullOnce(protocol)
    with Client(transport=transport, max_body_bytes=100, retry_overloaded=True, **options) as client:
        client.infer("any", b"image", timeout_s=20)
    (_, first_s), (_, second_s) = transport.sent
    assert 10 < first_s <= 20
    # The first pause is 0.5 s, less a quarter at most.
    assert 0 < second_s < first_s - 0.37
    assert [said(call) for call, _ in transport.sent] == [
        (level, microseconds(left_s)) for left_s in (first_s, second_s)
    ]


@given(st.floats(min_value=0, max_value=1e6))
def test_a_timeout_never_becomes_none(timeout_s: float) -> None:
    found = microseconds(timeout_s)
    # 0 would be no limit to Triton.
    assert found >= 1
    # Half a microsecond of rounding, and what a float of 10¹² is coarse by.
    assert abs(found - 1e6 * timeout_s) <= 0.501 or found == 1
