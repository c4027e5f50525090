"""Tables that kernels read, kept on a GPU for as long as there is room."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from onestream.preprocess.cuda.device import Stream
from onestream.preprocess.cuda.staging import Staging

Key = tuple[int, ...]
_Sizes = TypeVar("_Sizes", int, npt.NDArray[np.int64])
Made = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]
"""The bytes of tables, one after the other, and numbers about each: where it begins in them, a multiple of 16, and what
else is known."""

ROOM_AT_FIRST, ROOM_AT_MOST = 1 << 18, 1 << 24
"""Bytes of a stream's tables: the smaller at first, doubled up to the larger as they fill up, and then begun anew.

A table for 224 pixels takes 10 to 50 KB. Only tables of one batch that need more get more.
"""


def aligned(size: _Sizes) -> _Sizes:
    """Bytes, rounded up so that anything may follow."""
    return -(-size // 16) * 16


class Tables:
    """The tables of one stream, by what ``make`` makes them of: keys, int64 (n, numbers of each)."""

    def __init__(self, stream: Stream, staging: Staging, make: Callable[[npt.NDArray[np.int64]], Made]) -> None:
        self._stream, self._staging, self._make = stream, staging, make
        self._memory = stream.allocate((0,), np.uint8)
        self._known: dict[Key, list[int]] = {}
        self._used = 0

    def about(self, keys: Sequence[Key]) -> npt.NDArray[np.int64]:
        """The numbers about the table of each key, of which the first is its address.

        They are valid for work that is queued before the next call.
        """
        wanted = dict.fromkeys(keys)
        new = [key for key in wanted if key not in self._known]
        if new:
            values, about = self._make(np.array(new, np.int64))
            room = self._memory.nbytes
            if self._used + values.nbytes > room:
                # All are forgotten at once. What the stream still reads is overwritten, or freed, in its order.
                self._known, self._used = {}, 0
                if len(new) < len(wanted):
                    new = list(wanted)
                    values, about = self._make(np.array(new, np.int64))
                if values.nbytes > room or room < ROOM_AT_MOST:
                    room = max(1 << (values.nbytes - 1).bit_length(), min(2 * room, ROOM_AT_MOST), ROOM_AT_FIRST)
                    self._memory = self._stream.allocate((room,), np.uint8)
            end = self._used + aligned(values.nbytes)
            self._staging.upload(values, self._memory.rows(self._used, min(end, room)))
            about[:, 0] += self._used
            self._known |= zip(new, about.tolist(), strict=True)
            self._used = end
        found = np.array([self._known[key] for key in keys], np.int64)
        found[:, 0] += self._memory.pointer
        return found
