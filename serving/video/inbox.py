"""The packets of one stream that wait for its decoder."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from onestream.serving.video.bounds import BadStream, Bounds, Rate
from onestream.serving.video.stream_types import Totals
from onestream.wire.video import Mode, Packet

_LEAST_PACKETS, _BYTES_A_PACKET = 1000, 64
"""Packets that may wait: one for every 64 bytes of the buffer, but at least 1000."""

_LATE_S = 1.0
"""In mode *drop_oldest*, how long a packet may wait for its turn before its group of pictures is dropped."""


class Inbox:
    """Packets in the order of storage, each with the time when it was received. Its session's lock must guard it.

    ``held_bytes`` counts packets that wait, and packets that were taken but not yet ``consumed``. The inbox adds to
    ``totals`` what it drops and what is consumed.
    """

    def __init__(self, mode: Mode, bounds: Bounds, totals: Totals) -> None:
        self._bounds, self._totals = bounds, totals
        self._drops_late = mode == "drop_oldest"
        self._rate = Rate(bounds.max_bitrate if self._drops_late else None)
        self._waiting: deque[tuple[Packet, float]] = deque()
        self._skips_to_key = False
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def next_bytes(self) -> int:
        """Size of the packet that is taken next."""
        return len(self._waiting[0][0].data)

    def put(self, packets: Sequence[Packet]) -> bool:
        """Queue packets that arrived together, without the empty ones; whether any were left.

        Raises ``BadStream`` where they are more than may be sent ahead.
        """
        packets = [packet for packet in packets if packet.data]
        size = sum(len(packet.data) for packet in packets)
        largest = max((len(packet.data) for packet in packets), default=0)
        most = self._bounds.buffer_bytes
        if largest > most:
            raise BadStream("too_large", f"a packet has {largest} bytes; at most {most} are allowed")
        if self.held_bytes + size > most:
            raise BadStream("flow", f"{self.held_bytes + size} bytes were sent ahead; at most {most} may be")
        count = len(self._waiting) + len(packets)
        if count > max(_LEAST_PACKETS, most // _BYTES_A_PACKET):
            raise BadStream("flow", f"{count} packets were sent ahead")
        self._rate.add(size)
        now = time.monotonic()
        self.held_bytes += size
        for packet in packets:
            if self._skips_to_key and not packet.is_key:
                self._drop(packet)
                continue
            self._skips_to_key = False
            self._waiting.append((packet, now))
        return bool(packets)

    def drop_late(self) -> None:
        """Where the first packet is late, drop packets up to the next key packet, at which a decoder can go on."""
        waiting = self._waiting
        if self._drops_late and waiting and time.monotonic() - waiting[0][1] > _LATE_S:
            self._drop(waiting.popleft()[0])
            while waiting and not waiting[0][0].is_key:
                self._drop(waiting.popleft()[0])
            self._skips_to_key = not waiting

    def take(self) -> tuple[Packet, float]:
        """The next packet, and when it was received (``time.monotonic``)."""
        return self._waiting.popleft()

    def consumed(self, size: int) -> None:
        """Note that packets of so many bytes, taken before, were decoded."""
        self.held_bytes -= size
        self._totals.consumed_bytes += size

    def clear(self) -> None:
        """Forget all packets without counting them."""
        self._waiting.clear()
        self.held_bytes = 0

    def _drop(self, packet: Packet) -> None:
        self.consumed(len(packet.data))
        self._totals.dropped += 1
