"""What a client needs of its server, and how it waits: by blocking the thread that asks."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from time import sleep as sleep

from onestream.client._transports import open_transport
from onestream.client._transports.base import InferRequest, Tensors
from onestream.client._transports.shared_memory import RegionPool, Slot, shut_down
from onestream.client._transports.transport import Transport
from onestream.client.errors import ClientClosed
from onestream.client.images import EncodedImage, ImageInput
from onestream.client.images import encode as encode


class Link:
    """The connection to a server, and regions of shared memory."""

    def __init__(
        self,
        url: str,
        *,
        connect_timeout_s: float,
        token: str | None,
        max_answer_bytes: int,
        shared_memory: bool,
        transport: Transport | None,
    ) -> None:
        """Options as of ``Client``."""
        self.transport = transport or open_transport(
            url, connect_timeout_s=connect_timeout_s, token=token, max_answer_bytes=max_answer_bytes
        )
        self._regions = RegionPool(self.transport) if shared_memory else None
        # Also runs when the interpreter ends, so no shared memory stays behind.
        self._shut_down = weakref.finalize(self, shut_down, self._regions, self.transport, os.getpid())

    @property
    def has_regions(self) -> bool:
        """Whether images go by shared memory."""
        return self._regions is not None

    @property
    def for_streams(self) -> object:
        """The transport whose conversations threads may hold."""
        return self.transport

    def check(self) -> None:
        """Raise ClientClosed after ``close``."""
        if not self._shut_down.alive:
            raise ClientClosed(f"the client of {self.transport.url} is closed")

    @contextmanager
    def filled(self, image: EncodedImage, *, timeout_s: float) -> Iterator[Slot]:
        """A region that holds the image, as ``RegionPool.filled``."""
        assert self._regions is not None
        with self._regions.filled(image, timeout_s=timeout_s) as slot:
            yield slot

    def infer(self, slot: Slot, request: InferRequest, *, timeout_s: float) -> Tensors:
        """All outputs for a request about the image in a region."""
        assert self._regions is not None
        return self._regions.infer(slot, request, timeout_s=timeout_s)

    def close(self) -> None:
        """End the connection and every call in progress, and remove shared memory. May be called twice."""
        self._shut_down()


def encoded_bytes(image: ImageInput, *, max_body_bytes: int) -> bytes:
    """The encoded image."""
    return encode(image, max_body_bytes=max_body_bytes).to_bytes()
