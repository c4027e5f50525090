"""The inference protocol over HTTP, with binary tensors, on the standard library.

``tritonclient.http`` is built on gevent, whose connections belong to the thread that opened them, so it is not
used: any thread may call this transport.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from onestream.client._transports import http_calls
from onestream.client._transports.base import InferRequest, SharedMemoryRegion, Tensors
from onestream.client._transports.http_calls import Call
from onestream.client._transports.http_pool import HttpPool

_T = TypeVar("_T")


class HttpTransport:
    """HTTP/1.1 with one keep-alive connection for each call in progress."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: bool,
        connect_timeout_s: float,
        base_path: str = "",
        token: str | None = None,
    ) -> None:
        """``host`` without brackets, also for IPv6; ``base_path`` is what a proxy puts before ``/v2``."""
        self._pool = HttpPool(
            host, port, tls=tls, connect_timeout_s=connect_timeout_s, base_path=base_path, token=token
        )

    @property
    def url(self) -> str:
        """The address in full."""
        return self._pool.url

    def infer(self, request: InferRequest, *, timeout_s: float) -> Tensors:
        """All outputs of the model for this request."""
        return self._call(http_calls.infer(request, timeout_s=timeout_s), timeout_s)

    def is_ready(self, model: str | None, *, timeout_s: float) -> bool:
        """Whether the server (``None``) or the model says that it is ready."""
        return self._call(http_calls.is_ready(model), timeout_s)

    def server_metadata(self, *, timeout_s: float) -> Mapping[str, Any]:
        """``name``, ``version`` and ``extensions`` of the server."""
        return self._call(http_calls.server_metadata(), timeout_s)

    def model_config(self, model: str, *, timeout_s: float) -> Mapping[str, Any]:
        """The model's configuration."""
        return self._call(http_calls.model_config(model), timeout_s)

    def model_statistics(self, model: str, *, timeout_s: float) -> Sequence[Mapping[str, Any]]:
        """One mapping per served version."""
        return self._call(http_calls.model_statistics(model), timeout_s)

    def register_region(self, region: SharedMemoryRegion, *, timeout_s: float) -> None:
        """Let the server map the region."""
        self._call(http_calls.register_region(region), timeout_s)

    def unregister_region(self, region_name: str, *, timeout_s: float) -> None:
        """Let the server unmap the region."""
        self._call(http_calls.unregister_region(region_name), timeout_s)

    def close(self) -> None:
        """Close every connection, which ends every call in progress."""
        self._pool.close()

    def _call(self, call: Call[_T], timeout_s: float) -> _T:
        return call.result(self._pool.exchange(call, timeout_s=timeout_s))
