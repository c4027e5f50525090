"""Shared memory for an event loop: requests go by the loop, regions are made and registered by other threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import TypeVar

from onestream.client._transports.base import InferRequest, Tensors
from onestream.client._transports.refusals import RegionForgotten
from onestream.client._transports.shared_memory import RegionPool, Slot
from onestream.client._transports.transport_aio import AsyncTransport
from onestream.client.images import EncodedImage

_T = TypeVar("_T")


class AsyncRegions:
    """The regions of ``pool``, which has a connection of its own, for requests over ``transport``."""

    def __init__(self, pool: RegionPool, transport: AsyncTransport) -> None:
        self._pool, self._transport = pool, transport

    @asynccontextmanager
    async def filled(self, image: EncodedImage, *, timeout_s: float) -> AsyncIterator[Slot]:
        """As ``RegionPool.filled``: a region whose request was cancelled is not used again."""
        held = self._pool.filled(image, timeout_s=timeout_s)
        slot = await _whole(held.__enter__, undo=lambda: held.__exit__(asyncio.CancelledError, None, None))
        try:
            yield slot
        except BaseException as error:
            held.__exit__(type(error), error, error.__traceback__)
            raise
        held.__exit__(None, None, None)

    async def infer(self, slot: Slot, request: InferRequest, *, timeout_s: float) -> Tensors:
        """As ``RegionPool.infer``."""
        end = monotonic() + timeout_s
        if slot.is_registered:
            try:
                return await self._transport.infer(request, timeout_s=timeout_s)
            except RegionForgotten:
                slot.is_registered = False
        await _whole(lambda: self._pool.register(slot, timeout_s=end - monotonic()))
        return await self._transport.infer(request, timeout_s=end - monotonic())


async def _whole(work: Callable[[], _T], undo: Callable[[], object] | None = None) -> _T:
    """What ``work`` returns in another thread. A task that is cancelled waits for it first."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if undo is not None and running.exception() is None:
            undo()
        raise
