"""The same stream in an event loop."""

from __future__ import annotations

import asyncio

import pytest
from fake_server import FakeServer
from patience import wait_until
from stream_fakes import endless, packets, source

from onestream.client import BadStream, Client, TimedOut


def test_every_frame_in_order(client: Client) -> None:
    async def run() -> list[int]:
        async with client.stream(source(packets(200))) as results:
            numbers = [frame.frame_index async for frame in results]
        assert results.ended_reason == "done"
        return numbers

    assert asyncio.run(run()) == list(range(200))


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


def test_refusals_are_raised_on_entering(server: FakeServer, client: Client) -> None:
    server.behaviour.refuse = ("too_large", "4k")

    async def run() -> None:
        async with client.stream(source(packets(1))):
            pass

    with pytest.raises(BadStream, match="too_large"):
        asyncio.run(run())


def test_errors_come_after_the_results(server: FakeServer, client: Client) -> None:
    server.behaviour.fail_after = 4
    numbers = []

    async def run() -> None:
        async for frame in client.stream(source(packets(50))):
            numbers.append(frame.frame_index)

    with pytest.raises(BadStream, match="the network failed"):
        asyncio.run(run())
    assert numbers == [0, 1, 2, 3]


def test_silence(server: FakeServer, client: Client) -> None:
    server.behaviour.silent_after = 2

    async def run() -> None:
        async for _ in client.stream(source(packets(9)), timeout_s=0.2):
            pass

    with pytest.raises(TimedOut):
        asyncio.run(run())


def test_leaving_early_cancels_the_call(server: FakeServer, client: Client) -> None:
    async def run() -> None:
        async with client.stream(endless()) as results:
            await anext(results)

    asyncio.run(run())
    wait_until(lambda: server.streams[0].cancelled, "the server sees the cancel")


def test_a_wait_can_be_given_up_and_taken_up_again(server: FakeServer, client: Client) -> None:
    server.behaviour.frame_s = 0.3

    async def run() -> int:
        async with client.stream(source(packets(2))) as results:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(anext(results), 0.05)
            return (await anext(results)).frame_index

    assert asyncio.run(run()) == 0
