"""What a client needs of its server, and how it waits: by the event loop, and by threads for what blocks."""

from __future__ import annotations

import asyncio
from asyncio import sleep as sleep
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from onestream.client import _link
from onestream.client._link import Link
from onestream.client._transports import open_async_transport
from onestream.client._transports.base import Address
from onestream.client._transports.shared_memory import RegionPool, Slot
from onestream.client._transports.transport_aio import AsyncTransport
from onestream.client.calls import Limits
from onestream.client.errors import ClientClosed
from onestream.client.images import EncodedImage, ImageInput

_T = TypeVar("_T")


class AsyncLink:
    """``Link`` for one event loop, the one that runs at its first use.

    Streams, and making regions, run in threads: these have a ``Link`` of their own. A transport that is given has none.
    """

    def __init__(self, to: Address | AsyncTransport, *, shared_memory: bool) -> None:
        if shared_memory and not isinstance(to, Address):
            raise ValueError("shared_memory=True, which needs an address; expected no transport")
        self.transport = open_async_transport(to) if isinstance(to, Address) else to
        self._address = to if isinstance(to, Address) else None
        self._threads = Link(to, shared_memory=True) if isinstance(to, Address) and shared_memory else None
        self.regions = None if self._threads is None else self._threads.regions
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    @property
    def for_streams(self) -> object:
        """The transport whose conversations threads may hold. Raises ClientClosed after ``close``."""
        self._check_open()
        if self._threads is None and self._address is not None:
            self._threads = Link(self._address, shared_memory=False)
        return self.transport if self._threads is None else self._threads.transport

    def check(self) -> None:
        """Raise ClientClosed after ``close``, and RuntimeError in another event loop."""
        self._check_open()
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            raise RuntimeError("this AsyncClient belongs to another event loop; make one in each")
        self._loop = loop

    async def close(self) -> None:
        """End the connection, every call and every stream, and remove shared memory. May be called twice."""
        self._closed = True
        await self.transport.close()
        if self._threads is not None:
            await asyncio.to_thread(self._threads.close)

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed(f"the client of {self.transport.url} is closed")


@asynccontextmanager
async def filled(regions: RegionPool, image: EncodedImage, *, timeout_s: float) -> AsyncIterator[Slot]:
    """As ``RegionPool.filled``: a region whose request was cancelled is not used again."""
    held = regions.filled(image, timeout_s=timeout_s)
    slot = await whole(held.__enter__, undo=lambda: held.__exit__(asyncio.CancelledError, None, None))
    try:
        yield slot
    except BaseException as error:
        held.__exit__(type(error), error, error.__traceback__)
        raise
    held.__exit__(None, None, None)


async def encode(image: ImageInput, limits: Limits) -> EncodedImage:
    """As ``images.encode``, in a thread: the event loop goes on while files are read."""
    return await asyncio.to_thread(_link.encode, image, limits)


async def encoded_bytes(image: ImageInput, limits: Limits) -> bytes:
    """The encoded image. Reading files and encoding pixels takes a thread."""
    if isinstance(image, bytes):
        return _link.encoded_bytes(image, limits)
    return await asyncio.to_thread(_link.encoded_bytes, image, limits)


async def whole(work: Callable[[], _T], undo: Callable[[], object] | None = None) -> _T:
    """What ``work`` returns in another thread. A task that is cancelled waits for it first."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if undo is not None and running.exception() is None:
            undo()
        raise
