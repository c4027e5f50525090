"""``connection`` for an event loop."""

from __future__ import annotations

import asyncio
import ssl
from time import monotonic

import h11

from onestream.client._transports.connection import MOST_HEAD_BYTES

_MOST_UNREAD_BYTES = 1 << 18


class AsyncConnection(asyncio.Protocol):
    """As ``Connection``. It reads while it writes, as a server may answer and hang up before it has read everything."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._unread = bytearray()
        self._ended = self._lost = self._full = False
        self._failure: Exception | None = None
        self._waiting: asyncio.Future[None] | None = None
        self.deadline = 0.0
        self.http = h11.Connection(h11.CLIENT, MOST_HEAD_BYTES)

    @classmethod
    async def open(cls, host: str, port: int, *, tls: ssl.SSLContext | None, within_s: float) -> AsyncConnection:
        """Connect to the first address of the host that takes it, and agree on TLS. Raises OSError."""
        loop = asyncio.get_running_loop()
        handshake_s = None if tls is None else within_s
        connecting = loop.create_connection(cls, host, port, ssl=tls, ssl_handshake_timeout=handshake_s)
        try:
            _, connection = await asyncio.wait_for(connecting, within_s)
        except asyncio.TimeoutError:
            raise TimeoutError from None
        return connection

    async def read(self) -> bytes:
        """What came, at least a byte; none where the other side has ended the connection. Raises OSError."""
        while not self._unread and not self._ended:
            await self._wait()
        if not self._unread and self._failure is not None:
            raise ConnectionResetError(str(self._failure))
        data = bytes(self._unread)
        self._unread.clear()
        if not self._ended:
            self._transport.resume_reading()
        return data

    async def write(self, data: bytes) -> None:
        """Send the bytes. Raises OSError."""
        if not self._lost:
            self._transport.write(data)
        while self._full and not self._lost:
            await self._wait()
        if self._lost:
            raise ConnectionResetError("the other side ended the connection")

    @property
    def is_quiet(self) -> bool:
        """Whether the other side has neither closed the connection nor sent unsolicited bytes."""
        return not self._unread and not self._ended

    def shut_down(self) -> None:
        """Wake the task that waits on this connection."""
        self._transport.abort()

    def close(self) -> None:
        """Give the connection up."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._unread += data
        if len(self._unread) > _MOST_UNREAD_BYTES:
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._ended = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._failure = exc
        self._ended = self._lost = True
        self._wake()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._wake()

    async def _wait(self) -> None:
        """Until something happens. Raises TimeoutError at the deadline."""
        self._waiting = self._loop.create_future()
        timer = self._loop.call_later(self.deadline - monotonic(), self._wake)
        try:
            await self._waiting
        finally:
            timer.cancel()
        if monotonic() >= self.deadline:
            raise TimeoutError

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
