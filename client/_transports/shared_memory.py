"""System shared memory for inputs: the image is written where the server reads it, and only its name is sent.

One region is used by one request at a time, so there are as many regions as there were requests in flight at
once. They are used again, replaced when a larger image comes, and removed when the pool is closed. A process
that is killed removes nothing itself; Python's resource tracker then removes the regions' names.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.shared_memory import SharedMemory
from threading import Lock
from time import monotonic, sleep

from onestream.client._transports.base import InferRequest, RegionSlice, RequestMetadata, SharedMemoryRegion, Tensors
from onestream.client._transports.refusals import ClosedToCallers
from onestream.client._transports.transport import Transport
from onestream.client.errors import (
    CannotConnect,
    ClientClosed,
    OnestreamError,
    ServerRefused,
    SharedMemoryUnavailable,
    TimedOut,
)
from onestream.client.images import EncodedImage

_log = logging.getLogger(__name__)
_SMALLEST_REGION = 1 << 20
_UNREGISTER_TIMEOUT_S = 1.0
_UNANSWERED = (CannotConnect, TimedOut, ClientClosed)
"""After these the server may still read the region; after any other error it is done with the request."""


class Slot:
    """A region, and the length of the image that lies in it."""

    def __init__(self, capacity: int) -> None:
        # Whoever knows the name can have the server read it. Made anew and for this user only, never followed.
        name = f"onestream_{os.getpid()}_{secrets.token_hex(16)}"
        try:
            self._memory = SharedMemory(name=name, create=True, size=capacity)
        except OSError as error:
            raise SharedMemoryUnavailable(f"cannot create a shared memory region: {error.strerror}") from None
        self.region = SharedMemoryRegion(name, capacity)
        self.image_size = 0
        self.is_registered = False
        try:
            _reserve(name, capacity)
        except OSError as error:
            self.unlink()
            self.unmap()
            raise SharedMemoryUnavailable(
                f"cannot reserve {capacity} bytes of shared memory in /dev/shm: {error.strerror}"
            ) from None

    def fill(self, image: EncodedImage) -> None:
        """Write the image to the beginning of the region."""
        assert self._memory.buf is not None
        with self._memory.buf[: image.byte_size] as view:
            image.write_into(view)
        self.image_size = image.byte_size

    def request(
        self, model: str, metadata: RequestMetadata, *, max_answer_bytes: int, arrays: Tensors | None = None
    ) -> InferRequest:
        """The request for a model about the image that lies in the region; ``arrays`` are its other inputs."""
        image = RegionSlice(self.region.name, self.image_size)
        return InferRequest(model, metadata, image, max_answer_bytes, arrays or {})

    def unlink(self) -> None:
        """Remove the region's name; the memory goes when neither side has it mapped any more."""
        with suppress(FileNotFoundError):
            self._memory.unlink()

    def unmap(self) -> None:
        """Give up the memory on this side; the slot is of no use afterwards."""
        self._memory.close()


class RegionPool:
    """Regions for one server. Every method may be called from many threads at once."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lock = Lock()
        self._idle: list[Slot] = []
        self._busy: set[Slot] = set()
        self._retired: list[str] = []
        self._closed = False

    @contextmanager
    def filled(self, image: EncodedImage, *, timeout_s: float) -> Iterator[Slot]:
        """A region that holds the image, for the time of one request and its repetitions; made within ``timeout_s``.

        A region whose request was abandoned, by a deadline for example, is not used again: the server may
        still read it. It is unregistered as soon as the server allows.
        """
        slot = self._take(image.byte_size, end=monotonic() + min(timeout_s, _UNREGISTER_TIMEOUT_S))
        is_reusable = False
        try:
            slot.fill(image)
            yield slot
            is_reusable = True
        except OnestreamError as error:
            is_reusable = not isinstance(error, _UNANSWERED)
            raise
        finally:
            self._give_back(slot, is_reusable=is_reusable)

    def close(self) -> None:
        """Unregister and remove every region, waiting up to a second for requests that still use them."""
        with self._lock:
            self._closed = True
            idle, busy = self._idle, self._busy
            self._idle, self._busy = [], set()
        for slot in idle:
            self._retire(slot)
        for slot in busy:
            # Its thread may be writing; it unmaps the memory when it gives the slot back.
            self._retire(slot, unmap=False)
        end = monotonic() + _UNREGISTER_TIMEOUT_S
        self._unregister_retired(end)
        while self._retired and monotonic() < end:
            sleep(0.05)
            self._unregister_retired(end)
        if self._retired:
            _log.warning("%s still uses shared memory regions %s", self._transport.url, self._retired)

    def _take(self, byte_size: int, *, end: float) -> Slot:
        self._unregister_retired(end)
        too_small: Slot | None = None
        with self._lock:
            if self._closed:
                raise ClientClosed(f"the client of {self._transport.url} is closed")
            slot = next((slot for slot in self._idle if slot.region.byte_size >= byte_size), None)
            if slot is not None:
                self._idle.remove(slot)
                self._busy.add(slot)
                return slot
            if self._idle:
                too_small = self._idle.pop()
        if too_small is not None:
            self._retire(too_small)
            self._unregister_retired(end)
        slot = Slot(max(_SMALLEST_REGION, 1 << (byte_size - 1).bit_length()))
        with self._lock:
            self._busy.add(slot)
        return slot

    def _give_back(self, slot: Slot, *, is_reusable: bool) -> None:
        with self._lock:
            was_removed = slot not in self._busy
            self._busy.discard(slot)
            if is_reusable and not was_removed:
                self._idle.append(slot)
                return
        if was_removed:
            slot.unmap()
        else:
            self._retire(slot)

    def _retire(self, slot: Slot, *, unmap: bool = True) -> None:
        slot.unlink()
        if unmap:
            slot.unmap()
        if slot.is_registered:
            with self._lock:
                self._retired.append(slot.region.name)

    def register(self, slot: Slot, *, timeout_s: float) -> None:
        """Let the server map the region. Raises SharedMemoryUnavailable where it cannot."""
        try:
            self._transport.register_region(slot.region, timeout_s=timeout_s)
        except ClosedToCallers:
            raise SharedMemoryUnavailable(
                f"{self._transport.url} takes nothing in shared memory: it is closed to callers. Start the server with "
                "`onestream serve --shared-memory`, or use shared_memory=False"
            ) from None
        except ServerRefused as error:
            # Names are unique, so a region of this name is ours: the answer to an earlier attempt was lost.
            if error.status != "ALREADY_EXISTS":
                raise SharedMemoryUnavailable(
                    f"{self._transport.url} cannot open shared memory of this process. The server must run on the "
                    "same host, as a user who may open it, and a container must share /dev/shm (--ipc=host); "
                    f"otherwise use shared_memory=False. It said: {error}"
                ) from None
        slot.is_registered = True

    def _unregister_retired(self, end: float) -> None:
        """Unregister what is no longer in use, until ``end`` (of ``monotonic``) or the first one that still is."""
        while (left_s := end - monotonic()) > 0:
            with self._lock:
                if not self._retired:
                    return
                name = self._retired.pop()
            try:
                self._transport.unregister_region(name, timeout_s=left_s)
            except (CannotConnect, ClientClosed):
                # A server that is gone has no regions.
                continue
            except OnestreamError:
                with self._lock:
                    self._retired.insert(0, name)
                return


def shut_down(regions: RegionPool | None, transport: Transport, owner_pid: int) -> None:
    """Remove the regions and close the connection, unless this is a process that was forked from their owner."""
    if os.getpid() != owner_pid:
        # A forked child shares the parent's connection and regions, and has no right to end them.
        return
    if regions is not None:
        regions.close()
    transport.close()


def _reserve(name: str, byte_size: int) -> None:
    """Fail now, with an error, where memory is short: writing later would end the process by SIGBUS."""
    descriptor = os.open(f"/dev/shm/{name}", os.O_RDWR)
    try:
        os.posix_fallocate(descriptor, 0, byte_size)
    finally:
        os.close(descriptor)
