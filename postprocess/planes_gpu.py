"""A decoded surface's planes on the host: taken, turned and cut to 8 bit on the GPU, downloaded once.

In the GPU's memory a frame is three planes, one after the other without gaps: Y, U and V. One launch does all of them:
threads are columns x rows, and the rows of the planes are counted through. A thread whose column lies beyond its plane
does nothing. By design, not measured on a GPU.
"""

from __future__ import annotations

import numpy as np

from onestream.postprocess.planes import subsampled
from onestream.preprocess.cuda.device import Device, Stream
from onestream.preprocess.geometry import Size
from onestream.preprocess.video.common.color import Pixels, Planes
from onestream.preprocess.video.common.orientation import Orientation
from onestream.preprocess.video.gpu.surfaces import Surface

PLANES = r"""
struct Plane { int height, width; long long offset; };

__device__ Plane plane_of(int number, int height, int width, int chroma_height, int chroma_width)
{
    Plane luma = {height, width, 0};
    Plane chroma = {chroma_height, chroma_width,
        (long long)height * width + (number - 1) * ((long long)chroma_height * chroma_width)};
    return number ? chroma : luma;
}

// Plane, row and column of the sample that is this thread's; false where it has none.
__device__ bool own_sample(
    int height, int width, int chroma_height, int chroma_width, int &number, int &row, int &column)
{
    column = blockIdx.x * blockDim.x + threadIdx.x;
    row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= height + 2 * chroma_height)
        return false;
    number = row < height ? 0 : 1 + (row - height) / chroma_height;
    row -= number ? height + (number - 1) * chroma_height : 0;
    return column < (number ? chroma_width : width);
}
"""
"""What kernels need that work on such a frame."""

TAKE = (
    PLANES
    + r"""
extern "C" __global__ void take_planes(
    const unsigned char *y, const unsigned char *u, const unsigned char *v, int pitch, int chroma_step, int wide,
    int transpose, int flip_rows, int flip_columns,
    unsigned char *frame, int height, int width, int chroma_height, int chroma_width)
{
    int number, row, column;
    if (!own_sample(height, width, chroma_height, chroma_width, number, row, column))
        return;
    Plane plane = plane_of(number, height, width, chroma_height, chroma_width);
    int from_row = flip_rows ? plane.height - 1 - row : row;
    int from_column = flip_columns ? plane.width - 1 - column : column;
    int stored_row = transpose ? from_column : from_row;
    int at = (transpose ? from_row : from_column) * (number ? chroma_step : 1);
    const unsigned char *line = (number == 0 ? y : number == 1 ? u : v) + (long long)stored_row * pitch;
    // Deep samples are the upper bits of 16.
    frame[plane.offset + (long long)row * plane.width + column] =
        wide ? ((const unsigned short *)line)[at] >> 8 : line[at];
}
"""
)
_TAKE_NAME = "take_planes"

_BLOCK = (32, 8)
Arguments = tuple[int | np.int32, ...]


def prepare_taking(device: Device) -> None:
    """Compile the kernel. Raises ``CannotCompile`` where that is not possible."""
    device.kernel(TAKE, _TAKE_NAME)


class GpuPlanes:
    """Memory for the planes of frames of one size and format, on the GPU (``frame``) and pinned on the host."""

    def __init__(self, size_hw: Size, shifts: Size, stream: Stream) -> None:
        chroma_hw = subsampled(size_hw, shifts)
        self.sizes = (size_hw, chroma_hw, chroma_hw)
        count = sum(height * width for height, width in self.sizes)
        self.frame, self._pinned = stream.allocate((count,), np.uint8), stream.pinned((count,), np.uint8)

    @property
    def numbers(self) -> tuple[np.int32, ...]:
        """Height and width of luma, then of chroma, as kernels take them."""
        return tuple(np.int32(side) for size_hw in self.sizes[:2] for side in size_hw)

    def over_planes(self) -> tuple[int, int]:
        """The grid whose threads are all samples."""
        return grid(sum(height for height, _ in self.sizes), self.sizes[0][1])

    def take(self, surface: Surface, orientation: Orientation, stream: Stream) -> None:
        """Queue the surface's planes in 8 bit, as displayed."""
        layout, stored_hw = surface.layout, surface.like.size_hw
        u, v, _ = layout.planes(stored_hw)
        y = surface.memory.pointer
        stored = (layout.pitch(stored_hw[1]), 2 if layout.interleaved else 1, layout.depth > 8)
        turns = (orientation.transpose, orientation.flip_rows, orientation.flip_columns)
        arguments: Arguments = (*map(np.int32, (*stored, *turns)), self.frame.pointer, *self.numbers)
        launch(stream, TAKE, _TAKE_NAME, self.over_planes(), y, y + u, y + v, *arguments)

    def download(self, stream: Stream) -> None:
        """Queue the copy to the host."""
        stream.download(self.frame, self._pinned)

    def write_to(self, out: Planes) -> None:
        """Write what was downloaded, and waited for, to planes of the host, whose rows may be padded."""
        ends = np.cumsum([height * width for height, width in self.sizes])
        for end, (height, width), into in zip(ends, self.sizes, (out.y, out.u, out.v), strict=True):
            plane: Pixels = self._pinned[end - height * width : end].reshape(height, width)
            into[:height, :width] = plane


class PlanesTaker:
    """The planes of surfaces on the host. An instance serves one video, one frame at a time, from any thread.

    ``stream`` is its alone. A new size or format of frames replaces its memory.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._made: tuple[object, GpuPlanes] | None = None

    def take(self, surface: Surface, orientation: Orientation, out: Planes) -> None:
        """Write the surface, turned as displayed, to ``out``: 8 bit, of the displayed frame's size and chroma.

        The surface must be done. Nothing is being read any more when this returns or raises. Raises ``ValueError``
        where ``out`` does not fit.
        """
        check_fits(out, surface, orientation)
        stream, key = self._stream, (out.size_hw, out.shifts)
        stream.device.enter()
        try:
            if self._made is None or self._made[0] != key:
                # What is not needed any more makes room first.
                self._made = None
                self._made = key, GpuPlanes(out.size_hw, out.shifts, stream)
            planes = self._made[1]
            planes.take(surface, orientation, stream)
            planes.download(stream)
        finally:
            # An error, too, must let go of no memory that is still read.
            stream.sync()
        planes.write_to(out)


def check_fits(out: Planes, surface: Surface, orientation: Orientation) -> None:
    """Raise ``ValueError`` where planes on the host cannot take a surface in 8 bit, turned as displayed."""
    like = surface.like
    shifts = (like.shifts[1], like.shifts[0]) if orientation.transpose else like.shifts
    wanted = (orientation.displayed_size(like.size_hw), shifts, 8)
    if (out.size_hw, out.shifts, out.depth) != wanted:
        raise ValueError(
            f"out has size, chroma shifts and depth {(out.size_hw, out.shifts, out.depth)}, the frame {wanted}"
        )


def grid(rows: int, columns: int) -> tuple[int, int]:
    """Blocks whose threads are columns x rows."""
    return -(-columns // _BLOCK[0]), -(-rows // _BLOCK[1])


def launch(stream: Stream, source: str, name: str, over: tuple[int, int], *arguments: int | np.int32) -> None:
    """Queue a kernel of a source over a ``grid``."""
    stream.launch(stream.device.kernel(source, name), over, _BLOCK, arguments)
