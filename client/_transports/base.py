"""The interface of a transport: it carries one request to the server and brings back the answer or the error.

A transport knows a protocol and nothing about images, retries or pipelines, so tests replace it by a fake.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy.typing as npt

from onestream.wire.priority import Priority

Tensors = dict[str, npt.NDArray[Any]]
"""Output name → array with its batch dimension; BYTES outputs are object arrays of ``bytes``."""

DEFAULT_MAX_ANSWER_BYTES = 128 * 1024 * 1024
"""The largest answer with tensors unless told otherwise: 128 MiB, the 16 results that a stream takes by default, each
with one float32 for every pixel of the largest frame that a server takes by default (1920 × 1088)."""


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

    It is the one input of a pipeline: UINT8 ``[1, number_of_bytes]``. ``max_answer_bytes`` is the most that its outputs
    may take altogether.
    """

    model: str
    metadata: RequestMetadata
    image: bytes | RegionSlice
    max_answer_bytes: int = DEFAULT_MAX_ANSWER_BYTES

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the input tensor: one image of so many bytes."""
        size = self.image.byte_size if isinstance(self.image, RegionSlice) else len(self.image)
        return (1, size)


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
