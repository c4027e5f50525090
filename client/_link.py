"""What a client needs of its server, and how it waits: by blocking the thread that asks."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from time import sleep as sleep
from typing import TypeVar

from onestream.client import images
from onestream.client._transports import open_transport
from onestream.client._transports.base import Address
from onestream.client._transports.shared_memory import RegionPool, shut_down
from onestream.client._transports.transport import Transport
from onestream.client.calls import Limits
from onestream.client.errors import ClientClosed
from onestream.client.images import EncodedImage, ImageInput

_T = TypeVar("_T")

filled = RegionPool.filled


class Link:
    """The connection to a server, and regions of shared memory, which are None where images go by messages."""

    def __init__(self, to: Address | Transport, *, shared_memory: bool) -> None:
        self.transport = open_transport(to) if isinstance(to, Address) else to
        self.regions = RegionPool(self.transport) if shared_memory else None
        # Also runs when the interpreter ends, so no shared memory stays behind.
        self._shut_down = weakref.finalize(self, shut_down, self.regions, self.transport, os.getpid())

    @property
    def for_streams(self) -> object:
        """The transport whose conversations threads may hold."""
        return self.transport

    def check(self) -> None:
        """Raise ClientClosed after ``close``."""
        if not self._shut_down.alive:
            raise ClientClosed(f"the client of {self.transport.url} is closed")

    def close(self) -> None:
        """End the connection and every call in progress, and remove shared memory. May be called twice."""
        self._shut_down()


def encode(image: ImageInput, limits: Limits) -> EncodedImage:
    """As ``images.encode``, within the limits of a model."""
    return images.encode(image, max_body_bytes=limits.body_bytes, max_pixels=limits.pixels)


def encoded_bytes(image: ImageInput, limits: Limits) -> bytes:
    """The encoded image."""
    return encode(image, limits).to_bytes()


def whole(work: Callable[[], _T]) -> _T:
    """What ``work`` returns."""
    return work()
