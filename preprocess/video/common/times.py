"""Works out when the frames of a video are shown, from the times of its packets: for files and streams alike."""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush

from onestream.wire.clock import Clock, Time

MOST_TIME = 1 << 62
"""Timestamps from here on mean nothing: FFmpeg computes with 64 bits."""

_MOST_WAITING = 64
_MOST_EARLY = 4096


class Times:
    """Works out the times of one video's frames, which never go back.

    A frame has the pts of its packet. Where packets carry none, or one that is the order of storage though the decoder
    reorders frames, the n-th frame has the n-th smallest of the packets' times (pts, else dts): exact but for a
    constant delay. What is not after the frame before is moved as ``wire.clock.Clock`` says.

    ``step`` is how long a frame is shown where nothing says it, in the time base of all times.
    """

    def __init__(self, step: Time) -> None:
        self._clock = Clock(step)
        # Times of packets whose frames were not shown yet, as a heap.
        self._waiting: list[int] = []
        self._highest_pts: int | None = None
        self._newest_dts: int | None = None
        self._pts_are_reordered = False
        # Until the first frame is shown: the pts of all packets, the place of the first keyframe and its time.
        self._early: deque[int | None] | None = deque(maxlen=_MOST_EARLY)
        self._count, self._key_at, self._key_time, self._has_key = 0, 0, -MOST_TIME, False

    @property
    def end(self) -> Time:
        """When the newest frame is no longer shown."""
        return self._clock.next_time

    def add(self, pts: int | None, dts: int | None, *, is_key: bool) -> None:
        """A packet goes to the decoder."""
        pts, dts = valid_time(pts), valid_time(dts)
        time = dts if pts is None else pts
        if self._early is not None:
            if is_key and not self._has_key:
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

    def lost(self, pts: int | None, dts: int | None, *, is_key: bool) -> None:
        """A packet shows no frame."""
        self._has_key = self._has_key and not is_key
        time = dts if pts is None else pts
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

    def of(self, pts: int | None, duration: int, *, reorders: bool) -> tuple[int | None, Time]:
        """The next frame in the order of display, whose packet had ``pts``: its time, None where nothing tells it, and
        when it is shown. ``duration`` is 0 where nothing tells it.
        """
        if pts is None or (reorders and not self._pts_are_reordered and self._waiting):
            pts = heappop(self._waiting) if self._waiting else None
        else:
            while self._waiting and self._waiting[0] <= pts:
                heappop(self._waiting)
        shown = self._clock.forward(pts, duration)
        return None if pts is None else int(shown), shown


def valid_time(time: int | None) -> int | None:
    """A time, or None for one that means nothing."""
    return time if time is not None and -MOST_TIME < time < MOST_TIME else None
