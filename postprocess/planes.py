"""A frame's planes of YUV as what works on them before they are encoded needs them: turned, in 8 bit, of which size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.preprocess.geometry import Size
from onestream.preprocess.video.common.color import Matrix, Pixels, Planes, Range, coefficients
from onestream.preprocess.video.common.orientation import Orientation


def displayed(frame: Planes, orientation: Orientation) -> Planes:
    """The frame as a player turns it. Where a side is odd, its chroma moves by up to half a sample."""
    y, u, v = (
        orientation.turn(plane[:height, :width])
        for (height, width), plane in zip(plane_sizes(frame), each_plane(frame), strict=True)
    )
    shifts = (frame.shifts[1], frame.shifts[0]) if orientation.transpose else frame.shifts
    return replace(frame, y=y, u=u, v=v, size_hw=orientation.displayed_size(frame.size_hw), shifts=shifts)


def each_plane(frame: Planes) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Y, U and V."""
    return frame.y, frame.u, frame.v


def plane_sizes(frame: Planes) -> tuple[Size, Size, Size]:
    """(height, width) of the visible parts of the planes."""
    chroma = subsampled(frame.size_hw, frame.shifts)
    return frame.size_hw, chroma, chroma


def in_8_bits(frame: Planes) -> Planes:
    """The frame with deeper samples cut to 8 bit. Raises ``ValueError`` as ``check_shapes`` does."""
    check_shapes(frame)
    y, u, v = (
        np.ascontiguousarray(plane) if frame.depth == 8 else (plane >> frame.depth - 8).astype(np.uint8)
        for plane in each_plane(frame)
    )
    return replace(frame, y=y, u=u, v=v, depth=8)


def copy_in_8_bits(frame: Planes, out: Planes) -> None:
    """Write the frame to the planes of ``out``, which are of 8 bit, the same size and format; rows may be padded.

    Deeper samples are cut. Raises ``ValueError`` where ``out`` does not fit.
    """
    check_out(out, frame)
    check_shapes(frame)
    for (height, width), plane, into in zip(plane_sizes(frame), each_plane(frame), each_plane(out), strict=True):
        if frame.depth == 8:
            into[:height, :width] = plane[:height, :width]
        else:
            np.right_shift(plane[:height, :width], frame.depth - 8, out=into[:height, :width], casting="unsafe")


def check_out(out: Planes, frame: Planes) -> None:
    """Raise ``ValueError`` where planes cannot take the frame in 8 bit."""
    seen, wanted = (out.size_hw, out.shifts, out.depth), (frame.size_hw, frame.shifts, 8)
    if seen != wanted:
        raise ValueError(f"out has size, chroma shifts and depth {seen}, the frame {wanted}")
    check_shapes(out)


def check_shapes(frame: Planes) -> None:
    """Raise ``ValueError`` where a plane is smaller than its frame: compiled loops trust the sizes."""
    for (height, width), plane in zip(plane_sizes(frame), each_plane(frame), strict=True):
        if plane.shape[0] < height or plane.shape[1] < width:
            raise ValueError(f"a plane has shape {plane.shape}, the frame takes {height, width} or more")


def subsampled(size_hw: Size, shifts: Size) -> Size:
    """(height, width) of the chroma planes of a frame whose chroma is smaller by the shifts (log2)."""
    return -(-size_hw[0] >> shifts[0]), -(-size_hw[1] >> shifts[1])


def from_rgb(pixels: Pixels, matrix: Matrix, range_: Range, shifts: Size) -> tuple[Pixels, Pixels, Pixels]:
    """(height, width, 3) RGB to 8-bit planes: the inverse of ``color.to_rgb`` in float64, rounded half up.

    A chroma sample is the mean of the pixels that share it.
    """
    luma, v_red, u_green, v_green, u_blue, y_offset, c_offset, bits = (
        int(value) for value in coefficients(matrix, range_, 8)
    )
    to_rgb = np.array([[luma, 0, v_red], [luma, u_green, v_green], [luma, u_blue, 0]]) / (1 << bits)
    yuv = pixels @ np.linalg.inv(to_rgb).T + np.array([y_offset, c_offset, c_offset])
    return _rounded(yuv[:, :, 0]), _rounded(_means(yuv[:, :, 1], shifts)), _rounded(_means(yuv[:, :, 2], shifts))


def _means(values: npt.NDArray[np.float64], shifts: Size) -> npt.NDArray[np.float64]:
    for axis, shift in enumerate(shifts):
        if shift:
            # An odd last row or column stands for its missing neighbour.
            even = values.take(np.arange(0, values.shape[axis], 2), axis)
            odd = values.take(np.minimum(np.arange(1, values.shape[axis] + 1, 2), values.shape[axis] - 1), axis)
            values = (even + odd) / 2
    return values


def _rounded(values: npt.NDArray[np.float64]) -> Pixels:
    levels: Pixels = np.floor(values + 0.5).clip(0, 255).astype(np.uint8)
    return levels
