"""Many images in flight on an event loop: order, bounds, failures, endless and slow sources, leaving early."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from async_fakes import AsyncFakeTransport, Held, refuse_bad
from client_fakes import echo_size
from hypothesis import given, settings
from hypothesis import strategies as st

from onestream.client import AsyncClient, ClientClosed
from onestream.client._transports.base import Tensors


@settings(max_examples=60)
@given(is_bad=st.lists(st.booleans(), max_size=40), in_flight=st.integers(1, 12), waits=st.booleans(), data=st.data())
def test_results_come_in_order_and_failures_stay_alone(
    is_bad: list[bool], in_flight: int, waits: bool, data: st.DataObject
) -> None:
    slow = data.draw(st.sets(st.integers(0, 39), max_size=4))
    running = most_running = read = 0
    images = [(b"bad" if bad else b"ok ") + bytes(index) for index, bad in enumerate(is_bad)]

    async def answer(model: str, image: bytes) -> Tensors:
        nonlocal running, most_running
        running += 1
        most_running = max(most_running, running)
        await asyncio.sleep(0.002 if len(image) - 3 in slow else 0)
        running -= 1
        return refuse_bad(model, image)

    async def source() -> AsyncIterator[bytes]:
        nonlocal read
        for image in images:
            if waits:
                await asyncio.sleep(0)
            read += 1
            yield image

    async def main() -> None:
        async with AsyncClient(transport=AsyncFakeTransport(answer)) as client:
            items = []
            async for item in client.classify_many(source(), in_flight=in_flight):
                items.append(item)
                assert read <= len(items) + in_flight
        assert [item.index for item in items] == list(range(len(images)))
        assert [item.source for item in items] == images
        assert [item.error is not None for item in items] == is_bad
        assert all(item.unwrap().top.class_id == len(item.source) for item in items if item.error is None)
        assert most_running <= in_flight

    asyncio.run(main())


def test_a_plain_iterable_is_read_only_as_far_as_needed() -> None:
    read = 0

    def endless() -> Any:
        nonlocal read
        while True:
            read += 1
            yield b"image"

    async def main() -> None:
        async with AsyncClient(transport=AsyncFakeTransport()) as client:
            async with contextlib.aclosing(client.classify_many(endless(), in_flight=4)) as results:
                assert read == 0
                for _ in range(50):
                    (await anext(results)).unwrap()
            assert 50 <= read <= 54

    asyncio.run(main())


def test_a_result_does_not_wait_for_a_slow_source() -> None:
    async def main() -> None:
        wanted = asyncio.Event()

        async def slow_source() -> AsyncIterator[bytes]:
            yield b"first"
            await wanted.wait()
            yield b"second"

        async with AsyncClient(transport=AsyncFakeTransport()) as client:
            results = client.classify_many(slow_source(), in_flight=8)
            assert (await asyncio.wait_for(anext(results), 10)).source == b"first"
            wanted.set()
            assert [item.source async for item in results] == [b"second"]

    asyncio.run(main())


def test_an_error_of_the_source_comes_after_the_results_before_it() -> None:
    async def breaking() -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"
        raise LookupError("the list of files ended badly")

    async def main() -> None:
        seen = []
        async with AsyncClient(transport=AsyncFakeTransport()) as client:
            with pytest.raises(LookupError, match="ended badly"):  # noqa: PT012
                async for item in client.classify_many(breaking(), in_flight=8):
                    seen.append(item.source)
        assert seen == [b"one", b"two"]

    asyncio.run(main())


@pytest.mark.parametrize("how", ["aclose", "cancel"])
def test_leaving_early_cancels_what_is_in_flight_and_sends_nothing_more(how: str) -> None:
    async def main() -> None:
        held = Held()

        async def answer(model: str, data: bytes) -> Tensors:
            return echo_size(model, data) if data == b"quick" else await held(model, data)

        transport = AsyncFakeTransport(answer)
        async with AsyncClient(transport=transport) as client:
            results = client.classify_many([b"quick", *[b"slow"] * 1000], in_flight=4)
            assert (await anext(results)).unwrap()
            if how == "aclose":
                await asyncio.sleep(0.05)
                await results.aclose()
            else:
                following = asyncio.ensure_future(anext(results))
                await asyncio.sleep(0.05)
                following.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await following
            assert 1 <= held.waiting == held.cancelled <= 4
            await asyncio.sleep(0.05)
            assert len(transport.fake.inferences) == 1 + held.waiting

    asyncio.run(main())


def test_a_closed_client_ends_the_iteration() -> None:
    async def main() -> None:
        client = AsyncClient(transport=AsyncFakeTransport())
        results = client.classify_many([b"image"] * 50, in_flight=2)
        await anext(results)
        await client.close()
        with pytest.raises(ClientClosed):
            async for _ in results:
                pass

    asyncio.run(main())
