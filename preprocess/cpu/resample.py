"""Resampling on the CPU: a part of an image to a size, as Pillow resamples the whole image.

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

from onestream.preprocess.cpu.kernels import resample_gray, resample_rgb
from onestream.preprocess.cpu.pillow_window import resample_as_pillow
from onestream.preprocess.cpu.remembered import remembered
from onestream.preprocess.geometry import Size, Spans
from onestream.preprocess.operations import Filter

Pixels = npt.NDArray[np.uint8]
_Triangles = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.float32]]
_Padded = tuple[npt.NDArray[np.uint64], npt.NDArray[np.float32]]


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
