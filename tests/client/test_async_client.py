"""The blocking half is made of the half for event loops; and what only an event loop has: tasks that are cancelled."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from async_fakes import AsyncFakeTransport, Held
from client_fakes import echo_size
from patience import in_a_loop

from onestream.client import AsyncClient, CannotConnect, Tensors
from onestream.client.make_sync import HERE, MADE, made_of


@pytest.mark.parametrize("made", MADE)
def test_the_blocking_half_is_made_of_the_other(made: str) -> None:
    source = HERE / MADE[made]
    assert (HERE / made).read_text(encoding="utf-8") == made_of(source.read_text(encoding="utf-8"), source.name)


@in_a_loop
async def test_cancelling_a_task_cancels_its_request_alone() -> None:
    held = Held()
    async with AsyncClient(transport=AsyncFakeTransport(held)) as client:
        first, second = (asyncio.ensure_future(client.classify(b"image")) for _ in range(2))
        await asyncio.sleep(0.05)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert (held.waiting, held.cancelled, second.done()) == (2, 1, False)
        second.cancel()


@in_a_loop
async def test_cancelling_between_two_attempts_tries_nothing_again() -> None:
    def unreachable(_model: str, _data: bytes) -> Tensors:
        raise CannotConnect("gone")

    transport = AsyncFakeTransport(unreachable)
    async with AsyncClient(transport=transport, retries=100, timeout_s=60) as client:
        task = asyncio.ensure_future(client.classify(b"image"))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(transport.fake.inferences) == 1


@in_a_loop
async def test_a_large_file_is_read_while_the_loop_goes_on(tmp_path: Path) -> None:
    """The pipe gives its bytes only after the loop has run: a client that blocks would wait for ever."""
    path = tmp_path / "pipe"
    os.mkfifo(path)

    async with AsyncClient(transport=AsyncFakeTransport()) as client:
        task = asyncio.ensure_future(client.classify(path))
        await asyncio.sleep(0.05)
        assert not task.done()
        threading.Thread(target=path.write_bytes, args=[b"image"]).start()
        assert (await asyncio.wait_for(task, 10)).top.class_id == 5


def test_another_event_loop_and_shared_memory_without_an_address_are_refused() -> None:
    client = AsyncClient(transport=AsyncFakeTransport())
    asyncio.run(client.is_ready())  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(client.is_ready())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs an address"):
        AsyncClient(shared_memory=True, transport=AsyncFakeTransport())


@in_a_loop
async def test_nothing_is_lost_when_many_tasks_are_cancelled_at_random() -> None:
    """Whatever is not cancelled gets its own answer."""
    random = np.random.default_rng(0)

    async def answer(model: str, data: bytes) -> Tensors:
        await asyncio.sleep(float(random.uniform(0, 0.01)))
        return echo_size(model, data)

    async with AsyncClient(transport=AsyncFakeTransport(answer)) as client:
        tasks = [asyncio.ensure_future(client.classify(bytes(size))) for size in range(1, 301)]
        end = time.monotonic() + 0.01
        for task in tasks[::3]:
            task.cancel()
            if time.monotonic() < end:
                await asyncio.sleep(0)
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for size, result in enumerate(results, 1):
        if isinstance(result, asyncio.CancelledError):
            assert (size - 1) % 3 == 0
        else:
            assert not isinstance(result, BaseException)
            assert result.top.class_id == size


@in_a_loop
async def test_a_result_does_not_wait_for_a_slow_source() -> None:
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


@pytest.mark.parametrize("how", ["aclose", "cancel"])
@in_a_loop
async def test_leaving_early_cancels_what_is_in_flight_and_sends_nothing_more(how: str) -> None:
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
