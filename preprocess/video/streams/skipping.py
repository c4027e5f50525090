"""Finds packets of an H.264 stream that need not be decoded: no frame refers to theirs, and nobody wants them.

Frames are sampled by their number in the order of display, and packets come in another. What makes the number of a
packet certain is its dts: no packet that follows is shown before it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from onestream.preprocess.video.streams.sampling import Sampler

if TYPE_CHECKING:
    from onestream.wire.video import Packet

_MOST_WAITING = 4
"""Packets that are held back at most until it is certain whether one is wanted."""
_MOST_PENDING = 64
"""H.264 reorders 16 frames at most."""

_SLICE_TYPES = (1, 5)
_SLICES_OR_SETS = (*_SLICE_TYPES, 7, 8)
"""NAL unit types of H.264 (table 7-1): slices of a picture, sequence and picture parameter set."""


def nal_length_size(extradata: bytes) -> int | None:
    """Bytes of the length before each NAL unit, from an H.264 stream's header.

    ISO/IEC 14496-15, 5.3.3.1. None for Annex B, whose units begin with a start code.
    """
    return (extradata[4] & 3) + 1 if len(extradata) > 6 and extradata[0] == 1 else None


def is_disposable(data: bytes, length_size: int | None) -> bool:
    """Whether the picture in a packet of H.264 is no reference of any other: its ``nal_ref_idc`` is 0 (7.4.1)."""
    at = 0
    while True:
        if length_size is None:
            start = data.find(b"\0\0\1", at)
            begin = start + 3 if start >= 0 else len(data)
            at = begin
        else:
            begin = at + length_size
            at = begin + int.from_bytes(data[at:begin], "big")
        if begin >= len(data):
            return False
        kind = data[begin] & 31
        if kind in _SLICES_OR_SETS:
            return kind in _SLICE_TYPES and not data[begin] & 0x60


class Skipper:
    """Passes the packets of one stream on to its decoder, except those that are not needed.

    A stream whose packets do not all carry ascending dts and a pts that is not before it is passed on whole. Where the
    decoder reorders frames, only packets that come after one that is shown later are left out: some containers, such as
    AVI, number the packets as they are stored and call that pts.
    """

    def __init__(self, sampler: Sampler[Any], time_base: Fraction, extradata: bytes) -> None:
        self._sampler, self._time_base = sampler, time_base
        self._length_size = nal_length_size(extradata)
        self._waiting: deque[Packet] = deque()
        # Of frames that are not shown yet: all in the order of display, and those left out.
        self._pending: list[int] = []
        self._skipped: set[int] = set()
        self._newest_dts: int | None = None
        self._highest_pts: int | None = None
        self._reorders = True
        self._next_index = 0
        self._newest_pts: int | None = None
        self._trusted = True

    def add(self, packet: Packet, *, reorders: bool) -> list[Packet]:
        """A packet that came; returns those to decode now, in the order in which they came.

        ``reorders``: whether the decoder may show frames in another order than that of their packets.
        """
        pts, dts = packet.pts, packet.dts
        usual = pts is not None and dts is not None and pts >= dts
        usual = usual and (self._newest_dts is None or (dts is not None and dts > self._newest_dts))
        at = bisect_left(self._pending, pts) if pts is not None else 0
        if not usual or self._pending[at : at + 1] == [pts]:
            self._trusted = False
        self._waiting.append(packet)
        if not self._trusted:
            return self.flush()
        assert pts is not None
        self._pending.insert(at, pts)
        self._newest_dts, self._reorders = dts, reorders
        if self._highest_pts is None or pts > self._highest_pts:
            self._highest_pts = pts
        if len(self._pending) > _MOST_PENDING:
            # The decoder never showed it.
            self._next_index += self._pending[0] in self._skipped
            self._skipped.discard(self._pending.pop(0))
        return self._released()

    def flush(self) -> list[Packet]:
        """All that are held back: nothing follows that could tell more."""
        released = list(self._waiting)
        self._waiting.clear()
        return released

    def lost(self, packet: Packet) -> None:
        """A packet could not be decoded and shows no frame."""
        if packet.pts in self._pending:
            self._pending.remove(packet.pts)

    def number(self, pts: int | None) -> int:
        """The number of the next frame that the decoder gives, with those that were left out before it counted."""
        position = 0 if pts is None else bisect_right(self._pending, pts)
        if pts is not None:
            if not self._trusted and self._newest_pts is not None and pts < self._newest_pts:
                # The clock was set back: all that was left out before lies behind.
                position = len(self._pending)
            self._newest_pts = pts
        passed = self._skipped.intersection(self._pending[:position])
        del self._pending[:position]
        self._skipped -= passed
        index = self._next_index + len(passed)
        self._next_index = index + 1
        return index

    def _released(self) -> list[Packet]:
        released = []
        while self._waiting:
            needed = self._needed(self._waiting[0])
            if needed is None and len(self._waiting) <= _MOST_WAITING:
                break
            packet = self._waiting.popleft()
            if needed is False and packet.pts is not None:
                self._skipped.add(packet.pts)
            else:
                released.append(packet)
        return released

    def _needed(self, packet: Packet) -> bool | None:
        """Whether to decode a packet; None where only packets to come can tell."""
        # Before the first frame is shown no frame has a number.
        if not self._next_index or not is_disposable(packet.data, self._length_size):
            return True
        assert packet.pts is not None
        assert self._newest_dts is not None
        assert self._highest_pts is not None
        if self._reorders and packet.pts == self._highest_pts:
            return True
        if packet.pts > self._newest_dts:
            return None
        at = bisect_left(self._pending, packet.pts)
        follows = self._pending[at + 1] if at + 1 < len(self._pending) else None
        next_s = None
        if follows is not None and follows <= self._newest_dts:
            next_s = follows * self._time_base
        if self._sampler.skips(self._next_index + at, packet.pts * self._time_base, next_s):
            return False
        return True if next_s is not None or not self._sampler.by_time else None
