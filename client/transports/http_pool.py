"""Keep-alive HTTP/1.1 connections to one server that any thread may borrow."""

from __future__ import annotations

import http.client
import ssl
from contextlib import suppress
from socket import SHUT_RDWR
from threading import Lock
from time import monotonic
from typing import Any

from client.transports import http_calls
from client.transports.http_calls import Answer, Call

_READ_SIZE = 1 << 16


class HttpPool:
    """As many connections as there are calls at the same time; idle ones are used again."""

    def __init__(
        self, host: str, port: int, *, tls: bool, connect_timeout_s: float, base_path: str, token: str | None = None
    ) -> None:
        """``host`` without brackets, also for IPv6; ``base_path`` is put before every path, ``token`` sent with it."""
        self._host, self._port, self._base_path = host, port, base_path.rstrip("/")
        self._token = token
        self._tls_context = ssl.create_default_context() if tls else None
        self._connect_timeout_s = connect_timeout_s
        self._lock = Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._busy: set[http.client.HTTPConnection] = set()
        self._closed = False

    @property
    def url(self) -> str:
        """The address in full."""
        tls = self._tls_context is not None
        return http_calls.base_url(self._host, self._port, tls=tls, base_path=self._base_path)

    def exchange(self, call: Call[Any], *, timeout_s: float) -> Answer:
        """Send one request, its body in parts, and read the whole answer.

        Raises CannotConnect, TimedOut or ClientClosed; an HTTP status is never an error here.
        """
        deadline = monotonic() + timeout_s
        headers = call.all_headers(self._token)
        while True:
            connection, is_reused = self._take(deadline, timeout_s)
            keep = False
            try:
                _limit(connection, deadline)
                # A proxy may answer 413 and hang up before it has read the body: its answer counts.
                with suppress(BrokenPipeError, ConnectionResetError):
                    connection.request(call.method, self._base_path + call.path, iter(call.body), headers)
                response = connection.getresponse()
                answer = Answer(self.url, response.status, response.headers, _read(connection, response, deadline))
                keep = not response.will_close
            except TimeoutError:
                raise http_calls.timed_out(self.url, timeout_s) from None
            except (http.client.HTTPException, OSError) as error:
                if self._closed:
                    raise http_calls.closed_during_call(self.url) from None
                if is_reused and isinstance(error, ConnectionError):
                    # The server closed this idle connection before the request reached it.
                    continue
                raise http_calls.broke(self.url, error) from None
            finally:
                self._give_back(connection, keep=keep)
            return answer

    def close(self) -> None:
        """Close every connection, which ends every call in progress. May be called twice."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for connection in self._busy:
                # Wakes the thread that waits on it; that thread closes the connection.
                with suppress(OSError, AttributeError):
                    connection.sock.shutdown(SHUT_RDWR)
        for connection in idle:
            connection.close()

    def _take(self, deadline: float, timeout_s: float) -> tuple[http.client.HTTPConnection, bool]:
        """An open connection, and whether it was used before."""
        with self._lock:
            if self._closed:
                raise http_calls.closed(self.url)
            if self._idle:
                connection = self._idle.pop()
                self._busy.add(connection)
                return connection, True
        remaining_s = deadline - monotonic()
        if remaining_s <= 0:
            raise http_calls.timed_out(self.url, timeout_s)
        connection = self._connect(min(self._connect_timeout_s, remaining_s))
        with self._lock:
            self._busy.add(connection)
        return connection, False

    def _connect(self, within_s: float) -> http.client.HTTPConnection:
        connection = (
            http.client.HTTPSConnection(self._host, self._port, timeout=within_s, context=self._tls_context)
            if self._tls_context
            else http.client.HTTPConnection(self._host, self._port, timeout=within_s)
        )
        try:
            connection.connect()
        except TimeoutError:
            raise http_calls.cannot_connect(self.url, f"no connection within {within_s:.3g} s") from None
        except (OSError, UnicodeError) as error:
            raise http_calls.cannot_connect(self.url, str(error)) from None
        return connection

    def _give_back(self, connection: http.client.HTTPConnection, *, keep: bool) -> None:
        with self._lock:
            self._busy.discard(connection)
            if keep and not self._closed:
                self._idle.append(connection)
                return
        connection.close()


def _limit(connection: http.client.HTTPConnection, deadline: float) -> None:
    """Let the next operation on the socket end at the deadline."""
    remaining_s = deadline - monotonic()
    if remaining_s <= 0:
        raise TimeoutError
    if connection.sock is not None:
        connection.sock.settimeout(remaining_s)


def _read(connection: http.client.HTTPConnection, response: http.client.HTTPResponse, deadline: float) -> bytes:
    parts = []
    with response:
        while response.length != 0:
            _limit(connection, deadline)
            part = response.read1(_READ_SIZE)
            if not part:
                break
            parts.append(part)
        if response.length:
            raise http.client.IncompleteRead(b"".join(parts), response.length)
    return b"".join(parts)
