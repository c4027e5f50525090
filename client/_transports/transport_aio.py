"""The calls that every transport carries; ``transport`` is made of this by ``make sync``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from onestream.client._transports.base import InferRequest, SharedMemoryRegion, Tensors


class AsyncTransport(Protocol):
    """A connection to one server. Its methods may be called many times at once.

    Methods raise the errors of ``onestream.client.errors``: CannotConnect, TimedOut, ServerRefused and its
    subclasses, BadImage, UnexpectedResponse, ClientClosed. ``timeout_s`` bounds the whole call, connecting
    included. Nothing is retried here, except what cannot have reached the server.
    """

    @property
    def url(self) -> str:
        """The address in full, such as ``grpc://127.0.0.1:8001``."""

    async def infer(self, request: InferRequest, *, timeout_s: float) -> Tensors:
        """All outputs of the model for this request."""

    async def is_ready(self, model: str | None, *, timeout_s: float) -> bool:
        """Whether the server (``None``) or the model says that it is ready."""

    async def server_metadata(self, *, timeout_s: float) -> Mapping[str, Any]:
        """``name``, ``version`` and ``extensions`` of the server."""

    async def model_config(self, model: str, *, timeout_s: float) -> Mapping[str, Any]:
        """The model's configuration with the field names of Triton's ``model_config.proto``."""

    async def model_statistics(self, model: str, *, timeout_s: float) -> Sequence[Mapping[str, Any]]:
        """One mapping per served version, of every model for ``""``; field names of Triton's statistics extension."""

    async def register_region(self, region: SharedMemoryRegion, *, timeout_s: float) -> None:
        """Let the server map the region; ServerRefused when it cannot, or has one of this name."""

    async def unregister_region(self, region_name: str, *, timeout_s: float) -> None:
        """Let the server unmap the region; ServerRefused while a request still uses it."""

    async def close(self) -> None:
        """End the connection and every call in progress; these raise ClientClosed. May be called twice."""


class AsyncCalls:
    """These methods for a protocol whose ``calls`` describe them, and that carries one by ``_call``."""

    calls: Any
    """The module with the calls of the protocol: ``http_calls`` or ``grpc_calls``."""

    async def _call(self, call: Any, timeout_s: float) -> Any:
        raise NotImplementedError

    async def infer(self, request: InferRequest, *, timeout_s: float) -> Tensors:
        """All outputs of the model for this request."""
        tensors: Tensors = await self._call(self.calls.infer(request, timeout_s=timeout_s), timeout_s)
        return tensors

    async def is_ready(self, model: str | None, *, timeout_s: float) -> bool:
        """Whether the server (``None``) or the model says that it is ready."""
        return bool(await self._call(self.calls.is_ready(model), timeout_s))

    async def server_metadata(self, *, timeout_s: float) -> Mapping[str, Any]:
        """``name``, ``version`` and ``extensions`` of the server."""
        metadata: Mapping[str, Any] = await self._call(self.calls.server_metadata(), timeout_s)
        return metadata

    async def model_config(self, model: str, *, timeout_s: float) -> Mapping[str, Any]:
        """The model's configuration."""
        config: Mapping[str, Any] = await self._call(self.calls.model_config(model), timeout_s)
        return config

    async def model_statistics(self, model: str, *, timeout_s: float) -> Sequence[Mapping[str, Any]]:
        """One mapping per served version."""
        rows: Sequence[Mapping[str, Any]] = await self._call(self.calls.model_statistics(model), timeout_s)
        return rows

    async def register_region(self, region: SharedMemoryRegion, *, timeout_s: float) -> None:
        """Let the server map the region."""
        await self._call(self.calls.register_region(region), timeout_s)

    async def unregister_region(self, region_name: str, *, timeout_s: float) -> None:
        """Let the server unmap the region."""
        await self._call(self.calls.unregister_region(region_name), timeout_s)
