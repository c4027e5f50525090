"""The loops that must be fast on a CPU, compiled by Numba when this module is first imported and cached on disk.

No reassociation and no fused multiply-add is allowed, so the results do not depend on the machine's vector width. The
global interpreter lock is released.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onestream.preprocess.cpu.loops import compiled

_Bytes = npt.NDArray[np.uint8]
_Indices = npt.NDArray[np.int32]
_Positions = npt.NDArray[np.uint64]
_Floats = npt.NDArray[np.float32]

_ONE, _TWO, _THREE = np.uint64(1), np.uint64(2), np.uint64(3)
"""Indices are unsigned where it counts: a signed one is checked for a count from the end, which takes half the time."""


@compiled("void(uint8[:,::1], int32, int32, float32[::1], float32[::1])")
def blend_rows(source: _Bytes, first: int, count: int, weights: _Floats, line: _Floats) -> None:
    """``line`` = weighted sum of ``count`` rows of ``source``, plus nothing else."""
    for x in range(line.size):
        line[x] = np.float32(0.0)
    for tap in range(count):
        weight, row = weights[tap], source[first + tap]
        for x in range(line.size):
            line[x] += weight * np.float32(row[x])


@compiled("void(float32[::1], uint8[::1])")
def reverse_pixels(levels: _Floats, out: _Bytes) -> None:
    """``out`` = ``levels`` (width x 3), cut to 8 bit, the channels of every pixel in reverse order."""
    at = np.uint64(0)
    for _ in range(levels.size // 3):
        out[at] = np.uint8(levels[at + _TWO])
        out[at + _ONE] = np.uint8(levels[at + _ONE])
        out[at + _TWO] = np.uint8(levels[at])
        at += _THREE


_RESAMPLE = "void(uint8[:,::1], uint8[:,:,::1], int32[::1], int32[::1], float32[:,::1], uint64[::1], float32[:,::1]{})"


@compiled(_RESAMPLE.format(", boolean"))
def resample_rgb(
    source: _Bytes,
    out: _Bytes,
    row_first: _Indices,
    row_count: _Indices,
    row_weights: _Floats,
    column_first: _Positions,
    column_weights: _Floats,
    to_bgr: bool,
) -> None:
    """Resample RGB (height, width x 3) to ``out`` (height, width, 3), with the channels in reverse order ``to_bgr``.

    Rows have the weights of ``resample.triangle_weights``, columns those of ``resample.padded_weights``.
    """
    line = np.empty(source.shape[1], np.float32)
    levels = np.empty(out.shape[1] * 3, np.float32)
    for y in range(out.shape[0]):
        blend_rows(source, row_first[y], row_count[y], row_weights[y], line)
        place = np.uint64(0)
        for x in range(out.shape[1]):
            # Half a level, then cut: rounds to nearest.
            red, green, blue = np.float32(0.5), np.float32(0.5), np.float32(0.5)
            at = column_first[x] * _THREE
            for tap in range(column_weights.shape[1]):
                weight = column_weights[x, tap]
                red += weight * line[at]
                green += weight * line[at + _ONE]
                blue += weight * line[at + _TWO]
                at += _THREE
            levels[place], levels[place + _ONE], levels[place + _TWO] = red, green, blue
            place += _THREE
        row = out[y].reshape(levels.size)
        if to_bgr:
            reverse_pixels(levels, row)
        else:
            for x in range(levels.size):
                row[x] = np.uint8(levels[x])


@compiled(_RESAMPLE.format(""))
def resample_gray(
    source: _Bytes,
    out: _Bytes,
    row_first: _Indices,
    row_count: _Indices,
    row_weights: _Floats,
    column_first: _Positions,
    column_weights: _Floats,
) -> None:
    """The same for one channel."""
    line = np.empty(source.shape[1], np.float32)
    for y in range(out.shape[0]):
        blend_rows(source, row_first[y], row_count[y], row_weights[y], line)
        for x in range(out.shape[1]):
            level, at = np.float32(0.5), column_first[x]
            for tap in range(column_weights.shape[1]):
                level += column_weights[x, tap] * line[at]
                at += _ONE
            out[y, x, 0] = np.uint8(level)


@compiled("void(uint8[:,:,::1], float32[:,::1], float32[:,:,::1])")
def look_up_planar(pixels: _Bytes, table: _Floats, out: _Floats) -> None:
    """``out`` (c, h, w) = ``table`` (c, 256) at ``pixels`` (h, w, c)."""
    height, width, channels = pixels.shape
    for y in range(height):
        for channel in range(channels):
            for x in range(width):
                out[channel, y, x] = table[channel, pixels[y, x, channel]]


@compiled(
    "void(uint8[:,:,::1], float32[:,::1], float32[:,:,::1])", "void(uint8[:,:,::1], uint8[:,::1], uint8[:,:,::1])"
)
def look_up_interleaved(pixels: _Bytes, table: _Floats | _Bytes, out: _Floats | _Bytes) -> None:
    """``out`` (h, w, c) = ``table`` (c, 256) at ``pixels`` (h, w, c)."""
    height, width, channels = pixels.shape
    for y in range(height):
        for x in range(width):
            for channel in range(channels):
                out[y, x, channel] = table[channel, pixels[y, x, channel]]


@compiled("void(uint8[:,:,::1], float32[:,::1])")
def recolor(pixels: _Bytes, color: _Floats) -> None:
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
