"""Works out when the frames of a stream are shown, from the times of its packets."""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onestream.wire.video import Packet

MOST_TIME = 1 << 62
"""Timestamps from here on mean nothing: FFmpeg computes with 64 bits."""

_MOST_WAITING = 64
_MOST_EARLY = 4096


class Times:
    """Works out the times of frames.

    A frame has the pts of its packet. Where packets carry none, or one that is the order of storage though the decoder
    reorders frames, the n-th frame has the n-th smallest of the packets' times (pts, else dts): exact but for a
    constant delay.
    """

    def __init__(self) -> None:
        # Times of packets whose frames were not shown yet, as a heap.
        self._waiting: list[int] = []
        self._highest_pts: int | None = None
        self._newest_dts: int | None = None
        self._pts_are_reordered = False
        # Until the first frame is shown: the pts of all packets, the place of the first keyframe and its time.
        self._early: deque[int | None] | None = deque(maxlen=_MOST_EARLY)
        self._count, self._key_at, self._key_time, self._has_key = 0, 0, -MOST_TIME, False

    def add(self, packet: Packet) -> None:
        """A packet goes to the decoder."""
        pts, dts = valid_time(packet.pts), valid_time(packet.dts)
        time = dts if pts is None else pts
        if self._early is not None:
            if packet.is_key and not self._has_key:
                self._has_key = True
                self._key_at, self._key_time = self._count, -MOST_TIME if time is None else time
            self._early.append(pts)
            self._count += 1
        # Packets that were repeated or exchanged on their way prove nothing.
        usual = dts is None or self._newest_dts is None or dts > self._newest_dts
        if usual and pts is not None and self._highest_pts is not None and pts < self._highest_pts:
            self._pts_are_reordered = True
        self._newest_dts = dts
        if pts is not None:
            self._highest_pts = pts if self._highest_pts is None else max(pts, self._highest_pts)
        if time is not None:
            heappush(self._waiting, time)
            if len(self._waiting) > _MOST_WAITING:
                heappop(self._waiting)

    def lost(self, packet: Packet) -> None:
        """A packet shows no frame."""
        self._has_key = self._has_key and not packet.is_key
        time = packet.dts if packet.pts is None else packet.pts
        if time in self._waiting:
            self._waiting.remove(time)
            heapify(self._waiting)

    def begin(self, pts: int | None) -> int:
        """The first frame is shown: returns how many packets came before it and never will be."""
        early, self._early = self._early or deque(), None
        first = self._key_time if pts is None else pts
        self._waiting = sorted(time for time in self._waiting if time >= first)
        if pts is None:
            return self._key_at
        return self._count - len(early) + sum(other is not None and other < pts for other in early)

    def of(self, pts: int | None, *, reorders: bool) -> int | None:
        """The time of the next frame in the order of display, whose packet had ``pts``; None where nothing is known."""
        if pts is None or (reorders and not self._pts_are_reordered and self._waiting):
            return heappop(self._waiting) if self._waiting else None
        while self._waiting and self._waiting[0] <= pts:
            heappop(self._waiting)
        return pts


def valid_time(time: int | None) -> int | None:
    """A time, or None for one that means nothing."""
    return time if time is not None and -MOST_TIME < time < MOST_TIME else None
