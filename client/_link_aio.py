"""What a client needs of its server, and how it waits: by the event loop, and by threads for what blocks."""

from __future__ import annotations

import asyncio
import os
import weakref
from asyncio import sleep as sleep
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from onestream.client import images
from onestream.client._transports import open_async_transport, open_transport
from onestream.client._transports.base import InferRequest, Tensors
from onestream.client._transports.shared_memory import RegionPool, Slot, shut_down
from onestream.client._transports.shared_memory_aio import AsyncRegions
from onestream.client._transports.transport import Transport
from onestream.client._transports.transport_aio import AsyncTransport
from onestream.client.errors import ClientClosed
from onestream.client.images import EncodedImage, ImageInput


class AsyncLink:
    """``Link`` for one event loop, the one that runs at its first use."""

    def __init__(
        self,
        url: str,
        *,
        connect_timeout_s: float,
        token: str | None,
        max_answer_bytes: int,
        shared_memory: bool,
        transport: AsyncTransport | None,
    ) -> None:
        """Options as of ``AsyncClient``. A ``transport`` that is given has no regions."""
        if shared_memory and transport is not None:
            raise ValueError("shared_memory=True, which needs an address; expected no transport")
        self.transport = transport or open_async_transport(
            url, connect_timeout_s=connect_timeout_s, token=token, max_answer_bytes=max_answer_bytes
        )
        self._open_for_threads: Callable[[], Transport] | None = None
        if transport is None:
            self._open_for_threads = lambda: open_transport(
                url, connect_timeout_s=connect_timeout_s, token=token, max_answer_bytes=max_answer_bytes
            )
        self._threads: tuple[Transport, RegionPool] | None = None
        self._end_threads: Callable[[], object] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._regions = AsyncRegions(self._for_threads()[1], self.transport) if shared_memory else None

    @property
    def has_regions(self) -> bool:
        """Whether images go by shared memory."""
        return self._regions is not None

    @property
    def for_streams(self) -> object:
        """The transport whose conversations threads may hold. Raises ClientClosed after ``close``."""
        self._check_open()
        return self.transport if self._open_for_threads is None else self._for_threads()[0]

    def check(self) -> None:
        """Raise ClientClosed after ``close``, and RuntimeError in another event loop."""
        self._check_open()
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            raise RuntimeError("this AsyncClient belongs to another event loop; make one in each")
        self._loop = loop

    @asynccontextmanager
    async def filled(self, image: EncodedImage, *, timeout_s: float) -> AsyncIterator[Slot]:
        """A region that holds the image, as ``RegionPool.filled``."""
        assert self._regions is not None
        async with self._regions.filled(image, timeout_s=timeout_s) as slot:
            yield slot

    async def infer(self, slot: Slot, request: InferRequest, *, timeout_s: float) -> Tensors:
        """All outputs for a request about the image in a region."""
        assert self._regions is not None
        return await self._regions.infer(slot, request, timeout_s=timeout_s)

    async def close(self) -> None:
        """End the connection, every call and every stream, and remove shared memory. May be called twice."""
        self._closed = True
        await self.transport.close()
        if self._end_threads is not None:
            await asyncio.to_thread(self._end_threads)

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed(f"the client of {self.transport.url} is closed")

    def _for_threads(self) -> tuple[Transport, RegionPool]:
        """A connection and regions that threads may use: streams, and making regions, run in threads of their own."""
        if self._threads is None:
            assert self._open_for_threads is not None
            transport = self._open_for_threads()
            self._threads = transport, RegionPool(transport)
            # Also runs when the interpreter ends, so no shared memory stays behind.
            self._end_threads = weakref.finalize(self, shut_down, self._threads[1], transport, os.getpid())
        return self._threads


async def encode(image: ImageInput, *, max_body_bytes: int) -> EncodedImage:
    """As ``images.encode``, in a thread: the event loop goes on while files are read."""
    return await asyncio.to_thread(images.encode, image, max_body_bytes=max_body_bytes)


async def encoded_bytes(image: ImageInput, *, max_body_bytes: int) -> bytes:
    """The encoded image. Reading files and encoding pixels takes a thread."""
    if isinstance(image, bytes):
        return images.encode(image, max_body_bytes=max_body_bytes).to_bytes()
    return await asyncio.to_thread(lambda: images.encode(image, max_body_bytes=max_body_bytes).to_bytes())
