"""Ways to the server: gRPC or HTTP, chosen by the scheme of the address. Nothing is connected before the first call."""

from __future__ import annotations

from onestream.client._transports.base import Address
from onestream.client._transports.transport import Transport
from onestream.client._transports.transport_aio import AsyncTransport


def open_transport(at: Address) -> Transport:
    """The transport to this address. ``https`` and ``grpcs`` check the certificate against the system's authorities."""
    if at.protocol == "http":
        from onestream.client._transports.http import HttpTransport

        return HttpTransport(at)
    # gRPC takes a while to import, and who uses HTTP does not need it.
    from onestream.client._transports.grpc import GrpcTransport

    return GrpcTransport(at)


def open_async_transport(at: Address) -> AsyncTransport:
    """As ``open_transport``, for an event loop."""
    if at.protocol == "http":
        from onestream.client._transports.http_aio import AsyncHttpTransport

        return AsyncHttpTransport(at)
    from onestream.client._transports.grpc_aio import AsyncGrpcTransport

    return AsyncGrpcTransport(at)
