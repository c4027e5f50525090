"""Surfaces, the YUV pictures that NVDEC writes on a GPU, and their conversion to RGB by the definition's rule.

The conversion is a kernel of our own, compiled by NVRTC when it is first used. It does the same sums with integers as
``color.to_rgb``, so that every bit is equal; PyNvVideoCodec's own conversion computes in float32 and rounds otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from onestream.preprocess.cuda.device import Device, DeviceArray, Stream
from onestream.preprocess.geometry import Size
from onestream.preprocess.video.common.color import ColorRule, Pixels, Planes, prepared, to_rgb
from onestream.preprocess.video.common.orientation import Orientation

KERNEL = r"""
extern "C" __global__ void yuv_to_rgb(
    const unsigned char *y, const unsigned char *u, const unsigned char *v,
    int pitch, int chroma_pitch, int chroma_step, int shift_down, int shift_across, int wide, int unused_bits,
    int luma, int v_red, int u_green, int v_green, int u_blue, int y_offset, int c_offset, int bits,
    unsigned char *rgb, int height, int width, int transpose, int flip_rows, int flip_columns)
{
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= height || column >= width)
        return;
    long long at = (long long)row * pitch, chroma_at = (long long)(row >> shift_down) * chroma_pitch;
    int chroma_column = (column >> shift_across) * chroma_step;
    int sample_y, sample_u, sample_v;
    if (wide) {
        sample_y = ((const unsigned short *)(y + at))[column] >> unused_bits;
        sample_u = ((const unsigned short *)(u + chroma_at))[chroma_column] >> unused_bits;
        sample_v = ((const unsigned short *)(v + chroma_at))[chroma_column] >> unused_bits;
    } else {
        sample_y = (y + at)[column];
        sample_u = (u + chroma_at)[chroma_column];
        sample_v = (v + chroma_at)[chroma_column];
    }
    int from_y = (sample_y - y_offset) * luma + (1 << (bits - 1));
    int from_u = sample_u - c_offset, from_v = sample_v - c_offset;
    int levels[3] = {
        (from_y + v_red * from_v) >> bits,
        (from_y + u_green * from_u + v_green * from_v) >> bits,
        (from_y + u_blue * from_u) >> bits};
    int to_row = transpose ? column : row, to_column = transpose ? row : column;
    int rows = transpose ? width : height, columns = transpose ? height : width;
    if (flip_rows)
        to_row = rows - 1 - to_row;
    if (flip_columns)
        to_column = columns - 1 - to_column;
    unsigned char *pixel = rgb + 3 * ((long long)to_row * columns + to_column);
    for (int channel = 0; channel < 3; channel++)
        pixel[channel] = levels[channel] < 0 ? 0 : levels[channel] > 255 ? 255 : levels[channel];
}
"""
"""Signed shifts are arithmetic, as in NumPy. One thread a pixel."""


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


_NAME = "yuv_to_rgb"
_BLOCK = (32, 8)


def prepare_colors(device: Device) -> None:
    """Compile the conversion. Raises ``CannotCompile`` where that is not possible."""
    device.kernel(KERNEL, _NAME)


def surface_rgb(surface: Surface, color: ColorRule, orientation: Orientation, stream: Stream) -> DeviceArray:
    """Queue the conversion of a surface to (height, width, 3) uint8 RGB as displayed.

    Raises ``ValueError`` where ``color`` cannot be resolved.
    """
    layout, (height, width) = surface.layout, surface.like.size_hw
    _, factors = prepared(surface.like, color, None)
    u, v, _ = layout.planes(surface.like.size_hw)
    base, pitch = surface.memory.pointer, layout.pitch(width)
    rgb = stream.allocate((*orientation.displayed_size(surface.like.size_hw), 3), np.uint8)
    numbers = (
        *(pitch, pitch, 2 if layout.interleaved else 1, *layout.shifts),
        *(layout.depth > 8, 16 - layout.depth, *(int(factor) for factor in factors)),
    )
    turned = (height, width, orientation.transpose, orientation.flip_rows, orientation.flip_columns)
    stream.launch(
        stream.device.kernel(KERNEL, _NAME),
        (-(-width // _BLOCK[0]), -(-height // _BLOCK[1])),
        _BLOCK,
        (base, base + u, base + v, *map(np.int32, numbers), rgb.pointer, *map(np.int32, turned)),
    )
    return rgb
