"""What becomes of AsyncClient's requests to a real Triton that are cancelled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from clip_files import write_video
from patience import NEVER_S, PATIENCE_S, in_a_loop
from shared_server import SharedServer
from toy_models import Hold, regions_left, url_of

from onestream.client import AsyncClient, ModelStatistics

pytestmark = [pytest.mark.needs_triton, pytest.mark.slow]


async def counted(client: AsyncClient, model: str, before: ModelStatistics, requests: int) -> ModelStatistics:
    """What happened since, once Triton has counted so many requests: it does so a moment after it has answered."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        spent = await client.statistics(model) - before
        if spent.success.count + spent.fail.count == requests:
            return spent
        assert time.monotonic() < deadline, spent
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(("protocol", "most"), [("grpc", 24), ("http", 40)])
@in_a_loop
async def test_cancelling_returns_at_once_and_over_grpc_the_server_drops_what_is_queued(
    protocol: str, most: int, toy_server: SharedServer, tmp_path: Path
) -> None:
    async with AsyncClient(url_of(toy_server, protocol), retries=0) as client:
        await client.max_body_bytes("toy")
        before = await client.statistics("toy")
        with Hold(tmp_path) as hold:
            busy = asyncio.ensure_future(client.classify(hold.image, pipeline="toy", timeout_s=NEVER_S))
            await asyncio.to_thread(hold.wait_until_begun)
            tasks = [asyncio.ensure_future(client.classify(b"image", pipeline="toy")) for _ in range(40)]
            await asyncio.sleep(0.3)  # they are in the server's queue
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE_S)
            assert {type(outcome) for outcome in outcomes} == {asyncio.CancelledError}
            assert not busy.done(), "cancelling waited for the server"
        await busy
        assert (await client.classify(b"image", pipeline="toy")).top.class_id == 5
        executed = (await counted(client, "toy", before, 40 + 2)).inference_count - 2
        # Batches that wait for the instance are already made up: three of four, and more where all is slow.
        assert 0 <= executed <= most


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@in_a_loop
async def test_a_region_whose_request_was_cancelled_is_not_used_again(
    protocol: str, toy_server: SharedServer, tmp_path: Path
) -> None:
    async with AsyncClient(url_of(toy_server, protocol), retries=0, shared_memory=True) as client:
        await client.classify(b"first", pipeline="toy")
        (before,) = set(regions_left(toy_server))
        with Hold(tmp_path) as hold:
            task = asyncio.ensure_future(client.classify(hold.image, pipeline="toy"))
            await asyncio.to_thread(hold.wait_until_begun)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        # The server may still read it.
        assert (await client.classify(b"other image", pipeline="toy")).top.class_id == 11
        assert before not in [path.name for path in Path("/dev/shm").glob("onestream_*")]
        for _ in range(3):
            tasks = [asyncio.ensure_future(client.classify(bytes(5), pipeline="toy")) for _ in range(8)]
            for number, one in enumerate(tasks):
                await asyncio.sleep(0.001 * number)
                one.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert (await client.classify(b"image", pipeline="toy")).top.class_id == 5
    assert regions_left(toy_server) == []


@in_a_loop
async def test_leaving_classify_many_drops_what_is_queued(toy_server: SharedServer, tmp_path: Path) -> None:
    async with AsyncClient(toy_server.grpc_url, retries=0) as client:
        answered = asyncio.Event()

        async def source() -> AsyncIterator[bytes]:
            yield b"image"
            # Each in a batch of its own: an answer comes when its whole batch is done.
            await answered.wait()
            yield hold.image
            await asyncio.to_thread(hold.wait_until_begun)
            for _ in range(200):
                yield b"image"

        before = await client.statistics("toy")
        with Hold(tmp_path) as hold:
            results = client.classify_many(source(), pipeline="toy", in_flight=50)
            assert (await anext(results)).unwrap().top.class_id == 5
            answered.set()
            following = asyncio.ensure_future(anext(results))
            await asyncio.to_thread(hold.wait_until_begun)
            await asyncio.sleep(0.5)  # those that follow are in the server's queue
            following.cancel()
            with pytest.raises(asyncio.CancelledError):
                await following
        # The two at the front, and of 49 that waited the batches of 4 that were made until the call's end came.
        spent = await counted(client, "toy", before, 51)
        assert spent.inference_count <= 2 + 24
        assert spent.inference_count + spent.fail.count == 51


@in_a_loop
async def test_a_video_stream_of_the_async_client(server: SharedServer, tmp_path: Path) -> None:
    clip = write_video(tmp_path / "clip.mp4", "libx264", count=12)

    async with AsyncClient(server.grpc_url, retries=0, timeout_s=30) as client:
        async with client.stream(clip, pipeline="classify") as frames:
            indices = [frame.frame_index async for frame in frames]
        assert indices == list(range(12))
