"""Reads how a player must turn a video's frames: the display matrix of its container."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import av
import numpy as np
import numpy.typing as npt

from onestream.preprocess.geometry import Size, Window

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

Samples = TypeVar("Samples", np.uint8, np.uint16)


@dataclass(frozen=True, slots=True)
class Orientation:
    """First rows and columns change places (``transpose``), then rows are reversed, then columns."""

    transpose: bool = False
    flip_rows: bool = False
    flip_columns: bool = False

    def turn(self, pixels: npt.NDArray[Samples]) -> npt.NDArray[Samples]:
        """Stored (height, width, …) to displayed."""
        if self.transpose:
            pixels = pixels.swapaxes(0, 1)
        return np.ascontiguousarray(pixels[:: -1 if self.flip_rows else 1, :: -1 if self.flip_columns else 1])

    def displayed_size(self, stored_hw: Size) -> Size:
        """(height, width) as displayed."""
        return (stored_hw[1], stored_hw[0]) if self.transpose else stored_hw

    def stored_window(self, window: Window, stored_hw: Size) -> Window:
        """The window of the stored picture that a window of the displayed one shows."""
        height, width = self.displayed_size(stored_hw)
        top = height - window.top - window.height if self.flip_rows else window.top
        left = width - window.left - window.width if self.flip_columns else window.left
        if self.transpose:
            return Window(left, top, window.width, window.height)
        return Window(top, left, window.height, window.width)


def orientation_of(frame: VideoFrame) -> Orientation:
    """The orientation of a decoded frame.

    The matrix maps (x, y) to (a x + c y, b x + d y) in 16.16 fixed point (ISO/IEC 14496-12, 8.3.2). Raises
    ``ValueError`` where it does anything but quarter turns and mirrors.
    """
    # Side data ties a frame to itself until the garbage collector comes. A tiny copy has the same and holds no picture.
    try:
        holder = frame.reformat(8, 8, "gray")
    except av.FFmpegError:
        # Colours that swscale does not know.
        holder = frame
    matrix: Any = holder.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return Orientation()
    a, b, _, c, d = (int(value) for value in np.frombuffer(memoryview(matrix), np.int32)[:5])
    if a and d and not b and not c:
        return Orientation(False, d < 0, a < 0)
    if b and c and not a and not d:
        return Orientation(True, b < 0, c < 0)
    raise ValueError(f"is displayed turned by {-frame.rotation} degrees; only quarter turns and mirrors are possible")
