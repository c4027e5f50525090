"""Surfaces, the YUV pictures that NVDEC writes on a GPU, and how the resize reads them as RGB.

The resize converts them by the definition's rule while it reads (``cuda/source_kernels.py``), so no RGB is stored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from onestream.preprocess.cuda.device import DeviceArray, Stream
from onestream.preprocess.cuda.source_kernels import YuvFormat
from onestream.preprocess.geometry import Size
from onestream.preprocess.video.common.color import ColorRule, Pixels, Planes, prepared, to_rgb
from onestream.preprocess.video.common.orientation import Orientation


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a surface in memory, without gaps: luma, then chroma.

    ``format`` is PyNvVideoCodec's name. ``shifts`` are log2 of the chroma's subsampling (down, across); ``depth`` is in
    bits, which above 8 are the upper ones of 16. ``interleaved``: U and V take turns in one plane, and rows have an
    even number of luma samples.
    """

    format: str
    shifts: tuple[int, int]
    depth: int
    interleaved: bool

    @property
    def sample_bytes(self) -> int:
        """1 or 2."""
        return 1 if self.depth == 8 else 2

    def pitch(self, width: int) -> int:
        """Bytes from row to row, of luma and, for the two formats that NVDEC writes, of chroma."""
        return (width + (width & 1 if self.interleaved else 0)) * self.sample_bytes

    def planes(self, size_hw: Size) -> tuple[int, int, int]:
        """The offsets of U, of V and of the end, in bytes from the start."""
        height, pitch = size_hw[0], self.pitch(size_hw[1])
        chroma = (height + (1 << self.shifts[0]) - 1 >> self.shifts[0]) * pitch
        luma = height * pitch
        if self.interleaved:
            return luma, luma + self.sample_bytes, luma + chroma
        return luma, luma + chroma, luma + 2 * chroma


LAYOUTS = {
    ((1, 1), 8): Layout("NV12", (1, 1), 8, True),
    ((1, 1), 10): Layout("P016", (1, 1), 10, True),
    ((0, 0), 8): Layout("YUV444", (0, 0), 8, False),
    ((0, 0), 10): Layout("YUV444_16Bit", (0, 0), 10, False),
}
"""By subsampling and depth. 4:2:2, which only the newest NVDEC decodes, is left to the CPU."""


@dataclass(eq=False, slots=True, kw_only=True)
class Surface:
    """A decoded picture on a GPU, stored as coded and not turned.

    It has what ``stream.StreamDecoder`` asks of a picture. ``memory`` is its own, uint8; ``like`` is what is known of
    the sequence: size, subsampling, depth and colours, without samples. ``pts`` and ``duration`` are its packet's.
    """

    memory: DeviceArray
    layout: Layout
    like: Planes
    orientation: Orientation
    pts: int | None
    duration: int
    key_frame: bool = True
    is_corrupt: bool = False

    @property
    def height(self) -> int:
        """Rows as stored."""
        return self.like.size_hw[0]

    @property
    def width(self) -> int:
        """Columns as stored."""
        return self.like.size_hw[1]

    def to_host(self, stream: Stream) -> Planes:
        """The same on the host, waited for."""
        layout, (height, width) = self.layout, self.like.size_hw
        pinned = stream.pinned(self.memory.shape, np.uint8)
        stream.download(self.memory, pinned)
        stream.sync()
        samples = np.array(pinned)
        if layout.depth > 8:
            samples = samples.view(np.uint16) >> 16 - layout.depth
        row = layout.pitch(width) // layout.sample_bytes
        rows = samples.reshape(-1, row)
        down = height + (1 << layout.shifts[0]) - 1 >> layout.shifts[0]
        if layout.interleaved:
            chroma = rows[height : height + down].reshape(down, row // 2, 2)
            u, v = (np.ascontiguousarray(chroma[:, :, at]) for at in (0, 1))
        else:
            u, v = rows[height : height + down], rows[height + down : height + 2 * down]
        return replace(self.like, y=rows[:height], u=u, v=v)

    def picture(self, color: ColorRule, stream: Stream) -> Pixels:
        """The whole picture as displayed, (height, width, 3) uint8 RGB on the host, waited for."""
        return self.orientation.turn(to_rgb(self.to_host(stream), color))


def yuv_format(surface: Surface, color: ColorRule, orientation: Orientation) -> YuvFormat:
    """How the resize reads a surface as displayed. Raises ``ValueError`` where ``color`` cannot be resolved."""
    layout, size_hw = surface.layout, surface.like.size_hw
    rows, columns = orientation.displayed_size(size_hw)
    down = (rows - 1, -1, 0) if orientation.flip_rows else (0, 1, 0)
    across = (columns - 1, 0, -1) if orientation.flip_columns else (0, 0, 1)
    if orientation.transpose:
        down, across = across, down
    _, factors = prepared(surface.like, color, None)
    u, v, _ = layout.planes(size_hw)
    luma, v_red, u_green, v_green, u_blue, y_offset, c_offset, bits = (int(factor) for factor in factors)
    return YuvFormat(
        u, v, layout.pitch(size_hw[1]), 2 if layout.interleaved else 1, *layout.shifts,
        16 - layout.depth, layout.depth > 8, luma, v_red, u_green, v_green, u_blue, y_offset, c_offset, bits,
        rows, columns, down, across,
    )  # fmt: skip
