# Made of transport_aio.py by `make sync`: change that.
"""The calls that every transport carries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from onestream.client._transports.base import InferRequest, SharedMemoryRegion, Tensors


class Transport(Protocol):
    """A connection to one server. Its methods may be called many times at once.

    Methods raise the errors of ``onestream.client.errors``: CannotConnect, TimedOut, ServerRefused and its
    subclasses, BadImage, UnexpectedResponse, ClientClosed. ``timeout_s`` bounds the whole call, connecting
    included. Nothing is retried here, except what cannot have reached the server.
    """

    @property
    def url(self) -> str:
        """The address in full, such as ``grpc://127.0.0.1:8001``."""

    def infer(self, request: InferRequest, *, timeout_s: float) -> Tensors:
        """All outputs of the model for this request."""

    def is_ready(self, model: str | None, *, timeout_s: float) -> bool:
        """Whether the server (``None``) or the model says that it is ready."""

    def server_metadata(self, *, timeout_s: float) -> Mapping[str, Any]:
        """``name``, ``version`` and ``extensions`` of the server."""

    def model_config(self, model: str, *, timeout_s: float) -> Mapping[str, Any]:
        """The model's configuration with the field names of Triton's ``model_config.proto``."""

    def model_statistics(self, model: str, *, timeout_s: float) -> Sequence[Mapping[str, Any]]:
        """One mapping per served version, of every model for ``""``; field names of Triton's statistics extension."""

    def register_region(self, region: SharedMemoryRegion, *, timeout_s: float) -> None:
        """Let the server map the region; ServerRefused when it cannot, or has one of this name."""

    def unregister_region(self, region_name: str, *, timeout_s: float) -> None:
        """Let the server unmap the region; ServerRefused while a request still uses it."""

    def close(self) -> None:
        """End the connection and every call in progress; these raise ClientClosed. May be called twice."""


class Calls:
    """These methods for a protocol whose ``calls`` describe them, and that carries one by ``_call``."""

    calls: Any
    """The module with the calls of the protocol: ``http_calls`` or ``grpc_calls``."""

    def _call(self, call: Any, timeout_s: float) -> Any:
        raise NotImplementedError

    def infer(self, request: InferRequest, *, timeout_s: float) -> Tensors:
        """All outputs of the model for this request."""
        tensors: Tensors = self._call(self.calls.infer(request, timeout_s=timeout_s), timeout_s)
        return tensors

    def is_ready(self, model: str | None, *, timeout_s: float) -> bool:
        """Whether the server (``None``) or the model says that it is ready."""
        return bool(self._call(self.calls.is_ready(model), timeout_s))

    def server_metadata(self, *, timeout_s: float) -> Mapping[str, Any]:
        """``name``, ``version`` and ``extensions`` of the server."""
        metadata: Mapping[str, Any] = self._call(self.calls.server_metadata(), timeout_s)
        return metadata

    def model_config(self, model: str, *, timeout_s: float) -> Mapping[str, Any]:
        """The model's configuration."""
        config: Mapping[str, Any] = self._call(self.calls.model_config(model), timeout_s)
        return config

    def model_statistics(self, model: str, *, timeout_s: float) -> Sequence[Mapping[str, Any]]:
        """One mapping per served version."""
        rows: Sequence[Mapping[str, Any]] = self._call(self.calls.model_statistics(model), timeout_s)
        return rows

    def register_region(self, region: SharedMemoryRegion, *, timeout_s: float) -> None:
        """Let the server map the region."""
        self._call(self.calls.register_region(region), timeout_s)

    def unregister_region(self, region_name: str, *, timeout_s: float) -> None:
        """Let the server unmap the region."""
        self._call(self.calls.unregister_region(region_name), timeout_s)
