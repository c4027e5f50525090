"""Streams in an event loop, which goes on meanwhile."""

from __future__ import annotations

import asyncio

import pytest
from fake_server import FakeServer
from stream_fakes import packets, source

from onestream.client import Client


def test_many_streams_and_the_loop_goes_on(server: FakeServer, client: Client) -> None:
    server.behaviour.frame_s = 0.005
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    async def one(count: int) -> list[int]:
        async with client.stream(source(packets(count))) as results:
            return [frame.frame_index async for frame in results]

    async def run() -> list[list[int]]:
        ticking = asyncio.create_task(tick())
        found = await asyncio.gather(*(one(count) for count in range(20, 28)))
        ticking.cancel()
        return found

    assert asyncio.run(run()) == [list(range(count)) for count in range(20, 28)]
    # Twenty frames of 5 ms: a loop that was blocked meanwhile would have counted nothing.
    assert ticks >= 3


def test_a_wait_can_be_given_up_and_taken_up_again(server: FakeServer, client: Client) -> None:
    server.behaviour.frame_s = 0.3

    async def run() -> int:
        async with client.stream(source(packets(2))) as results:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(anext(results), 0.05)
            return (await anext(results)).frame_index

    assert asyncio.run(run()) == 0
