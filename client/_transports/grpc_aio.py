"""The inference protocol over gRPC for one event loop."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]

from onestream.client._transports import grpc_calls
from onestream.client._transports.base import Address
from onestream.client._transports.grpc_calls import Call
from onestream.client._transports.transport_aio import AsyncCalls

_T = TypeVar("_T")


class AsyncGrpcTransport(grpc_calls.Endpoint, AsyncCalls):
    """One HTTP/2 connection. Cancelling a task that waits for an answer cancels its call, of which the server hears."""

    calls = grpc_calls

    def __init__(self, at: Address) -> None:
        super().__init__(at)
        self._in_progress: set[Any] = set()

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
            raise self._is_closed()
        if self._channel is None:
            # A channel belongs to the loop that runs when it is made, so it is made by the first call.
            self._channel = self._open(grpc.aio)
        running = self._method(call)(call.message, timeout=timeout_s, metadata=call.metadata)
        self._in_progress.add(running)
        try:
            answer = await running
        except grpc.RpcError as error:
            raise self._translated(error, timeout_s, call.model) from None
        except asyncio.CancelledError:
            if running not in self._in_progress:
                raise self._closed_during_call() from None
            raise
        finally:
            self._in_progress.discard(running)
        return call.result(answer, url=self.url)
