"""Ways to the server: gRPC or HTTP, chosen by the scheme of the address."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from client.transports.base import AsyncTransport, Transport

_DEFAULT_PORTS = {"grpc": 8001, "grpcs": 8001, "http": 8000, "https": 8000}


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is and how it is spoken to; ``host`` is without brackets, also for IPv6."""

    protocol: str
    host: str
    port: int
    tls: bool
    base_path: str

    @classmethod
    def parse(cls, url: str) -> Address:
        """The address in ``grpc://``, ``grpcs://``, ``http://`` or ``https://host[:port]``.

        ``host:port`` alone means gRPC. Ports default to Triton's 8001 (gRPC) and 8000 (HTTP).
        Raises ValueError for anything else.
        """
        parts = urlsplit(url if "://" in url else f"grpc://{url}")
        expected = "expected host:port, or grpc://, grpcs://, http:// or https:// before it"
        if parts.scheme not in _DEFAULT_PORTS:
            raise ValueError(f"url {url!r} has the scheme {parts.scheme!r}; {expected}")
        try:
            port = parts.port or _DEFAULT_PORTS[parts.scheme]
        except ValueError:
            raise ValueError(f"url {url!r} has no port number from 1 to 65535; {expected}") from None
        if not parts.hostname or "@" in parts.netloc or parts.query or parts.fragment:
            raise ValueError(f"url {url!r} is not an address; {expected}")
        protocol = "http" if parts.scheme.startswith("http") else "grpc"
        if protocol == "grpc" and parts.path.strip("/"):
            raise ValueError(f"url {url!r} has the path {parts.path!r}; gRPC addresses have none")
        return cls(protocol, parts.hostname, port, parts.scheme in ("grpcs", "https"), parts.path)


def open_transport(url: str, *, connect_timeout_s: float) -> Transport:
    """The transport for ``url``, as ``Address.parse`` reads it; it may raise ValueError.

    ``https`` and ``grpcs`` check the certificate against the system's authorities. Nothing is connected yet.
    """
    at = Address.parse(url)
    if at.protocol == "http":
        from client.transports.http import HttpTransport

        return HttpTransport(at.host, at.port, tls=at.tls, connect_timeout_s=connect_timeout_s, base_path=at.base_path)
    # gRPC takes a while to import, and who uses HTTP does not need it.
    from client.transports.grpc import GrpcTransport

    return GrpcTransport(at.host, at.port, tls=at.tls, connect_timeout_s=connect_timeout_s)


def open_async_transport(url: str, *, connect_timeout_s: float) -> AsyncTransport:
    """As ``open_transport``, for an event loop. HTTP needs aiohttp: raises ImportError where it is missing."""
    at = Address.parse(url)
    if at.protocol == "http":
        from client.transports.http_aio import AsyncHttpTransport

        return AsyncHttpTransport(
            at.host, at.port, tls=at.tls, connect_timeout_s=connect_timeout_s, base_path=at.base_path
        )
    from client.transports.grpc_aio import AsyncGrpcTransport

    return AsyncGrpcTransport(at.host, at.port, tls=at.tls, connect_timeout_s=connect_timeout_s)
