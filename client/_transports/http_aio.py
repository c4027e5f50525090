"""The inference protocol over HTTP for one event loop, on aiohttp."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from onestream.client._transports import http_calls
from onestream.client._transports.base import InferRequest, Tensors
from onestream.client._transports.http_calls import Answer, Call
from onestream.client.errors import OnestreamError
from onestream.wire.install import install_command

try:
    import aiohttp
    from yarl import URL
except ImportError:
    raise ImportError(f"AsyncClient over HTTP needs aiohttp: {install_command('async')}") from None

_T = TypeVar("_T")


@dataclass(slots=True)
class _Progress:
    """The progress of one attempt."""

    connected: bool = False
    reused: bool = False


class AsyncHttpTransport:
    """HTTP/1.1 with one keep-alive connection for each call in progress, which is closed when its task is cancelled."""

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
        self._url = http_calls.base_url(host, port, tls=tls, base_path=base_path)
        self._tls_context = ssl.create_default_context() if tls else None
        self._connect_timeout_s = connect_timeout_s
        self._token = token
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    @property
    def url(self) -> str:
        """The address in full."""
        return self._url

    async def infer(self, request: InferRequest, *, timeout_s: float) -> Tensors:
        """All outputs of the model for this request."""
        return await self._call(http_calls.infer(request, timeout_s=timeout_s), timeout_s)

    async def is_ready(self, model: str | None, *, timeout_s: float) -> bool:
        """Whether the server (``None``) or the model says that it is ready."""
        return await self._call(http_calls.is_ready(model), timeout_s)

    async def server_metadata(self, *, timeout_s: float) -> Mapping[str, Any]:
        """``name``, ``version`` and ``extensions`` of the server."""
        return await self._call(http_calls.server_metadata(), timeout_s)

    async def model_config(self, model: str, *, timeout_s: float) -> Mapping[str, Any]:
        """The model's configuration."""
        return await self._call(http_calls.model_config(model), timeout_s)

    async def model_statistics(self, model: str, *, timeout_s: float) -> Sequence[Mapping[str, Any]]:
        """One mapping per served version."""
        return await self._call(http_calls.model_statistics(model), timeout_s)

    async def close(self) -> None:
        """Close every connection, which ends every call in progress. May be called twice."""
        self._closed = True
        if self._session is not None:
            await self._session.close()

    async def _call(self, call: Call[_T], timeout_s: float) -> _T:
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            progress = _Progress()
            try:
                return call.result(await self._exchange(call, deadline, progress))
            except (asyncio.TimeoutError, TimeoutError):
                if not progress.connected:
                    within_s = min(self._connect_timeout_s, timeout_s)
                    raise http_calls.cannot_connect(self._url, f"no connection within {within_s:.3g} s") from None
                raise http_calls.timed_out(self._url, timeout_s) from None
            except (aiohttp.ClientError, OSError) as error:
                if self._closed:
                    raise http_calls.closed_during_call(self._url) from None
                if progress.reused and isinstance(error, aiohttp.ClientConnectionError):
                    # The server closed this idle connection before the request reached it.
                    continue
                if not progress.connected:
                    raise http_calls.cannot_connect(self._url, str(error)) from None
                raise self._failure(error) from None

    def _failure(self, error: Exception) -> OnestreamError:
        """The error for an exchange that broke, by who broke it."""
        if not isinstance(error, aiohttp.ClientResponseError):
            return http_calls.broke(self._url, error)
        # aiohttp's error for what it cannot parse, which its message shows in lines.
        seen = " ".join(error.message.split())
        if seen.startswith("Bad status line") and "b'HTTP/" not in seen:
            return http_calls.no_http(self._url, seen.rpartition(": ")[2])
        return http_calls.malformed(self._url, seen)

    async def _exchange(self, call: Call[Any], deadline: float, progress: _Progress) -> Answer:
        remaining_s = deadline - asyncio.get_running_loop().time()
        if remaining_s <= 0:
            raise TimeoutError
        async with self._open_session().request(
            call.method,
            # Names in the path are quoted already.
            URL(self._url + call.path, encoded=True),
            data=_parts(call.body) if call.body else None,
            headers=call.all_headers(self._token),
            timeout=aiohttp.ClientTimeout(total=remaining_s, sock_connect=self._connect_timeout_s),
            allow_redirects=False,
            trace_request_ctx=progress,
        ) as response:
            allowed = call.allowed_bytes(response.status)
            http_calls.declared_bytes(
                self._url,
                response.headers.getall("Content-Length", []),
                # aiohttp refuses an answer with both.
                is_chunked=False,
                allowed=allowed,
            )
            body = bytearray()
            async for part in response.content.iter_any():
                body += part
                http_calls.require_within(len(body), url=self._url, allowed=allowed)
            return Answer(self._url, response.status, response.headers, bytes(body))

    def _open_session(self) -> aiohttp.ClientSession:
        if self._closed:
            raise http_calls.closed(self._url)
        if self._session is None:
            # A session belongs to the loop that runs when it is made, so it is made by the first call.
            trace = aiohttp.TraceConfig()
            trace.on_connection_create_end.append(_connected)
            trace.on_connection_reuseconn.append(_reused)
            self._session = aiohttp.ClientSession(
                # Calls in progress are bounded by the caller; a call must not wait for another's connection.
                connector=aiohttp.TCPConnector(limit=0, ssl=self._tls_context or True),
                cookie_jar=aiohttp.DummyCookieJar(),
                # What grows when it is unpacked is refused, not unpacked.
                auto_decompress=False,
                trace_configs=[trace],
            )
        return self._session


async def _parts(body: Sequence[bytes]) -> AsyncIterator[bytes]:
    for part in body:
        yield part


async def _connected(_session: object, context: Any, _parameters: object) -> None:
    context.trace_request_ctx.connected = True


async def _reused(_session: object, context: Any, _parameters: object) -> None:
    context.trace_request_ctx.connected = context.trace_request_ctx.reused = True
