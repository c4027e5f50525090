"""PyTorch's resize of uint8 tensors on a CPU, by NumPy: what ``arithmetic: aten`` means (ATen, UpSampleKernel.cpp).

The antialiased filters have Pillow's weights, rounded to fewer binary digits: as many as the largest weight of the line
leaves in 16 bits. Rows are resampled first, whatever the sizes, and rounded to 8 bit. The nearest ones compute places
in float32. The compiled loops and the GPU's kernels are tested against this, and this against torchvision.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onestream.preprocess.geometry import Size
from onestream.preprocess.operations import SUPPORT, Filter

Pixels = npt.NDArray[np.uint8]

MOST_DIGITS = 22
"""Binary digits of a weight after the point, at most."""


def resized(pixels: Pixels, size_hw: Size, filter: Filter) -> Pixels:
    """An image, (height, width) or (height, width, channels) uint8, resized to ``size_hw``."""
    for axis in (1, 0):
        source, count = pixels.shape[axis], size_hw[axis]
        if filter not in SUPPORT:
            pixels = np.take(pixels, nearest_places(source, count, exact=filter == "nearest-exact"), axis)
        else:
            pixels = _resampled(pixels, axis, count, filter)
    return np.ascontiguousarray(pixels)


def nearest_places(source: int, count: int, *, exact: bool) -> npt.NDArray[np.int64]:
    """The source pixel of each of ``count`` output pixels: before its own middle, with ``exact``, or its beginning."""
    scale = np.float32(source) / np.float32(count)
    places = (np.arange(count, dtype=np.float32) + np.float32(0.5 if exact else 0.0)) * scale
    nearest: npt.NDArray[np.int64] = np.minimum(np.floor(places).astype(np.int64), source - 1)
    return nearest


def _resampled(pixels: Pixels, axis: int, count: int, filter: Filter) -> Pixels:
    lines = np.moveaxis(pixels, axis, 0)
    weights = [_weights(pixel, len(lines), count, filter) for pixel in range(count)]
    largest = max(shares.max() for _, shares in weights)
    digits = next((n for n in range(MOST_DIGITS) if int(0.5 + largest * 2 ** (n + 1)) >= 1 << 15), MOST_DIGITS)
    out = np.empty((count, *lines.shape[1:]), np.uint8)
    for pixel, (first, shares) in enumerate(weights):
        scaled = shares * 2**digits
        whole = np.trunc(scaled + np.where(scaled < 0, -0.5, 0.5)).astype(np.int64)
        totals = np.tensordot(whole, lines[first : first + len(whole)].astype(np.int64), 1)
        out[pixel] = np.clip((totals + (1 << (digits - 1))) >> digits, 0, 255)
    return np.moveaxis(out, 0, axis)


def _weights(pixel: int, source: int, count: int, filter: Filter) -> tuple[int, npt.NDArray[np.float64]]:
    """The first source pixel of an output pixel, and the weights of it and the next ones."""
    scale, support = source / count, SUPPORT[filter]
    centre, reach = (pixel + 0.5) * scale, support * max(scale, 1.0)
    first, end = max(int(centre - reach + 0.5), 0), min(int(centre + reach + 0.5), source)
    x = np.abs(np.arange(first, end) - centre + 0.5) * (1.0 / max(scale, 1.0))
    if filter == "bilinear":
        shares = np.maximum(1.0 - x, 0.0)
    elif filter == "bicubic":
        # Keys's cubic with a = -0.5.
        far = np.where(x < 2, (((x - 5) * x + 8) * x - 4) * -0.5, 0.0)
        shares = np.where(x < 1, (1.5 * x - 2.5) * x * x + 1, far)
    else:
        shares = np.where(x < 3, np.sinc(x) * np.sinc(x / 3), 0.0)
    return first, shares / shares.sum()
