"""Keep-alive HTTP/1.1 connections to one server that any thread may borrow."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from socket import SHUT_RDWR
from threading import Lock
from time import monotonic

from client.errors import CannotConnect, ClientClosed, TimedOut

_READ_SIZE = 1 << 16


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete HTTP answer of any status."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes


class HttpPool:
    """As many connections as there are calls at the same time; idle ones are used again."""

    def __init__(
        self, host: str, port: int, *, tls: bool, connect_timeout_s: float, base_path: str, token: str | None = None
    ) -> None:
        """``host`` without brackets, also for IPv6; ``base_path`` is put before every path, ``token`` sent with it."""
        self._host, self._port, self._base_path = host, port, base_path.rstrip("/")
        self._authorization = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._tls_context = ssl.create_default_context() if tls else None
        self._connect_timeout_s = connect_timeout_s
        self._lock = Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._busy: set[http.client.HTTPConnection] = set()
        self._closed = False

    @property
    def url(self) -> str:
        """The address in full."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._tls_context else 'http'}://{host}:{self._port}{self._base_path}"

    def exchange(
        self,
        method: str,
        path: str,
        *,
        timeout_s: float,
        body: Sequence[bytes] = (),
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send one request, its body in parts, and read the whole answer.

        Raises CannotConnect, TimedOut or ClientClosed; an HTTP status is never an error here.
        """
        deadline = monotonic() + timeout_s
        all_headers = {**(headers or {}), **self._authorization, "Content-Length": str(sum(len(part) for part in body))}
        while True:
            connection, is_reused = self._take(deadline, timeout_s)
            keep = False
            try:
                _limit(connection, deadline)
                # A proxy may answer 413 and hang up before it has read the body: its answer counts.
                with suppress(BrokenPipeError, ConnectionResetError):
                    connection.request(method, self._base_path + path, iter(body), all_headers)
                response = connection.getresponse()
                answer = Answer(response.status, response.headers, _read(connection, response, deadline))
                keep = not response.will_close
            except TimeoutError:
                raise self._timed_out(timeout_s) from None
            except (http.client.HTTPException, OSError) as error:
                if self._closed:
                    raise ClientClosed(f"the client of {self.url} was closed during the call") from None
                if is_reused and isinstance(error, ConnectionError):
                    # The server closed this idle connection before the request reached it.
                    continue
                raise self._cannot_connect(f"the connection broke ({error or type(error).__name__})") from None
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
                raise ClientClosed(f"the client of {self.url} is closed")
            if self._idle:
                connection = self._idle.pop()
                self._busy.add(connection)
                return connection, True
        remaining_s = deadline - monotonic()
        if remaining_s <= 0:
            raise self._timed_out(timeout_s)
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
            raise self._cannot_connect(f"no connection within {within_s:.3g} s") from None
        except (OSError, UnicodeError) as error:
            raise self._cannot_connect(str(error)) from None
        return connection

    def _give_back(self, connection: http.client.HTTPConnection, *, keep: bool) -> None:
        with self._lock:
            self._busy.discard(connection)
            if keep and not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    def _timed_out(self, timeout_s: float) -> TimedOut:
        return TimedOut(f"no answer from {self.url} within {timeout_s:.3g} s")

    def _cannot_connect(self, seen: str) -> CannotConnect:
        return CannotConnect(
            f"cannot reach {self.url}: {seen}; expected a Triton server that speaks HTTP there (port 8000 unless "
            "told otherwise; for its gRPC port write grpc://host:8001)"
        )


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
