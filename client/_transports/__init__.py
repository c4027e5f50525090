"""Ways to the server: gRPC or HTTP, chosen by the scheme of the address."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from onestream.client._transports.base import DEFAULT_MAX_ANSWER_BYTES
from onestream.client._transports.transport import Transport
from onestream.client._transports.transport_aio import AsyncTransport

_DEFAULT_PORTS = {"grpc": 8001, "grpcs": 8001, "http": 8000, "https": 8000}


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is, how it is spoken to, and with which token; ``host`` is without brackets, also for IPv6."""

    protocol: str
    host: str
    port: int
    tls: bool
    base_path: str
    token: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str, *, token: str | None = None) -> Address:
        """The address in ``grpc://``, ``grpcs://``, ``http://`` or ``https://host[:port]``.

        ``host:port`` alone means gRPC. Ports default to Triton's 8001 (gRPC) and 8000 (HTTP). Only ``grpcs`` and
        ``https`` carry a ``token``. Raises ValueError for anything else.
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
        tls = parts.scheme in ("grpcs", "https")
        if token is not None and not tls:
            raise ValueError(f"url {url!r} would send the token unencrypted; expected grpcs:// or https://")
        if token is not None and not (token.isascii() and token.isprintable() and token and " " not in token):
            raise ValueError("the token is empty or holds spaces, line ends or other signs that no header may have")
        protocol = "http" if parts.scheme.startswith("http") else "grpc"
        if protocol == "grpc" and parts.path.strip("/"):
            raise ValueError(f"url {url!r} has the path {parts.path!r}; gRPC addresses have none")
        return cls(protocol, parts.hostname, port, tls, parts.path, token)


def open_transport(
    url: str, *, connect_timeout_s: float, token: str | None = None, max_answer_bytes: int = DEFAULT_MAX_ANSWER_BYTES
) -> Transport:
    """The transport for ``url`` and ``token``, as ``Address.parse`` reads them; it may raise ValueError.

    ``https`` and ``grpcs`` check the certificate against the system's authorities. ``max_answer_bytes`` is how large an
    answer over gRPC may be; over HTTP each request says it. Nothing is connected yet.
    """
    at = Address.parse(url, token=token)
    if at.protocol == "http":
        from onestream.client._transports.http import HttpTransport

        return HttpTransport(
            at.host, at.port, tls=at.tls, connect_timeout_s=connect_timeout_s, base_path=at.base_path, token=at.token
        )
    # gRPC takes a while to import, and who uses HTTP does not need it.
    from onestream.client._transports.grpc import GrpcTransport

    return GrpcTransport(
        at.host,
        at.port,
        tls=at.tls,
        connect_timeout_s=connect_timeout_s,
        token=at.token,
        max_answer_bytes=max_answer_bytes,
    )


def open_async_transport(
    url: str, *, connect_timeout_s: float, token: str | None = None, max_answer_bytes: int = DEFAULT_MAX_ANSWER_BYTES
) -> AsyncTransport:
    """As ``open_transport``, for an event loop."""
    at = Address.parse(url, token=token)
    if at.protocol == "http":
        from onestream.client._transports.http_aio import AsyncHttpTransport

        return AsyncHttpTransport(
            at.host, at.port, tls=at.tls, connect_timeout_s=connect_timeout_s, base_path=at.base_path, token=at.token
        )
    from onestream.client._transports.grpc_aio import AsyncGrpcTransport

    return AsyncGrpcTransport(
        at.host,
        at.port,
        tls=at.tls,
        connect_timeout_s=connect_timeout_s,
        token=at.token,
        max_answer_bytes=max_answer_bytes,
    )
