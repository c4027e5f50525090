"""Uploads of changing values from the host without a wait: pinned memory is used again once the stream has read it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onestream.preprocess.cuda.device import DeviceArray, Event, Stream

SMALLEST_BYTES = 16 * 1024
"""Of a piece of pinned memory; a larger one is a power of two."""


@dataclass(slots=True)
class _Piece:
    memory: npt.NDArray[np.uint8]
    read: Event


class Staging:
    """Copies of host arrays to a GPU on one stream, which the caller may change at once.

    Must be kept until the stream has read what it uploads. Where all pinned memory is still to be read, more is made:
    for as many batches as are queued at once.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._pieces: list[_Piece] = []

    def upload(self, source: npt.NDArray[np.generic], target: DeviceArray) -> None:
        """Queue a copy to the start of a contiguous array. Raises ``ValueError`` where it does not fit."""
        values = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
        piece = self._free(values.nbytes)
        staged = piece.memory[: values.nbytes]
        staged[:] = values
        self._stream.upload(staged, target)
        self._stream.record(piece.read)

    def _free(self, size: int) -> _Piece:
        for piece in self._pieces:
            if piece.memory.nbytes >= size and piece.read.done:
                return piece
        room = max(SMALLEST_BYTES, 1 << (size - 1).bit_length())
        piece = _Piece(self._stream.pinned((room,), np.uint8), self._stream.event())
        self._pieces.append(piece)
        self._pieces.sort(key=lambda one: one.memory.nbytes)
        return piece
