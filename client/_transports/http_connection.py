"""One HTTP/1.1 connection on which nothing waits longer than until a deadline, and nothing is read without a bound.

``http.client`` sets a time for each operation on a socket, which a server that sends a byte now and then never
exceeds. Here each operation gets what is left until one deadline.
"""

from __future__ import annotations

import http.client
import io
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any

_READ_SIZE = 1 << 16
_MAX_HEAD_BYTES = 1 << 16
"""Status line and headers, with those of answers that only say to wait: as long as http.client lets one line be."""
_CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,15}")


class Malformed(http.client.HTTPException):
    """The other side speaks HTTP, and not as HTTP says."""


class Connection(http.client.HTTPConnection):
    """Everything that is done with it raises TimeoutError at the deadline that was set last."""

    def __init__(self, host: str, port: int, *, tls: ssl.SSLContext | None, deadline: float) -> None:
        """``deadline`` in the time of ``monotonic``, also for connecting."""
        super().__init__(host, port)
        self._tls = tls
        # http.client forgets its own where the answer is to end with the connection.
        self._socket: socket.socket
        self.deadline = deadline
        if tls is not None:
            self.default_port = http.client.HTTPS_PORT
        # http.client only calls it; its types want a class.
        self.response_class = partial(Response, connection=self)  # type: ignore[assignment]

    def connect(self) -> None:
        """Connect to the first address of the host that takes it, and agree on TLS. Raises OSError."""
        failure: OSError = TimeoutError()
        for family, kind, protocol, _, address in socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM):
            self._socket = socket.socket(family, kind, protocol)
            try:
                self.limit()
                self._socket.connect(address)
                break
            except OSError as error:
                failure = error
                self._socket.close()
        else:
            raise failure
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            self.limit()
            # Closes what it was given where it fails.
            self._socket = self._tls.wrap_socket(self._socket, server_hostname=self.host)
        self.sock = self._socket

    def limit(self) -> None:
        """Let the next operation on the socket end at the deadline."""
        remaining_s = self.deadline - monotonic()
        if remaining_s <= 0:
            raise TimeoutError
        self._socket.settimeout(remaining_s)

    def send(self, data: Any) -> None:
        """Send bytes. ``sendall`` would not end at a deadline in TLS."""
        unsent = memoryview(data)
        while unsent:
            self.limit()
            unsent = unsent[self._socket.send(unsent) :]

    def answer(self) -> Response:
        """The head of the answer to the request that was sent."""
        response = self.getresponse()
        assert isinstance(response, Response)
        return response

    def shut_down(self) -> None:
        """Wake the thread that waits on this connection; that thread closes it."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    @property
    def is_quiet(self) -> bool:
        """Whether the other side neither ended the connection nor sent what nobody asked for."""
        self._socket.settimeout(0)
        try:
            self._socket.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        return False


class Response(http.client.HTTPResponse):
    """An answer whose bytes are counted: first those of the head, then those of the body."""

    def __init__(self, *arguments: Any, connection: Connection, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._input = _Bounded(self.fp.detach(), connection)
        self.fp: Any = io.BufferedReader(self._input)

    def parts(self, length: int | None, *, allowed: int) -> Iterator[bytes]:
        """The body as it comes, of so many bytes, or in chunks, or until the connection ends.

        Raises Malformed, and IncompleteRead where the connection ends before the body does. Of sizes of chunks, which
        are no part of the body, as many bytes are read as of the body, and 64 KiB; of trailers 64 KiB.
        """
        self._input.allowed = 2 * allowed + _MAX_HEAD_BYTES
        if self.chunked:
            while (size := self._chunk_size()) > 0:
                yield from self._exactly(size)
                if self.fp.readline(3) not in (b"\r\n", b"\n"):
                    raise Malformed("a chunk that is longer than its size")
            self._input.allowed = _MAX_HEAD_BYTES
            while (line := self.fp.readline()) not in (b"\r\n", b"\n"):
                if not line:
                    raise http.client.IncompleteRead(b"")
        elif length is not None:
            yield from self._exactly(length)
        else:
            while part := self.fp.read1(_READ_SIZE):
                yield part

    def _chunk_size(self) -> int:
        line = self.fp.readline(_MAX_HEAD_BYTES)
        if not line:
            raise http.client.IncompleteRead(b"")
        size = line.partition(b";")[0].strip()
        if not _CHUNK_SIZE.fullmatch(size):
            raise Malformed(f"the size of a chunk {size!r:.80}")
        return int(size, 16)

    def _exactly(self, size: int) -> Iterator[bytes]:
        while size > 0:
            part = self.fp.read1(min(size, _READ_SIZE))
            if not part:
                raise http.client.IncompleteRead(b"", size)
            size -= len(part)
            yield part


class _Bounded(io.RawIOBase):
    """Reads from the socket until the deadline, up to ``allowed`` bytes."""

    def __init__(self, source: io.RawIOBase, connection: Connection) -> None:
        self._source, self._connection = source, connection
        self.allowed = _MAX_HEAD_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self.allowed <= 0:
            raise Malformed(f"headers, sizes of chunks or trailers above {_MAX_HEAD_BYTES} bytes")
        self._connection.limit()
        count = self._source.readinto(buffer)
        self.allowed -= count or 0
        return count

    def close(self) -> None:
        self._source.close()
        super().close()
