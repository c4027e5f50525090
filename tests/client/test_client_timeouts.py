"""How long an image may take: what the call says, else the client, else the model, else ten seconds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from async_fakes import AsyncFakeTransport
from client_fakes import FakeTransport

from onestream.client import AsyncClient, Client, UnexpectedResponse
from onestream.client.calls import limits_of

MINUTE = {"timeout_s": "60"}


def sent(parameters: dict[str, str], options: dict[str, Any], call: dict[str, Any]) -> list[float]:
    """The seconds that an image may take, of both clients, when it is sent."""
    transport, other = FakeTransport(parameters=parameters), AsyncFakeTransport(parameters=parameters)
    with Client(transport=transport, **options) as client:
        client.classify(b"image", **call)

    async def ask() -> None:
        async with AsyncClient(transport=other, **options) as client:
            await client.classify(b"image", **call)

    asyncio.run(ask())
    return [timeout_s for fake in (transport, other.fake) for _, timeout_s in fake.inferences]


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
    parameters: dict[str, str], options: dict[str, Any], call: dict[str, Any], least: float, most: float
) -> None:
    seconds = sent(parameters, options, call)
    assert len(seconds) == 2
    assert all(least < one <= most for one in seconds)


@pytest.mark.parametrize(("options", "expected"), [({}, 60), ({"timeout_s": 3}, 3)])
def test_a_client_tells_how_long_it_waits_for_a_model(options: dict[str, Any], expected: float) -> None:
    with Client(transport=FakeTransport(parameters=MINUTE), **options) as client:
        assert client.default_timeout_s("read") == expected

    async def ask() -> float:
        async with AsyncClient(transport=AsyncFakeTransport(parameters=MINUTE), **options) as client:
            return await client.default_timeout_s("read")

    assert asyncio.run(ask()) == expected


@pytest.mark.parametrize(
    ("stated", "expected"), [("60", 60), ("soon", 10), ("1.5", 10), ("", 10), ("0", 1), ("999999999999", 3600)]
)
def test_what_a_model_states_is_a_whole_number_within_bounds(stated: str, expected: int) -> None:
    config = {"parameters": {"timeout_s": {"string_value": stated}}}
    assert limits_of(config, max_answer_bytes=1).timeout_s == expected


def test_more_digits_than_a_number_has_are_no_configuration() -> None:
    with pytest.raises(UnexpectedResponse):
        limits_of({"parameters": {"timeout_s": {"string_value": "9" * 100}}}, max_answer_bytes=1)
