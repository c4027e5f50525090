"""Reads arrays of any sizes from a GPU: pinned memory of the host is used again, so that no copy waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.preprocess.cuda.device import DeviceArray, Stream
from onestream.preprocess.cuda.tables import aligned


class Reading:
    """Copies to the host on one stream; belongs to its thread, which waits for the stream between the two calls."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._memory: npt.NDArray[np.uint8] = stream.pinned((0,), np.uint8)
        self._queued: list[npt.NDArray[Any]] = []

    def queue(self, arrays: Sequence[DeviceArray]) -> None:
        """Queue copies of contiguous arrays, which must stay until the stream has passed."""
        size = sum(aligned(array.nbytes) for array in arrays)
        if size > self._memory.nbytes:
            # To release pinned memory waits, so it doubles.
            self._memory = self._stream.pinned((1 << (size - 1).bit_length(),), np.uint8)
        self._queued = []
        at = 0
        for array in arrays:
            place = self._memory[at : at + array.nbytes]
            self._stream.download(array, place)
            self._queued.append(place.view(array.dtype).reshape(array.shape))
            at += aligned(array.nbytes)

    def values(self) -> list[npt.NDArray[Any]]:
        """What was queued last, in memory of the caller's own, once the stream was waited for."""
        return [np.array(place) for place in self._queued]
