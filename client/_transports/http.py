# Made of http_aio.py by `make sync`: change that.
"""The inference protocol over HTTP/1.1, with binary tensors.

The rules of HTTP are those of ``h11``, on which httpx stands, too. httpx itself bounds each operation on a socket, not
a call: a server that sends a byte now and then would hold it for hours.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from threading import Lock
from time import monotonic
from typing import Any

import h11

from onestream.client._transports import http_calls
from onestream.client._transports.base import Address
from onestream.client._transports.connection import Connection
from onestream.client._transports.http_calls import Answer, Call
from onestream.client._transports.transport import Calls
from onestream.client.errors import OnestreamError

_JOINED_BYTES = 1 << 16
"""Requests up to this size are sent at once."""


class HttpTransport(Calls):
    """One keep-alive connection for each call in progress; idle ones are used again."""

    calls = http_calls

    def __init__(self, at: Address) -> None:
        self._at, self._url = at, http_calls.base_url(at)
        self._tls = ssl.create_default_context() if at.tls else None
        self._lock = Lock()
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._closed = False

    @property
    def url(self) -> str:
        """The address in full."""
        return self._url

    def close(self) -> None:
        """Close every connection, which ends every call in progress. May be called twice."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for connection in self._busy:
                connection.shut_down()
        for connection in idle:
            connection.close()

    def _call(self, call: Call[Any], timeout_s: float) -> Any:
        """Send one request and read the whole answer, all before one deadline."""
        deadline = monotonic() + timeout_s
        while True:
            connection = self._take_idle()
            is_reused = connection is not None
            if connection is None:
                connection = self._connect(deadline, timeout_s)
            connection.deadline = deadline
            answered = _Answering()
            try:
                return call.result(self._exchange(connection, call, answered))
            except TimeoutError:
                raise http_calls.timed_out(self._url, timeout_s) from None
            except (h11.ProtocolError, OSError) as error:
                if self._closed:
                    raise http_calls.closed_during_call(self._url) from None
                if is_reused and not answered.began:
                    # The server closed this idle connection before the request reached it.
                    continue
                raise self._failure(error, answered) from None
            finally:
                self._give_back(connection, keep=answered.keep)

    def _exchange(self, connection: Connection, call: Call[Any], answered: _Answering) -> Answer:
        # A proxy may answer 413 and hang up before it has read the body: its answer counts.
        with suppress(BrokenPipeError, ConnectionResetError):
            for part in self._request(connection.http, call):
                connection.write(part)
        status, headers, body, allowed = 0, {}, bytearray(), 0
        while True:
            event = connection.http.next_event()
            if event is h11.NEED_DATA:
                data = connection.read()
                answered.take(data, self._url)
                connection.http.receive_data(data)
            elif isinstance(event, h11.Response):
                status = event.status_code
                allowed = call.allowed_bytes(status)
                headers = http_calls.headers_of(self._url, event.headers, allowed=allowed)
            elif isinstance(event, h11.Data):
                body += event.data
                http_calls.require_within(len(body), url=self._url, allowed=allowed)
                if monotonic() >= connection.deadline:
                    raise TimeoutError
            elif isinstance(event, h11.EndOfMessage):
                answered.keep = _is_reusable(connection.http)
                return Answer(self._url, status, headers, bytes(body))

    def _request(self, http: h11.Connection, call: Call[Any]) -> list[bytes]:
        """The bytes of a request, in parts."""
        target = self._at.base_path + call.path
        headers = {"Host": self._url.split("/")[2], **call.all_headers(self._at.token)}
        events = [
            h11.Request(method=call.method, target=target, headers=list(headers.items())),
            *(h11.Data(data=part) for part in call.body),
            h11.EndOfMessage(),
        ]
        parts = [part for event in events for part in http.send_with_data_passthrough(event) or ()]
        return [b"".join(parts)] if sum(map(len, parts)) <= _JOINED_BYTES else parts

    def _failure(self, error: Exception, answered: _Answering) -> OnestreamError:
        """The error for an exchange that broke, by who broke it."""
        if isinstance(error, OSError) or answered.ended:
            return http_calls.broke(self._url, error)
        return http_calls.malformed(self._url, str(error) or type(error).__name__)

    def _take_idle(self) -> Connection | None:
        """A connection that was used before, if there is one."""
        while True:
            with self._lock:
                if self._closed:
                    raise http_calls.closed(self._url)
                if not self._idle:
                    return None
                connection = self._idle.pop()
                self._busy.add(connection)
            if connection.is_quiet:
                return connection
            self._give_back(connection, keep=False)

    def _connect(self, deadline: float, timeout_s: float) -> Connection:
        remaining_s = deadline - monotonic()
        if remaining_s <= 0:
            raise http_calls.timed_out(self._url, timeout_s)
        within_s = min(self._at.connect_timeout_s, remaining_s)
        try:
            connection = Connection.open(self._at.host, self._at.port, tls=self._tls, within_s=within_s)
        except TimeoutError:
            raise http_calls.cannot_connect(self._url, f"no connection within {within_s:.3g} s") from None
        except (OSError, UnicodeError) as error:
            raise http_calls.cannot_connect(self._url, str(error)) from None
        with self._lock:
            if self._closed:
                connection.close()
                raise http_calls.closed_during_call(self._url)
            self._busy.add(connection)
        return connection

    def _give_back(self, connection: Connection, *, keep: bool) -> None:
        with self._lock:
            self._busy.discard(connection)
            if keep and not self._closed:
                self._idle.append(connection)
                return
        connection.close()


class _Answering:
    """What is known of an answer that is being read."""

    def __init__(self) -> None:
        self.began = b""
        self.ended = self.keep = False

    def take(self, data: bytes, url: str) -> None:
        """Note the next bytes. Raises CannotConnect where the answer begins as none of HTTP."""
        self.ended = not data
        if len(self.began) < len(_BEGIN):
            self.began += data[:80]
            if not self.began.startswith(_BEGIN[: len(self.began)]):
                raise http_calls.no_http(url, ascii(self.began.decode("latin-1")))


_BEGIN = b"HTTP/"


def _is_reusable(http: h11.Connection) -> bool:
    """Whether another request may be sent; then it is ready for it."""
    if http.our_state is not h11.DONE or http.their_state is not h11.DONE or http.trailing_data[0]:
        return False
    http.start_next_cycle()
    return True
