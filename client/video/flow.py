"""Flow control: packets leave as the server has room for them, credit as the caller takes results."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable

from onestream.wire.video import Close, Credit, Message, Mode, Packet, Packets

AHEAD_BYTES = 1024 * 1024
"""In mode *block*, how much is read ahead of what the server has room for."""

MAX_WAIT_S = 1.0
"""In mode *drop_oldest*, how long a packet may wait for room before its group of pictures is dropped."""

_MESSAGE_PACKETS = 64
_CREDIT_S = 1.0
_MESSAGE_BYTES = 512 * 1024
_MOST_LINGER_S = 0.067
"""Two frames of a stream of 30 a second."""


class Outbox:
    """The messages of one connection in their order, made as the server has room for them. Thread-safe.

    The source's thread calls ``put`` and ``finish``, the receiver ``opened``, ``consumed`` and ``ended``, the caller's
    thread ``give``; gRPC's thread takes ``next_message``. In mode *block* ``put`` waits; in mode *drop_oldest* it never
    does, and what waits longer than ``max_wait_s`` is dropped up to the next key packet, which leaves the server
    nothing that it cannot decode.

    Every message costs the server a request. So where its answers take long, packets of a live stream go out together,
    at intervals of as long as that, at most 67 ms.

    ``on_sent(packet, handed_s)`` is called for every packet on its way out; ``handed_s`` is when it left the queue in
    mode *block*, since a file does not care how long it waits, and when it was put in mode *drop_oldest*.
    """

    def __init__(
        self,
        mode: Mode,
        *,
        credit_step: int = 1,
        ahead_bytes: int = AHEAD_BYTES,
        max_wait_s: float = MAX_WAIT_S,
        on_sent: Callable[[Packet, float], None] = lambda _packet, _handed_s: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mode, self._credit_step, self._ahead_bytes = mode, credit_step, ahead_bytes
        self._max_wait_s, self._on_sent, self._clock = max_wait_s, on_sent, clock
        self._queue: deque[tuple[Packet, float]] = deque()
        self._queued_bytes = self._sent_bytes = self._consumed_bytes = self._credit = self._dropped = 0
        self._credit_since_s = 0.0
        self._buffer_bytes: int | None = None
        self._skipping = self._finished = self._close_sent = self._over = False
        self._oversized: Packet | None = None
        self._sent_s = clock()
        self._linger_s = 0.0
        self._lingers_until_s = self._sent_s
        lock = threading.RLock()
        # Waking a thread costs more than what it does here, so each is only woken for something that it can do.
        self._changed, self._sendable = threading.Condition(lock), threading.Condition(lock)
        self._sleeps_until_s = -math.inf

    @property
    def dropped(self) -> int:
        """Packets dropped before they were sent."""
        return self._dropped

    @property
    def oversized(self) -> int | None:
        """Size in bytes of a packet that the server's whole buffer cannot hold, where there was one."""
        return None if self._oversized is None else len(self._oversized.data)

    @property
    def sent_bytes(self) -> int:
        """Bytes of packets that left here."""
        return self._sent_bytes

    @property
    def consumed_bytes(self) -> int:
        """Those that the server no longer holds, as far as it said so."""
        return self._consumed_bytes

    @property
    def buffer_bytes(self) -> int | None:
        """The bytes that the server holds of this stream at most; None before it said so."""
        return self._buffer_bytes

    def waits_since(self) -> float | None:
        """Since when the sender can do nothing until the server speaks; None where it can."""
        with self._changed:
            full = bool(self._queue) and not self._has_room()
            return self._sent_s if self._buffer_bytes is None or full or self._close_sent else None

    # ---- the source's thread ---------------------------------------------------------------------------------------

    def put(self, packet: Packet) -> bool:
        """Queue a packet; False when there is no more use for packets."""
        with self._changed:
            if self._mode == "block":
                self._changed.wait_for(lambda: self._over or self._queued_bytes < self._ahead_bytes)
            if self._over:
                return False
            if self._skipping and not packet.is_key:
                self._dropped += 1
                return True
            self._skipping = False
            self._queue.append((packet, self._clock()))
            self._queued_bytes += len(packet.data)
            self._drop_late()
            self._wake_sender()
            return True

    def finish(self) -> None:
        """There are no more packets."""
        with self._changed:
            self._finished = True
            self._wake_sender()

    def _drop_late(self) -> None:
        if self._mode != "drop_oldest":
            return
        while self._queue and self._clock() - self._queue[0][1] > self._max_wait_s:
            self._drop_one()
            while self._queue and not self._queue[0][0].is_key:
                self._drop_one()
            self._skipping = not self._queue

    def _drop_one(self) -> None:
        packet, _ = self._queue.popleft()
        self._queued_bytes -= len(packet.data)
        self._dropped += 1

    # ---- what the server says, and the caller ----------------------------------------------------------------------

    def opened(self, buffer_bytes: int) -> None:
        """The server accepted the stream and holds so many bytes of packets."""
        with self._changed:
            self._buffer_bytes = buffer_bytes
            self._wake_sender()

    def consumed(self, total_bytes: int) -> None:
        """The server no longer holds the first ``total_bytes``."""
        with self._changed:
            self._consumed_bytes = max(self._consumed_bytes, total_bytes)
            self._drop_late()
            self._wake_sender()

    def answered(self, latency_s: float) -> None:
        """A result came, so long after the server had the packet."""
        if self._mode == "drop_oldest":
            self._linger_s = min(_MOST_LINGER_S, latency_s)

    def give(self, results: int = 1) -> None:
        """The caller took results. Credit goes with packets, or alone in steps, since a message costs a request."""
        with self._changed:
            if not self._credit:
                self._credit_since_s = self._clock()
            self._credit += results
            self._wake_sender()

    def ended(self) -> None:
        """The server said its last word."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
            self._wake_sender()

    def close(self) -> None:
        """Nothing more is sent, and nobody waits here any longer."""
        with self._changed:
            self._over = True
            self._queue.clear()
            self._changed.notify_all()
            self._wake_sender()

    def _wake_sender(self) -> None:
        if self._due_s() < self._sleeps_until_s:
            self._sendable.notify()

    # ---- gRPC's thread ---------------------------------------------------------------------------------------------

    def next_message(self) -> Message | None:
        """The next message as soon as it may be sent; None after the last."""
        with self._changed:
            while True:
                message = None if self._over else self._message()
                if self._over or self._oversized is not None:
                    return None
                if message is not None:
                    self._sent_s = self._clock()
                    self._changed.notify_all()
                    return message
                self._sleeps_until_s = self._due_s()
                patience_s = self._sleeps_until_s - self._clock()
                self._sendable.wait(None if patience_s == math.inf else max(0.001, patience_s))
                self._sleeps_until_s = -math.inf

    def _message(self) -> Message | None:
        self._drop_late()
        if self._queue and self._has_room() and (self._finished or self._clock() >= self._lingers_until_s):
            self._lingers_until_s = self._clock() + self._linger_s
            return Packets(self._packets(), self._taken_credit())
        waited = bool(self._credit) and self._clock() - self._credit_since_s >= _CREDIT_S
        if self._credit >= self._credit_step or waited:
            return Credit(self._taken_credit())
        if self._finished and not self._queue and not self._close_sent and self._buffer_bytes is not None:
            self._close_sent = True
            return Close()
        if self._queue and self._buffer_bytes is not None and len(self._queue[0][0].data) > self._buffer_bytes:
            self._oversized = self._queue[0][0]
        return None

    def _due_s(self) -> float:
        """When there may be something to do for the sender, if nothing changes."""
        if self._over:
            return -math.inf
        due_s = math.inf
        if self._credit:
            # Credit that has waited long goes out alone: a slow caller is not an idle one.
            due_s = -math.inf if self._credit >= self._credit_step else self._credit_since_s + _CREDIT_S
        if self._buffer_bytes is None:
            return due_s
        if not self._queue:
            return -math.inf if self._finished and not self._close_sent else due_s
        if self._has_room():
            return -math.inf if self._finished else min(due_s, self._lingers_until_s)
        return -math.inf if len(self._queue[0][0].data) > self._buffer_bytes else due_s

    def _has_room(self) -> bool:
        if self._buffer_bytes is None:
            return False
        unconsumed = self._sent_bytes - self._consumed_bytes
        return unconsumed + len(self._queue[0][0].data) <= self._buffer_bytes

    def _taken_credit(self) -> int:
        credit, self._credit = self._credit, 0
        return credit

    def _packets(self) -> tuple[Packet, ...]:
        taken: list[Packet] = []
        size = 0
        while self._queue and self._has_room() and len(taken) < _MESSAGE_PACKETS and size < _MESSAGE_BYTES:
            packet, put_s = self._queue.popleft()
            self._queued_bytes -= len(packet.data)
            self._sent_bytes += len(packet.data)
            size += len(packet.data)
            taken.append(packet)
            self._on_sent(packet, self._clock() if self._mode == "block" else put_s)
        return tuple(taken)
