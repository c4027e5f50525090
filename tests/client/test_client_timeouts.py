"""How long an image may take: what the call says, else the client, else the model, else ten seconds."""

from __future__ import annotations

from typing import Any

import pytest
from both_clients import Connect
from client_fakes import FakeTransport

from onestream.client import UnexpectedResponse
from onestream.client.calls import limits_of

MINUTE = {"timeout_s": "60"}


@pytest.mark.parametrize(
    ("parameters", "options", "call", "least", "most"),
    [
        ({}, {}, {}, 0, 10),
        (MINUTE, {}, {}, 10, 60),
        (MINUTE, {"timeout_s": 300}, {}, 60, 300),
        (MINUTE, {"timeout_s": 5}, {}, 0, 5),
        (MINUTE, {}, {"timeout_s": 400}, 60, 400),
        (MINUTE, {"timeout_s": 300}, {"timeout_s": 500}, 300, 500),
        # No configuration is read, so nothing is known of the model.
        (MINUTE, {"max_body_bytes": 1000}, {}, 0, 10),
    ],
)
def test_the_call_says_it_or_the_client_or_the_model(
    parameters: dict[str, str],
    options: dict[str, Any],
    call: dict[str, Any],
    least: float,
    most: float,
    connect: Connect,
) -> None:
    transport = FakeTransport(parameters=parameters)
    with connect(transport=transport, **options) as client:
        client.classify(b"image", **call)
    ((_, timeout_s),) = transport.inferences
    assert least < timeout_s <= most


@pytest.mark.parametrize(("options", "expected"), [({}, 60), ({"timeout_s": 3}, 3)])
def test_a_client_tells_how_long_it_waits_for_a_model(
    options: dict[str, Any], expected: float, connect: Connect
) -> None:
    with connect(transport=FakeTransport(parameters=MINUTE), **options) as client:
        assert client.default_timeout_s("read") == expected


@pytest.mark.parametrize(
    ("stated", "expected"), [("60", 60), ("soon", 10), ("1.5", 10), ("", 10), ("0", 1), ("999999999999", 3600)]
)
def test_what_a_model_states_is_a_whole_number_within_bounds(stated: str, expected: int) -> None:
    config = {"parameters": {"timeout_s": {"string_value": stated}}}
    assert limits_of(config, max_answer_bytes=1).timeout_s == expected


def test_more_digits_than_a_number_has_are_no_configuration() -> None:
    with pytest.raises(UnexpectedResponse):
        limits_of({"parameters": {"timeout_s": {"string_value": "9" * 100}}}, max_answer_bytes=1)
