"""TCP ports: whether one is in use, which are free, and whether Triton's metrics come from one."""

from __future__ import annotations

import contextlib
import errno
import http.client
import secrets
import socket
from collections.abc import Collection
from pathlib import Path

from onestream.serving.server.errors import PortInUse, ServerError


def check_port(host: str, port: int, service: str) -> None:
    """Make sure that this process could listen on a port now.

    Args:
        host: the address to bind; empty for all.
        port: 1 to 65535.
        service: what it is for, named in the message.

    Raises:
        PortInUse: another program listens there.
        ServerError: it cannot be bound for another reason, such as an address that is not this machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(host, port, service) from None
        raise ServerError(f"cannot listen on {host} port {port} ({service}): {error.strerror}") from None


def free_port(host: str, *, but: Collection[int] = ()) -> int:
    """Choose a free port below the range from which the kernel takes ports for outgoing connections; none of ``but``.

    Raises:
        ServerError: the host has none, or is not this machine.
    """
    first_ephemeral = 32768
    with contextlib.suppress(OSError, ValueError):
        first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    lowest = max(1024, first_ephemeral - 20000)
    for _ in range(100):
        port = lowest + secrets.randbelow(max(1, first_ephemeral - lowest))
        if port in but:
            continue
        with contextlib.suppress(PortInUse):
            check_port(host, port, "free")
            return port
    raise ServerError(f"found no free port on {host} between {lowest} and {first_ephemeral}")


def metrics_answer(host: str, port: int) -> bool:
    """Whether Triton's metrics come from a port; its log says that the service started before it tries the port."""
    connection = http.client.HTTPConnection(host.strip("[]"), port, timeout=1.0)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().startswith(b"# HELP nv_")
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
