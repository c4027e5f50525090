"""One id names a request: the caller's or a random one, in what is sent, in the result and in every error."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from async_fakes import refuse_bad
from both_clients import Connect
from client_fakes import FakeTransport
from hypothesis import given
from hypothesis import strategies as st

from onestream.client import BadImage, Client, OnestreamError, UnexpectedResponse, UnreadableInput
from onestream.client._transports import grpc_calls, http_calls
from onestream.client._transports.base import InferRequest, RequestMetadata

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
    assert bad.error is not None
    assert [good.unwrap().request_id, bad.error.request_id] == sent
    assert len(set(sent)) == 2


@given(st.text(ALLOWED, min_size=1, max_size=128))
def test_ids_in_the_allowed_form_are_taken(request_id: str) -> None:
    with Client(transport=FakeTransport()) as client:
        assert client.classify(b"image", request_id=request_id).request_id == request_id


@pytest.mark.parametrize("request_id", ["", "two words", "line\n", 'quote"', "ü", "a" * 129, "percent%20", "id\x00"])
def test_other_ids_are_refused_before_anything_is_sent(request_id: str, connect: Connect) -> None:
    error, sent = outcome(connect, lambda client: client.classify(b"image", request_id=request_id))
    assert type(error) is ValueError
    assert re.match(r"request_id=.*expected 1 to 128 letters", str(error))
    assert sent == []


@pytest.mark.parametrize("parent", ["", PARENT.upper(), PARENT[3:], f"{PARENT}\r\nx: y", f"01{PARENT[2:]}"])
def test_other_parents_are_refused_before_anything_is_sent(parent: str, connect: Connect) -> None:
    error, sent = outcome(connect, lambda client: client.infer("any", b"image", traceparent=parent))
    assert type(error) is ValueError
    assert "W3C" in str(error)
    assert sent == []


def test_a_parent_is_a_header_over_both_protocols() -> None:
    for metadata, headers in ((RequestMetadata("7", PARENT), {"traceparent": PARENT}), (RequestMetadata("7"), {})):
        request = InferRequest("any", metadata, b"image")
        metadata = dict(grpc_calls.infer(request, timeout_s=1).metadata)
        # With a parent, the id is a header too.
        assert metadata == (headers | {"x-request-id": "7"} if headers else {})
        sent = http_calls.infer(request, timeout_s=1).all_headers(None)
        assert {name: value for name, value in sent.items() if name == "traceparent"} == headers
