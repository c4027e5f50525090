"""Tables that kernels read, kept on a GPU for as long as there is room."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from onestream.preprocess.cuda.device import Stream
from onestream.preprocess.cuda.staging import Staging

ROOM_AT_FIRST, ROOM_AT_MOST = 1 << 18, 1 << 24
"""Bytes of a stream's tables: the smaller at first, doubled up to the larger as they fill up, and then begun anew.

A table for 224 pixels takes 10 to 50 KB. Only tables of one batch that need more get more.
"""

_Key = TypeVar("_Key", bound=Hashable)


def aligned(size: int) -> int:
    """Bytes, rounded up so that anything may follow."""
    return -(-size // 16) * 16


class Tables:
    """The tables of one stream, by what they were made of."""

    def __init__(self, stream: Stream, staging: Staging) -> None:
        self._stream, self._staging = stream, staging
        self._memory = stream.allocate((0,), np.uint8)
        self._places: dict[Hashable, int] = {}
        self._used = 0

    def addresses(self, tables: Mapping[_Key, npt.NDArray[np.generic]]) -> dict[_Key, int]:
        """The address of each table, valid for work that is queued before the next call."""
        new = {key: table for key, table in tables.items() if key not in self._places}
        room = self._memory.nbytes
        if self._used + sum(aligned(table.nbytes) for table in new.values()) > room:
            # All are forgotten at once. What the stream still reads is overwritten, or freed, in its order.
            self._places, self._used = {}, 0
            new = dict(tables)
            needed = sum(aligned(table.nbytes) for table in new.values())
            if needed > room or room < ROOM_AT_MOST:
                room = max(1 << (needed - 1).bit_length(), min(2 * room, ROOM_AT_MOST), ROOM_AT_FIRST)
                self._memory = self._stream.allocate((room,), np.uint8)
        if new:
            begin = self._used
            values = np.zeros(sum(aligned(table.nbytes) for table in new.values()), np.uint8)
            for key, table in new.items():
                values[self._used - begin :][: table.nbytes] = table.view(np.uint8)
                self._places[key] = self._used
                self._used += aligned(table.nbytes)
            self._staging.upload(values, self._memory.rows(begin, self._used))
        return {key: self._memory.pointer + self._places[key] for key in tables}
