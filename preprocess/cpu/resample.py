"""A resize without antialiasing on the CPU, and an image's levels after any resize."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onestream.preprocess.cpu.loops import compiled
from onestream.preprocess.geometry import Size, Window

Pixels = npt.NDArray[np.uint8]
_Floats = npt.NDArray[np.float32]
_Indices = npt.NDArray[np.int64]
_Shares = npt.NDArray[np.float64]


def interpolated(
    pixels: Pixels, window: Window, source_hw: Size, resized_hw: Size, *, origin: Size, to_bgr: bool = False
) -> Pixels:
    """A window of an image of ``source_hw`` that becomes one of ``resized_hw`` by a resize without antialiasing.

    ``pixels``, (height, width, 3 or 1), begin at ``origin`` of the image, (y, x), and hold what the window shows and a
    pixel more. Returns (window.height, window.width, channels) uint8; ``to_bgr`` gives three channels in reverse order.
    """
    out = np.empty((*window.size_hw, pixels.shape[2]), np.uint8)
    firsts = window.top, window.left
    rows, columns = (
        _neighbours(*line) for line in zip(source_hw, resized_hw, firsts, window.size_hw, origin, strict=True)
    )
    _interpolate(pixels, out, *rows, *columns)
    return np.ascontiguousarray(out[:, :, ::-1]) if to_bgr else out


def _neighbours(source: int, resized: int, first: int, count: int, origin: int) -> tuple[_Indices, _Indices, _Shares]:
    """The two pixels of a line between which each of ``count`` lies, and the share of the second."""
    places = (np.arange(first, first + count) + 0.5) * source / resized - 0.5
    below = np.floor(places).astype(np.int64)
    one, other = (np.clip(at, 0, source - 1) - origin for at in (below, below + 1))
    return one, other, places - below


_LINE = "int64[::1], int64[::1], float64[::1]"


@compiled(f"void(uint8[:,:,::1], uint8[:,:,::1], {_LINE}, {_LINE})")
def _interpolate(
    source: Pixels,
    out: Pixels,
    above: _Indices,
    below: _Indices,
    down: _Shares,
    left: _Indices,
    right: _Indices,
    across: _Shares,
) -> None:
    for y in range(out.shape[0]):
        one, other = source[above[y]], source[below[y]]
        for x in range(out.shape[1]):
            for channel in range(out.shape[2]):
                at_left, at_right = float(one[left[x], channel]), float(one[right[x], channel])
                at_left += down[y] * (float(other[left[x], channel]) - at_left)
                at_right += down[y] * (float(other[right[x], channel]) - at_right)
                # Half a level, then cut: rounds to nearest.
                out[y, x, channel] = np.uint8(at_left + across[x] * (at_right - at_left) + 0.5)


@compiled("void(uint8[:,:,::1], float32[:,::1], float32[:,:,::1])")
def look_up_planar(pixels: Pixels, table: _Floats, out: _Floats) -> None:
    """``out`` (c, h, w) = ``table`` (c, 256) at ``pixels`` (h, w, c)."""
    height, width, channels = pixels.shape
    for y in range(height):
        for channel in range(channels):
            for x in range(width):
                out[channel, y, x] = table[channel, pixels[y, x, channel]]


@compiled(
    "void(uint8[:,:,::1], float32[:,::1], float32[:,:,::1])", "void(uint8[:,:,::1], uint8[:,::1], uint8[:,:,::1])"
)
def look_up_interleaved(pixels: Pixels, table: _Floats | Pixels, out: _Floats | Pixels) -> None:
    """``out`` (h, w, c) = ``table`` (c, 256) at ``pixels`` (h, w, c)."""
    height, width, channels = pixels.shape
    for y in range(height):
        for x in range(width):
            for channel in range(channels):
                out[y, x, channel] = table[channel, pixels[y, x, channel]]


@compiled("void(uint8[:,:,::1], float32[:,::1])")
def recolor(pixels: Pixels, color: _Floats) -> None:
    """``variation.recolored`` in place, with the same sums in the same order."""
    height, width, channels = pixels.shape
    levels = np.empty(channels, np.float32)
    for y in range(height):
        for x in range(width):
            for channel in range(channels):
                levels[channel] = np.float32(pixels[y, x, channel])
            for channel in range(channels):
                value = levels[0] * color[channel, 0]
                for source in range(1, channels):
                    value += levels[source] * color[channel, source]
                value = value + color[channel, channels] + np.float32(0.5)
                pixels[y, x, channel] = np.uint8(min(max(value, np.float32(0.0)), np.float32(255.0)))
