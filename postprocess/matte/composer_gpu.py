"""Persons over another background on a GPU: a decoded surface in, the composed planes on the host out.

The steps are those of ``composer``, with the same integers, so that every bit is equal. Tables and backgrounds are made
on the host by the CPU's code, once for each size. At 1080p a frame over a colour or a picture moves 16 MB within the
GPU, 5 µs at 3 TB/s, and 3 MB to the host, which is what takes time: 50 µs or more. By design, not measured on a GPU.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onestream.postprocess.matte.background import CELL, Background, Blur
from onestream.postprocess.matte.kernels_gpu import KERNELS, NAMES
from onestream.postprocess.matte.stretch import Levels, Steps, mixed, steps
from onestream.postprocess.planes_gpu import Arguments, GpuPlanes, check_fits, grid, launch, prepare_taking
from onestream.preprocess.cuda.device import Device, DeviceArray, Stream
from onestream.preprocess.geometry import Size
from onestream.preprocess.video.common.color import ColorRule, Planes
from onestream.preprocess.video.common.orientation import Orientation
from onestream.preprocess.video.gpu.surfaces import Surface


def prepare_composing(device: Device) -> None:
    """Compile the kernels. Raises ``CannotCompile`` where that is not possible."""
    prepare_taking(device)
    for name in NAMES:
        device.kernel(KERNELS, name)


class GpuComposer:
    """``composer.Composer`` for surfaces. An instance serves one video, one frame at a time, from any thread.

    ``stream`` is this composer's alone. On the GPU it holds two frames of 8 bit, with a blur also their cells, and on
    the host one frame of pinned memory; a new size or format of frames replaces them.
    """

    def __init__(self, background: Background, *, rule: ColorRule | None = None, stream: Stream) -> None:
        self._background, self._rule, self._stream = background, rule or ColorRule(), stream
        self._made: tuple[object, _Buffers] | None = None

    def compose(self, surface: Surface, orientation: Orientation, matte: Levels, out: Planes) -> None:
        """Write the surface, turned as displayed, to ``out`` with what is not person replaced.

        ``matte`` is as for ``Composer.compose``. ``out`` is on the host, 8 bit, of the size and chroma of the displayed
        frame; rows may be padded; its tags are those of the frame. The surface must be done. The frame is copied to the
        host once and waited for once; nothing is being read any more when this returns or raises. Raises ``ValueError``
        as ``Composer.compose`` does.
        """
        if matte.ndim != 2 or matte.size == 0:
            raise ValueError(f"a matte is (height, width), got shape {matte.shape}")
        check_fits(out, surface, orientation)
        stream = self._stream
        stream.device.enter()
        try:
            buffers = self._buffers(out, (matte.shape[0], matte.shape[1]))
            buffers.pinned_matte[...] = matte
            stream.upload(buffers.pinned_matte, buffers.matte)
            buffers.planes.take(surface, orientation, stream)
            if buffers.blur is not None:
                buffers.blur.enqueue(buffers.planes, stream)
            buffers.compose(stream)
            buffers.planes.download(stream)
        finally:
            # An error, too, must let go of no memory that is still read.
            stream.sync()
        buffers.planes.write_to(out)

    def _buffers(self, like: Planes, matte_hw: Size) -> _Buffers:
        key = (like.size_hw, like.shifts, like.matrix_tag, like.full_range, matte_hw)
        if self._made is None or self._made[0] != key:
            # What is not needed any more makes room first.
            self._made = None
            self._made = key, _Buffers(like, matte_hw, self._background, self._rule, self._stream)
        return self._made[1]


class _Buffers:
    """All memory for frames of one size and format, and the launches that work on it."""

    def __init__(self, like: Planes, matte_hw: Size, background: Background, rule: ColorRule, stream: Stream) -> None:
        self.planes = GpuPlanes(like.size_hw, like.shifts, stream)
        sizes = self.planes.sizes
        self._back = stream.allocate(self.planes.frame.shape, np.uint8)
        self.matte, self.pinned_matte = stream.allocate(matte_hw, np.uint8), stream.pinned(matte_hw, np.uint8)
        self._positions = _Positions(sizes, matte_hw, (None, None), stream)
        self.blur: _BlurBuffers | None = None
        if isinstance(background, Blur):
            self.blur = _BlurBuffers(background, like.shifts, sizes, self._back, stream)
        else:
            layers = background.layers(like, rule)
            behind = np.concatenate([mixed(layer.rows, layer.steps, axis=0).ravel() for layer in layers])
            stream.upload(behind, self._back)
            # The copy reads memory of the host that goes away now.
            stream.sync()

    def compose(self, stream: Stream) -> None:
        """Queue the composition of ``frame`` over what lies behind it, in place."""
        matte: Arguments = (self.matte.pointer, *map(np.int32, self.matte.shape))
        planes = self.planes
        pointers = (planes.frame.pointer, self._back.pointer)
        arguments: Arguments = (*pointers, *matte, *self._positions.pointers, *planes.numbers)
        launch(stream, KERNELS, "matte_compose", planes.over_planes(), *arguments)


class _BlurBuffers:
    """The memory of ``background.Blur``: the means of its cells, three planes of equal size, twice."""

    def __init__(
        self, blur: Blur, shifts: Size, sizes: tuple[Size, Size, Size], back: DeviceArray, stream: Stream
    ) -> None:
        self._blur, self._back = blur, back
        self._cells_hw = -(-sizes[0][0] // CELL), -(-sizes[0][1] // CELL)
        self._chroma_cell = CELL >> shifts[0], CELL >> shifts[1]
        shape = (3, *self._cells_hw)
        self._cells, self._other = stream.allocate(shape, np.uint8), stream.allocate(shape, np.uint8)
        self._positions = _Positions(sizes, self._cells_hw, ((CELL, CELL), self._chroma_cell), stream)

    def enqueue(self, planes: GpuPlanes, stream: Stream) -> None:
        """Queue the blur of the frame to what lies behind it."""
        cells, other = self._cells.pointer, self._other.pointer
        cells_hw = tuple(map(np.int32, self._cells_hw))
        over_cells = grid(3 * self._cells_hw[0], self._cells_hw[1])
        cell = tuple(map(np.int32, (CELL, *self._chroma_cell)))
        frame: Arguments = (planes.frame.pointer, *planes.numbers)
        launch(stream, KERNELS, "matte_cell_means", over_cells, *frame, *cell, cells, *cells_hw)
        reach = np.int32(self._blur.reach)
        for _ in range(self._blur.filters):
            launch(stream, KERNELS, "matte_box_filter", over_cells, cells, other, *cells_hw, reach, np.int32(True))
            launch(stream, KERNELS, "matte_box_filter", over_cells, other, cells, *cells_hw, reach, np.int32(False))
        back: Arguments = (self._back.pointer, *planes.numbers)
        arguments: Arguments = (cells, *cells_hw, *self._positions.pointers, *back)
        launch(stream, KERNELS, "matte_stretch_cells", planes.over_planes(), *arguments)


class _Positions:
    """``stretch.steps`` on the GPU, in 256ths of an entry: of rows and of columns, luma's, then chroma's."""

    def __init__(
        self,
        sizes: tuple[Size, Size, Size],
        small_hw: Size,
        cells: tuple[Size, Size] | tuple[None, None],
        stream: Stream,
    ) -> None:
        tables: list[npt.NDArray[np.int32]] = []
        for axis in (0, 1):
            along = [
                steps(size_hw[axis], small_hw[axis], per_cell=cell and (cell[axis], 1))
                for size_hw, cell in zip(sizes[:2], cells, strict=True)
            ]
            tables.append(np.concatenate([_in_256ths(one) for one in along]))
        self._rows, self._columns = (stream.allocate(table.shape, np.int32) for table in tables)
        stream.upload(tables[0], self._rows)
        stream.upload(tables[1], self._columns)
        # The copies read memory of the host that goes away now.
        stream.sync()

    @property
    def pointers(self) -> tuple[int, int]:
        """Addresses of the positions of rows and of columns."""
        return self._rows.pointer, self._columns.pointer


def _in_256ths(along: Steps) -> npt.NDArray[np.int32]:
    positions: npt.NDArray[np.int32] = (along.first.astype(np.int32) << 8) + along.weights
    return positions
