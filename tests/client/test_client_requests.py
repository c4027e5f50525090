"""What a request carries: its id, also in the result and in every error, its priority, and its caller's deadline.

The id is the caller's or a random one.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc  # type: ignore[import-untyped]
import numpy as np
import pytest
from async_fakes import refuse_bad
from both_clients import Connect
from client_fakes import FakeTransport
from http_scripts import answer, listening, read_request, tensors
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceServicer, add_GRPCInferenceServiceServicer_to_server

from onestream.client import (
    BadImage,
    Client,
    OnestreamError,
    Priority,
    UnexpectedResponse,
    UnreadableInput,
    UnsupportedInput,
)
from onestream.client._transports import grpc_calls, http_calls
from onestream.client._transports.base import InferRequest, RequestMetadata, microseconds
from onestream.client._transports.tensors import decode_tensor

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


ARRAYS = {
    "pixels": np.arange(12, dtype=np.uint8).reshape(1, 2, 6)[:, :, ::2],
    "scale": np.array([[0.5]], ">f8"),
    "texts": np.array([[b"", b"two"]], object),
}


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
    _, sent = outcome(connect, lambda client: client.predict(b"image", pipeline="any", parameters=given))
    _, many = outcome(connect, lambda client: list(client.classify_many([b"1", b"2"], parameters=given)))
    assert [request.metadata.parameters for request in sent + many] == [given] * 3


@pytest.mark.parametrize(
    "given", [{"timeout": 1}, {"triton_x": 1}, {"top_k": True}, {"top_k": "1"}, {"x": float("nan")}, {"x": 2**63}]
)
def test_other_parameters_are_refused_before_anything_is_sent(given: Any, connect: Connect) -> None:
    for call in (
        lambda client: client.detect(b"image", parameters=given),
        lambda client: client.predict_many([b"image"], pipeline="any", parameters=given),
    ):
        error, sent = outcome(connect, call)
        assert type(error) is ValueError
        assert str(error).startswith("parameters has ")
        assert sent == []


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
    """One that lives for long, such as the gateway's."""
    tokens = {"name": "tokens", "data_type": "TYPE_INT64", "dims": ["1"]}
    transport = FakeTransport(inputs=IMAGES[:1])
    with connect(transport=transport) as client:
        client.predict(b"image", pipeline="any")
        transport.inputs = [IMAGES[0], tokens]
        client.predict(b"image", pipeline="any", inputs={"tokens": [1]})
        with pytest.raises(UnsupportedInput, match=r"pipeline 'any' takes tokens \(INT64 \[1\]\)"):
            client.predict(b"image", pipeline="any", inputs={"points": [1]})
    assert [list(request.arrays) for request, _ in transport.inferences] == [[], ["tokens"]]


def test_a_list_of_no_numbers_is_one_of_whole_numbers_too(connect: Connect) -> None:
    tokens = {"name": "tokens", "data_type": "TYPE_INT64", "dims": ["-1"]}
    transport = FakeTransport(inputs=[IMAGES[0], tokens])
    with connect(transport=transport) as client:
        client.predict(b"image", pipeline="any", inputs={"tokens": []})
        ((request, _),) = transport.inferences
        assert (request.arrays["tokens"].dtype, request.arrays["tokens"].shape) == (np.int64, (1, 0))
        with pytest.raises(UnsupportedInput, match=r"float64 \[1\]; expected INT64 \[any\]"):
            client.predict(b"image", pipeline="any", inputs={"tokens": [0.5]})


# ---- priority, and how long the caller still waits ------------------------------------------------------------------

FULL = "Exceeds maximum queue size"
Seen = list[tuple[int, int]]
"""Priority and timeout, in microseconds, of every request."""


class Recording(GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Refuses the first ``refused`` requests as a full queue does, and answers the others with no tensors."""

    def __init__(self, refused: int) -> None:
        self.seen: Seen = []
        self.refused = refused

    def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        self.seen.append((request.parameters["priority"].uint64_param, request.parameters["timeout"].int64_param))
        if len(self.seen) <= self.refused:
            context.abort(grpc.StatusCode.UNAVAILABLE, FULL)
        return messages.ModelInferResponse()


@contextmanager
def by_grpc(refused: int) -> Iterator[tuple[str, Seen]]:
    servicer, server = Recording(refused), grpc.server(ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
    add_GRPCInferenceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}", servicer.seen
    finally:
        server.stop(None).wait()


@contextmanager
def by_http(refused: int) -> Iterator[tuple[str, Seen]]:
    seen: Seen = []

    def serve(connection: socket.socket) -> None:
        while request := read_request(connection):
            head, _, body = request.partition(b"\r\n\r\n")
            length = re.search(rb"inference-header-content-length: (\d+)", head.lower())
            assert length
            parameters = json.loads(body[: int(length[1])])["parameters"]
            seen.append((parameters["priority"], parameters["timeout"]))
            full = len(seen) <= refused
            connection.sendall(answer(503, json.dumps({"error": FULL}).encode()) if full else tensors())

    with listening(serve) as port:
        yield f"http://127.0.0.1:{port}", seen


Opened = Callable[[int], Any]


@pytest.fixture(params=["grpc", "http"])
def opened(request: pytest.FixtureRequest) -> Opened:
    return by_grpc if request.param == "grpc" else by_http


@pytest.mark.parametrize(("priority", "level"), [("high", 1), ("normal", 2), ("low", 3)])
def test_priority_and_deadline_travel_with_a_request(
    opened: Opened, priority: Priority, level: int, connect: Connect
) -> None:
    with opened(0) as (url, seen), connect(url, max_body_bytes=100, priority=priority) as client:
        client.infer("any", b"image", timeout_s=20)
    ((found, timeout_us),) = seen
    assert found == level
    # What is left of 20 s; a busy test machine may need some of them to connect.
    assert 10_000_000 < timeout_us <= 20_000_000


def test_a_repeated_request_has_what_is_left_of_the_deadline(opened: Opened, connect: Connect) -> None:
    with opened(1) as (url, seen), connect(url, max_body_bytes=100, retry_overloaded=True) as client:
        client.infer("any", b"image", timeout_s=20)
    (_, first_us), (level, second_us) = seen
    assert level == 2
    # The first pause is 0.5 s, less a quarter at most.
    assert 0 < second_us < first_us - 370_000


@given(st.floats(min_value=0, max_value=1e6))
def test_a_timeout_never_becomes_none(timeout_s: float) -> None:
    found = microseconds(timeout_s)
    # 0 would be no limit to Triton.
    assert found >= 1
    # Half a microsecond of rounding, and what a float of 10¹² is coarse by.
    assert abs(found - 1e6 * timeout_s) <= 0.501 or found == 1
