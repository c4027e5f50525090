"""Ways to the server: gRPC or HTTP, chosen by the scheme of the address."""

from __future__ import annotations

from urllib.parse import urlsplit

from client.transports.base import Transport

_DEFAULT_PORTS = {"grpc": 8001, "grpcs": 8001, "http": 8000, "https": 8000}


def open_transport(url: str, *, connect_timeout_s: float, token: str | None = None) -> Transport:
    """The transport for ``grpc://``, ``grpcs://``, ``http://`` or ``https://host[:port]``.

    ``host:port`` alone means gRPC. Ports default to Triton's 8001 (gRPC) and 8000 (HTTP); ``https`` and
    ``grpcs`` check the certificate against the system's authorities; only they carry a ``token``. Nothing is
    connected yet. Raises ValueError for anything else.
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
    if parts.scheme.startswith("http"):
        from client.transports.http import HttpTransport

        return HttpTransport(
            parts.hostname, port, tls=tls, connect_timeout_s=connect_timeout_s, base_path=parts.path, token=token
        )
    if parts.path.strip("/"):
        raise ValueError(f"url {url!r} has the path {parts.path!r}; gRPC addresses have none")
    # gRPC takes a while to import, and who uses HTTP does not need it.
    from client.transports.grpc import GrpcTransport

    return GrpcTransport(parts.hostname, port, tls=tls, connect_timeout_s=connect_timeout_s, token=token)
