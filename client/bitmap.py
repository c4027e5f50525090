"""Writes pixels as a BMP file, straight into the memory where the file is wanted."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_HEADERS = struct.Struct("<2sI4xIIiiHHIIiiII")
_INFO_SIZE = 40
_GRAY_PALETTE = bytes(value for level in range(256) for value in (level, level, level, 0))


@dataclass(frozen=True, eq=False)
class Bitmap:
    """An uncompressed BMP of uint8 pixels: ``[height, width, 3]`` in RGB order, or ``[height, width]`` gray.

    Gray is written as 8 bits with a palette of 256 grays, so it takes a third of the size.
    """

    pixels: npt.NDArray[np.uint8]

    @property
    def byte_size(self) -> int:
        """Length of the file."""
        return self._pixels_at + self._row_bytes * self.pixels.shape[0]

    def to_bytes(self) -> bytes:
        """The whole file."""
        data = bytearray(self.byte_size)
        self.write_into(memoryview(data))
        return bytes(data)

    def write_into(self, buffer: memoryview) -> None:
        """Write the file into ``buffer``, of length ``byte_size``."""
        height, width = self.pixels.shape[:2]
        is_gray = self.pixels.ndim == 2
        buffer[: _HEADERS.size] = _HEADERS.pack(
            b"BM",
            self.byte_size,
            self._pixels_at,
            _INFO_SIZE,
            width,
            height,
            1,
            8 if is_gray else 24,
            0,
            self._row_bytes * height,
            0,
            0,
            256 if is_gray else 0,
            0,
        )
        buffer[_HEADERS.size : self._pixels_at] = _GRAY_PALETTE if is_gray else b""
        used = width * (1 if is_gray else 3)
        rows: npt.NDArray[np.uint8] = np.ndarray((height, self._row_bytes), np.uint8, buffer, self._pixels_at)
        rows[:, used:] = 0
        # BMP rows run from bottom to top; channel by channel is four times faster than all at once.
        if is_gray:
            rows[:, :used] = self.pixels[::-1]
        else:
            for channel in range(3):
                rows[:, channel:used:3] = self.pixels[::-1, :, 2 - channel]

    @property
    def _pixels_at(self) -> int:
        return _HEADERS.size + (len(_GRAY_PALETTE) if self.pixels.ndim == 2 else 0)

    @property
    def _row_bytes(self) -> int:
        """A row's length, padded to a multiple of 4."""
        return -(-self.pixels.shape[1] * (1 if self.pixels.ndim == 2 else 3) // 4) * 4
