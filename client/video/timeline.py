"""Frame numbers and times that go on over the connections of one stream."""

from __future__ import annotations

import time
from collections.abc import Callable

from onestream.client.video.results import Gap


class Timeline:
    """Maps frames of the present connection to their place in the whole stream. Not thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first_index = 0
        self.next_index = 0
        self._offset_s: float | None = 0.0
        self._last_s = 0.0
        self._lost: tuple[float, str] | None = None
        self._gap_s = 0.0
        self.gaps: tuple[Gap, ...] = ()
        self._gap_unsaid = False

    def lost(self, reason: str, *, decoded: int) -> None:
        """The connection ended, in which so many frames were decoded."""
        self._first_index = self.next_index = max(self.next_index, self._first_index + decoded)
        # Attempts that fail make the gap longer; why it began stays.
        if self._lost is None:
            self._lost = (self._clock(), reason)

    def connected(self) -> None:
        """Source and server agreed; after a loss that is the end of a gap."""
        if self._lost is not None:
            began_s, reason = self._lost
            self._lost, self._gap_s = None, self._clock() - began_s
            self.gaps = (*self.gaps, Gap(self._first_index, self._gap_s, reason))
            self._offset_s, self._gap_unsaid = None, True

    def place(self, index: int, pts_seconds: float | None) -> tuple[int, float | None, bool]:
        """Number and seconds of a connection's frame in the whole stream, and whether it is the first after a gap."""
        after_gap, self._gap_unsaid = self._gap_unsaid, False
        number = self._first_index + index
        self.next_index = max(self.next_index, number + 1)
        if pts_seconds is None:
            return number, None, after_gap
        if self._offset_s is None:
            # The new connection counts its seconds anew, so this machine's clock tells how long the gap was.
            self._offset_s = self._last_s + self._gap_s - pts_seconds
        self._last_s = pts_seconds + self._offset_s
        return number, self._last_s, after_gap
