"""One connection for HTTP/1.1 on which nothing waits longer than until a deadline."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from time import monotonic

import h11

_READ_BYTES = 1 << 18
MOST_HEAD_BYTES = 1 << 16
"""Status line and headers; also the size of a chunk, and the trailers."""


class Connection:
    """Everything that is done with it raises TimeoutError at ``deadline``, in the time of ``monotonic``."""

    def __init__(self, connected: socket.socket, deadline: float) -> None:
        self._socket = connected
        self.deadline = deadline
        self.http = h11.Connection(h11.CLIENT, MOST_HEAD_BYTES)

    @classmethod
    def open(cls, host: str, port: int, *, tls: ssl.SSLContext | None, within_s: float) -> Connection:
        """Connect to the first address of the host that takes it, and agree on TLS. Raises OSError."""
        failure: OSError = TimeoutError()
        deadline = monotonic() + within_s
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            connection = cls(socket.socket(family, kind, protocol), deadline)
            try:
                connection._limit()
                connection._socket.connect(address)
                connection._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if tls is not None:
                    connection._limit()
                    # Closes what it was given where it fails.
                    connection._socket = tls.wrap_socket(connection._socket, server_hostname=host)
            except OSError as error:
                failure = error
                connection.close()
                continue
            return connection
        raise failure

    def read(self) -> bytes:
        """What came, at least a byte; none where the other side has ended the connection. Raises OSError."""
        self._limit()
        return self._socket.recv(_READ_BYTES)

    def write(self, data: bytes) -> None:
        """Send the bytes. ``sendall`` would not end at a deadline in TLS. Raises OSError."""
        unsent = memoryview(data)
        while unsent:
            self._limit()
            unsent = unsent[self._socket.send(unsent) :]

    @property
    def is_quiet(self) -> bool:
        """Whether the other side has neither closed the connection nor sent unsolicited bytes."""
        self._socket.settimeout(0)
        try:
            self._socket.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        return False

    def shut_down(self) -> None:
        """Wake the thread that waits on this connection; that thread closes it."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the connection up."""
        self._socket.close()

    def _limit(self) -> None:
        """Let the next operation on the socket end at the deadline."""
        remaining_s = self.deadline - monotonic()
        if remaining_s <= 0:
            raise TimeoutError
        self._socket.settimeout(remaining_s)
