"""The inference protocol over gRPC for one event loop."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]

from onestream.client._transports import grpc_calls
from onestream.client._transports.base import DEFAULT_MAX_ANSWER_BYTES
from onestream.client._transports.grpc_calls import Call
from onestream.client._transports.transport_aio import AsyncCalls
from onestream.client.errors import ClientClosed

_T = TypeVar("_T")


class AsyncGrpcTransport(AsyncCalls):
    """One HTTP/2 connection. Cancelling a task that waits for an answer cancels its call, of which the server hears."""

    calls = grpc_calls

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: bool,
        connect_timeout_s: float,
        token: str | None = None,
        max_answer_bytes: int = DEFAULT_MAX_ANSWER_BYTES,
    ) -> None:
        """``host`` without brackets, also for IPv6; ``token`` only with ``tls``. Connects at the first call."""
        self._target = grpc_calls.address(host, port)
        self._credentials = grpc_calls.credentials(token) if tls else None
        self._options = grpc_calls.channel_options(connect_timeout_s, max_answer_bytes=max_answer_bytes)
        self._channel: Any = None
        self._in_progress: set[Any] = set()
        self._closed = False

    @property
    def url(self) -> str:
        """The address in full."""
        return f"{'grpcs' if self._credentials else 'grpc'}://{self._target}"

    async def close(self) -> None:
        """Close the channel, which ends every call in progress. May be called twice."""
        self._closed = True
        # Emptied first: a call that is cancelled and no longer in it was ended here, not by its task.
        calls, self._in_progress = self._in_progress, set()
        for call in calls:
            call.cancel()
        if self._channel is not None:
            await self._channel.close()

    async def _call(self, call: Call[_T], timeout_s: float) -> _T:
        if self._closed:
            raise ClientClosed(f"the client of {self.url} is closed")
        if self._channel is None:
            self._connect()
        # Without a deserializer: what cannot be read is found where all answers are read.
        method = self._channel.unary_unary(
            grpc_calls.path(call.method), request_serializer=type(call.message).SerializeToString
        )
        running = method(call.message, timeout=timeout_s, metadata=call.metadata)
        self._in_progress.add(running)
        try:
            answer = await running
        except grpc.RpcError as error:
            raise grpc_calls.translate(
                error, url=self.url, timeout_s=timeout_s, model=call.model, closed=self._closed
            ) from None
        except asyncio.CancelledError:
            if running not in self._in_progress:
                raise ClientClosed(f"the client of {self.url} was closed during the call") from None
            raise
        finally:
            self._in_progress.discard(running)
        return call.result(answer, url=self.url)

    def _connect(self) -> None:
        # A channel belongs to the loop that runs when it is made, so it is made by the first call.
        self._channel = (
            grpc.aio.secure_channel(self._target, self._credentials, options=self._options)
            if self._credentials
            else grpc.aio.insecure_channel(self._target, options=self._options)
        )
