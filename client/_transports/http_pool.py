"""Keep-alive HTTP/1.1 connections to one server that any thread may borrow."""

from __future__ import annotations

import http.client
import ssl
from contextlib import suppress
from threading import Lock
from time import monotonic
from typing import Any

from onestream.client._transports import http_calls
from onestream.client._transports.http_calls import Answer, Call
from onestream.client._transports.http_connection import Connection
from onestream.client.errors import OnestreamError


class HttpPool:
    """A connection for each call in progress; idle ones are used again."""

    def __init__(
        self, host: str, port: int, *, tls: bool, connect_timeout_s: float, base_path: str, token: str | None = None
    ) -> None:
        """``host`` without brackets, also for IPv6; ``base_path`` is put before every path, ``token`` sent with it."""
        self._host, self._port, self._base_path = host, port, base_path.rstrip("/")
        self._token = token
        self._tls_context = ssl.create_default_context() if tls else None
        self._connect_timeout_s = connect_timeout_s
        self._lock = Lock()
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._closed = False

    @property
    def url(self) -> str:
        """The address in full."""
        tls = self._tls_context is not None
        return http_calls.base_url(self._host, self._port, tls=tls, base_path=self._base_path)

    def exchange(self, call: Call[Any], *, timeout_s: float) -> Answer:
        """Send one request, its body in parts, and read the whole answer, all before one deadline.

        Raises CannotConnect, TimedOut, ClientClosed or UnexpectedResponse; an HTTP status is never an error here.
        """
        deadline = monotonic() + timeout_s
        while True:
            connection, is_reused = self._take(deadline, timeout_s)
            keep = False
            try:
                answer, keep = self._answer(connection, call)
            except TimeoutError:
                raise http_calls.timed_out(self.url, timeout_s) from None
            except (http.client.HTTPException, OSError) as error:
                if self._closed:
                    raise http_calls.closed_during_call(self.url) from None
                if is_reused and isinstance(error, ConnectionError):
                    # The server closed this idle connection before the request reached it.
                    continue
                raise self._failure(error) from None
            finally:
                self._give_back(connection, keep=keep)
            return answer

    def close(self) -> None:
        """Close every connection, which ends every call in progress. May be called twice."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for connection in self._busy:
                connection.shut_down()
        for connection in idle:
            connection.close()

    def _answer(self, connection: Connection, call: Call[Any]) -> tuple[Answer, bool]:
        """The answer to the call, and whether the connection may be used again."""
        # A proxy may answer 413 and hang up before it has read the body: its answer counts.
        with suppress(BrokenPipeError, ConnectionResetError):
            path = self._base_path + call.path
            connection.request(call.method, path, iter(call.body), call.all_headers(self._token))
        with connection.answer() as response:
            allowed = call.allowed_bytes(response.status)
            length = http_calls.declared_bytes(
                self.url,
                response.headers.get_all("Content-Length", []),
                is_chunked=response.chunked,
                allowed=allowed,
            )
            body = bytearray()
            for part in response.parts(length, allowed=allowed):
                body += part
                http_calls.require_within(len(body), url=self.url, allowed=allowed)
        # After a status of 100 to 199 the answer is still to come.
        keep = response.status >= 200 and not response.will_close
        return Answer(self.url, response.status, response.headers, bytes(body)), keep

    def _failure(self, error: Exception) -> OnestreamError:
        """The error for an exchange that broke, by who broke it."""
        is_cut = isinstance(error, http.client.RemoteDisconnected)  # which is a BadStatusLine, too
        if isinstance(error, http.client.BadStatusLine) and not is_cut and not str(error).startswith("HTTP/"):
            return http_calls.no_http(self.url, ascii(str(error)))
        if isinstance(error, (OSError, http.client.IncompleteRead)):
            return http_calls.broke(self.url, error)
        return http_calls.malformed(self.url, str(error) or type(error).__name__)

    def _take(self, deadline: float, timeout_s: float) -> tuple[Connection, bool]:
        """An open connection, and whether it was used before."""
        idle = self._take_idle()
        while idle is not None:
            idle.deadline = deadline
            if idle.is_quiet:
                return idle, True
            self._give_back(idle, keep=False)
            idle = self._take_idle()
        remaining_s = deadline - monotonic()
        if remaining_s <= 0:
            raise http_calls.timed_out(self.url, timeout_s)
        connection = self._connect(min(self._connect_timeout_s, remaining_s))
        connection.deadline = deadline
        with self._lock:
            self._busy.add(connection)
        return connection, False

    def _take_idle(self) -> Connection | None:
        with self._lock:
            if self._closed:
                raise http_calls.closed(self.url)
            connection = self._idle.pop() if self._idle else None
            if connection is not None:
                self._busy.add(connection)
            return connection

    def _connect(self, within_s: float) -> Connection:
        connection = Connection(self._host, self._port, tls=self._tls_context, deadline=monotonic() + within_s)
        try:
            connection.connect()
        except TimeoutError:
            raise http_calls.cannot_connect(self.url, f"no connection within {within_s:.3g} s") from None
        except (OSError, UnicodeError) as error:
            raise http_calls.cannot_connect(self.url, str(error)) from None
        return connection

    def _give_back(self, connection: Connection, *, keep: bool) -> None:
        with self._lock:
            self._busy.discard(connection)
            if keep and not self._closed:
                self._idle.append(connection)
                return
        connection.close()
