"""Resampling on the CPU: a part of an image to a size, as Pillow resamples the whole image, and its levels after it.

The triangle filter is compiled by Numba: DALI's CPU resize takes two to four times as long. It runs down the columns
first, which vectorizes, in float32 without a rounding in between, and differs from Pillow, which runs along the rows
first and rounds to 8 bit in between, by at most one level. Products and sums are single float32 operations in a fixed
order, so every machine gives the same bits. Other filters give Pillow's own bits.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from PIL import Image

from onestream.preprocess.cpu.loops import compiled
from onestream.preprocess.cpu.pillow_weights import remembered
from onestream.preprocess.cpu.pillow_window import resample_as_pillow
from onestream.preprocess.geometry import Size, Spans
from onestream.preprocess.operations import Filter

Pixels = npt.NDArray[np.uint8]
_Indices = npt.NDArray[np.int32]
_Positions = npt.NDArray[np.uint64]
_Floats = npt.NDArray[np.float32]
_Triangles = tuple[_Indices, _Indices, _Floats]
_Padded = tuple[_Positions, _Floats]


def resample(
    pixels: Pixels,
    spans: Spans,
    size_hw: Size,
    filter: Filter,
    *,
    antialias: bool = True,
    columns_first: bool = False,
    to_bgr: bool = False,
) -> Pixels:
    """Resample a window of pixels, (height, width, 3 or 1), that lies at ``spans`` along y and x.

    Returns
    (size_hw[0], size_hw[1], channels) uint8. ``antialias`` is read by *bilinear* only; ``columns_first``, which is what
    ``pillow_weights.columns_first`` says of the whole image, by *bicubic* and *lanczos*. ``to_bgr`` gives three
    channels in reverse order. Where the pixels end inside the image they must hold the filter's margin.
    """
    if filter in ("bicubic", "lanczos"):
        return resample_as_pillow(pixels, spans, size_hw, filter, columns_first=columns_first, to_bgr=to_bgr)
    if filter == "nearest":
        image = Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])
        (top, bottom), (left, right) = spans
        resized = image.resize((size_hw[1], size_hw[0]), Image.Resampling.NEAREST, box=(left, top, right, bottom))
        # A copy, since the compiled loops take no read-only array.
        placed = np.array(resized).reshape(*size_hw, pixels.shape[2])
        return placed[:, :, ::-1] if to_bgr else placed
    height, width, channels = pixels.shape
    out = np.empty((*size_hw, channels), np.uint8)
    rows = row_weights(size_hw[0], *spans[0], height, antialias)
    columns = column_weights(size_hw[1], *spans[1], width, antialias)
    lines = pixels.reshape(height, width * channels)
    if channels == 3:
        resample_rgb(lines, out, *rows, *columns, to_bgr)
    else:
        resample_gray(lines, out, *rows, *columns)
    return out


def triangle_weights(count: int, start: float, end: float, source: int, antialias: bool = True) -> _Triangles:
    """The source pixels of each of ``count`` output pixels, and their weights.

    The output spans ``start`` to ``end`` of a line of ``source`` pixels, with half-pixel centres; where it shall
    ``antialias``, a shrinking filter grows with the scale. Weights outside the line are left out and the rest made to
    sum to 1 (Pillow, ``precompute_coeffs`` in Resample.c). Returns first indices and counts, (count,), and weights,
    (count, longest).
    """
    scale = (end - start) / count
    reach = max(scale, 1.0) if antialias else 1.0
    centres = start + (np.arange(count) + 0.5) * scale
    first = np.maximum((centres - reach + 0.5).astype(np.int64), 0)
    last = np.minimum((centres + reach + 0.5).astype(np.int64), source)
    taps = first[:, None] + np.arange(2 * math.ceil(reach) + 1)
    weights = np.maximum(1.0 - np.abs(taps + 0.5 - centres[:, None]) / reach, 0.0) * (taps < last[:, None])
    weights /= weights.sum(axis=1, keepdims=True)
    return first.astype(np.int32), (last - first).astype(np.int32), np.ascontiguousarray(weights, np.float32)


def padded_weights(count: int, start: float, end: float, source: int, antialias: bool = True) -> _Padded:
    """The same with equally many weights for each output pixel, some of them 0, which is faster to loop over.

    Returns first indices, (count,) uint64, and weights, (count, longest).
    """
    first, counts, weights = triangle_weights(count, start, end, source, antialias)
    longest = int(counts.max())
    # Where the last of them would lie outside, the zeros come first.
    padded_first = np.minimum(first, source - longest)
    places = np.arange(longest) - (first - padded_first)[:, None]
    inside = (places >= 0) & (places < counts[:, None])
    padded = np.where(inside, np.take_along_axis(weights, np.clip(places, 0, weights.shape[1] - 1), axis=1), 0)
    return padded_first.astype(np.uint64), np.ascontiguousarray(padded, np.float32)


row_weights, column_weights = remembered(512)(triangle_weights), remembered(512)(padded_weights)


_ONE, _TWO, _THREE = np.uint64(1), np.uint64(2), np.uint64(3)
"""Indices are unsigned where it counts: a signed one is checked for a count from the end, which takes half the time."""


@compiled("void(uint8[:,::1], int32, int32, float32[::1], float32[::1])")
def blend_rows(source: Pixels, first: int, count: int, weights: _Floats, line: _Floats) -> None:
    """``line`` = weighted sum of ``count`` rows of ``source``, plus nothing else."""
    for x in range(line.size):
        line[x] = np.float32(0.0)
    for tap in range(count):
        weight, row = weights[tap], source[first + tap]
        for x in range(line.size):
            line[x] += weight * np.float32(row[x])


@compiled("void(float32[::1], uint8[::1])")
def reverse_pixels(levels: _Floats, out: Pixels) -> None:
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
    source: Pixels,
    out: Pixels,
    row_first: _Indices,
    row_count: _Indices,
    row_weights: _Floats,
    column_first: _Positions,
    column_weights: _Floats,
    to_bgr: bool,
) -> None:
    """Resample RGB (height, width x 3) to ``out`` (height, width, 3), with the channels in reverse order ``to_bgr``.

    Rows have the weights of ``triangle_weights``, columns those of ``padded_weights``.
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
    source: Pixels,
    out: Pixels,
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
