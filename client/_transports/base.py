"""What transports are given: an address, requests. They carry a request and bring back the answer or the error.

A transport knows a protocol and nothing about images, retries or pipelines, so tests replace it by a fake.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable
from urllib.parse import urlsplit

import numpy.typing as npt

from onestream.wire.priority import Priority

Tensors = dict[str, npt.NDArray[Any]]
"""Name → array with its batch dimension; BYTES are object arrays of ``bytes``."""

DEFAULT_MAX_ANSWER_BYTES = 128 * 1024 * 1024
"""The largest answer with tensors unless told otherwise: 128 MiB, the 16 results that a stream takes by default, each
with one float32 for every pixel of the largest frame that a server takes by default (1920 × 1088)."""

_DEFAULT_PORTS = {"grpc": 8001, "grpcs": 8001, "http": 8000, "https": 8000}


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is, and how it is spoken to.

    ``host`` is without brackets, also for IPv6; ``base_path`` is what a proxy puts before ``/v2``. ``max_answer_bytes``
    is how large an answer over gRPC may be; over HTTP each request says it.
    """

    protocol: str
    host: str
    port: int
    tls: bool
    base_path: str
    token: str | None = field(repr=False)
    connect_timeout_s: float
    max_answer_bytes: int

    @classmethod
    def parse(
        cls,
        url: str,
        *,
        token: str | None = None,
        connect_timeout_s: float = 5.0,
        max_answer_bytes: int = DEFAULT_MAX_ANSWER_BYTES,
    ) -> Address:
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
        path = parts.path.rstrip("/")
        return cls(protocol, parts.hostname, port, tls, path, token, connect_timeout_s, max_answer_bytes)


@dataclass(frozen=True, slots=True)
class SharedMemoryRegion:
    """A system shared memory region: its POSIX name is ``/`` + ``name``; the server knows it as ``name``."""

    name: str
    byte_size: int


@dataclass(frozen=True, slots=True)
class RegionSlice:
    """The first ``byte_size`` bytes of a registered region."""

    region_name: str
    byte_size: int


@dataclass(frozen=True, slots=True)
class RequestMetadata:
    """Everything of a request but its tensors: its id, the W3C ``traceparent`` of the caller's span, its priority.

    ``parameters`` are numbers in the place of options of the pipeline.
    """

    request_id: str
    traceparent: str | None = None
    priority: Priority = "normal"
    parameters: Mapping[str, float] = field(default_factory=dict)

    @property
    def headers(self) -> dict[str, str]:
        """The headers (in gRPC: metadata) that carry what is no part of the message."""
        return {} if self.traceparent is None else {"traceparent": self.traceparent}


@dataclass(frozen=True, slots=True)
class InferRequest:
    """One encoded image for one model, its bytes either here or in a region that the server has mapped.

    The image is UINT8 ``[1, number_of_bytes]``, and None for a model that takes none. ``arrays`` are the other inputs
    by their names, with their batch dimension. ``max_answer_bytes`` is the most that all outputs may take.
    """

    model: str
    metadata: RequestMetadata
    image: bytes | RegionSlice | None
    max_answer_bytes: int = DEFAULT_MAX_ANSWER_BYTES
    arrays: Tensors = field(default_factory=dict)


def microseconds(timeout_s: float) -> int:
    """A timeout in the unit of Triton's request parameter ``timeout``, for which 0 would mean none."""
    return max(1, round(timeout_s * 1e6))


class Conversation(Protocol):
    """Messages to a model and its answers, which come in any number and at any time."""

    def answers(self) -> Iterator[Tensors]:
        """The answers until the server ends the conversation. Raises the errors of ``onestream.client.errors``."""

    def cancel(self) -> None:
        """End it at once, from any thread; the server is told. May be called twice."""


@runtime_checkable
class ConversingTransport(Protocol):
    """A transport over which models that answer a request any number of times can be used: gRPC, not HTTP."""

    def is_ready(self, model: str | None, *, timeout_s: float) -> bool:
        """Whether the server (``None``) or the model says that it is ready."""

    def converse(self, model: str, input_name: str, contents: Iterator[bytes]) -> Conversation:
        """Begin a conversation: ``contents`` is read by another thread, and may block, until it ends."""
