"""Changes of levels that a CPU has compiled loops for: Pillow's arithmetic to the bit, without its copies or any lock.

Pillow keeps Python's lock while it changes levels, so threads that make samples would wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from onestream.preprocess.changes import (
    BY_LEVEL,
    AnyChange,
    AutoContrast,
    ByLevel,
    Contrast,
    Equalize,
    Pixels,
    Saturation,
    Sharpness,
    level_map,
)
from onestream.preprocess.cpu.loops import compiled
from onestream.preprocess.cpu.resample import look_up_interleaved

_Counts = npt.NDArray[np.int64]
_LEVELS = 256
_ZERO, _HALF, _MOST = np.float32(0), np.float32(0.5), np.float32(255)
_SIDE, _MIDDLE = np.float32(1 / 13), np.float32(5 / 13)
"""The weights of Pillow's ``SMOOTH``: 5 for the pixel itself, 1 for each neighbour, of 13."""


@compiled("int32(uint8, uint8, uint8)")
def luma(red: int, green: int, blue: int) -> np.int32:
    """Pillow's conversion of RGB to L (L24 in its Convert.c)."""
    return np.int32((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16)


@compiled("void(uint8[:,:,::1], int64[:,::1])")
def count_levels(pixels: Pixels, counts: _Counts) -> None:
    """Count how often each level is there: ``counts`` (c + 1, 256) by channel, and then by luma."""
    height, width, channels = pixels.shape
    for y in range(height):
        for x in range(width):
            for channel in range(channels):
                counts[channel, pixels[y, x, channel]] += 1
            gray = pixels[y, x, 0] if channels == 1 else luma(pixels[y, x, 0], pixels[y, x, 1], pixels[y, x, 2])
            counts[channels, gray] += 1


@compiled("uint8(int32, int32, float32)")
def mixed(first: np.int32, second: np.int32, share: np.float32) -> np.uint8:
    """Pillow's mixture of two levels (Blend.c), of which ``share`` is the second's: 0 to 255, cut to a whole one."""
    level = np.float32(first) + share * np.float32(second - first)
    return np.uint8(min(max(level, _ZERO), _MOST))


@compiled("void(uint8[:,:,::1], float32, uint8[:,:,::1])")
def saturate(pixels: Pixels, factor: np.float32, out: Pixels) -> None:
    """``out`` (h, w, 3) = ``Saturation`` of ``pixels`` (h, w, 3), RGB."""
    height, width, _ = pixels.shape
    for y in range(height):
        for x in range(width):
            gray = luma(pixels[y, x, 0], pixels[y, x, 1], pixels[y, x, 2])
            for channel in range(3):
                out[y, x, channel] = mixed(gray, pixels[y, x, channel], factor)


@compiled("void(uint8[:,::1], int64, float32, uint8[:,::1])")
def sharpen(pixels: Pixels, channels: int, factor: np.float32, out: Pixels) -> None:
    """``out`` = ``Sharpness`` of ``pixels``, both (h, w x c).

    The outermost pixels are there already: Pillow leaves them as they are. Its filter (Filter.c) goes from the row
    below to the one above.
    """
    height, width = pixels.shape
    for y in range(1, height - 1):
        below, own, above = pixels[y + 1], pixels[y], pixels[y - 1]
        for x in range(channels, width - channels):
            before, after = x - channels, x + channels
            level = _HALF + (
                np.float32(below[before]) * _SIDE + np.float32(below[x]) * _SIDE + np.float32(below[after]) * _SIDE
            )
            level += np.float32(own[before]) * _SIDE + np.float32(own[x]) * _MIDDLE + np.float32(own[after]) * _SIDE
            level += np.float32(above[before]) * _SIDE + np.float32(above[x]) * _SIDE + np.float32(above[after]) * _SIDE
            out[y, x] = mixed(np.int32(min(level, _MOST)), own[x], factor)


def apply(pixels: Pixels, change: AnyChange) -> Pixels:
    """``change.apply`` of ``pixels`` (h, w, c), RGB or gray, in every bit: by these loops where there is one."""
    if isinstance(change, BY_LEVEL):
        return _mapped(pixels, _table(change, pixels.shape[2]))
    if isinstance(change, Contrast | AutoContrast | Equalize):
        pixels = _writable(pixels)
        counts = np.zeros((pixels.shape[2] + 1, _LEVELS), np.int64)
        count_levels(pixels, counts)
        return _mapped(pixels, _table_of_counts(change, counts))
    if isinstance(change, Saturation) and pixels.shape[2] == 3:
        pixels = _writable(pixels)
        out = np.empty_like(pixels)
        saturate(pixels, np.float32(change.factor), out)
        return out
    if isinstance(change, Sharpness):
        pixels = _writable(pixels)
        out, (height, width, channels) = pixels.copy(), pixels.shape
        rows = (height, width * channels)
        sharpen(pixels.reshape(rows), channels, np.float32(change.factor), out.reshape(rows))
        return out
    return change.apply(pixels)


def _mapped(pixels: Pixels, table: Pixels) -> Pixels:
    out = np.empty(pixels.shape, np.uint8)
    look_up_interleaved(_writable(pixels), table, out)
    return out


def _writable(pixels: Pixels) -> Pixels:
    """As the loops take it: their types tell memory that must not be written, as Pillow's, from other memory."""
    return np.require(pixels, requirements=("C", "W"))


@lru_cache(maxsize=256)
def _table(change: ByLevel, channels: int) -> Pixels:
    """What becomes of each level: a policy's strengths are few."""
    return np.repeat(level_map(change)[None], channels, axis=0)


def _table_of_counts(change: Contrast | AutoContrast | Equalize, counts: _Counts) -> Pixels:
    if isinstance(change, Contrast):
        levels, gray = np.arange(_LEVELS), counts[-1]
        mean = int(float(gray @ levels) / float(gray.sum()) + 0.5)
        share, first = np.float32(change.factor), np.float32(mean)
        table = np.clip(first + share * (levels - mean).astype(np.float32), 0, 255).astype(np.uint8)
        return np.repeat(table[None], len(counts) - 1, axis=0)
    of_channel: Callable[[_Counts], Pixels] = _stretched if isinstance(change, AutoContrast) else _evened
    return np.stack([of_channel(channel) for channel in counts[:-1]])


def _stretched(counts: _Counts) -> Pixels:
    """``AutoContrast`` of a channel."""
    there = np.flatnonzero(counts)
    low, high = int(there[0]), int(there[-1])
    levels = np.arange(_LEVELS)
    if high > low:
        scale = 255.0 / (high - low)
        levels = np.clip((levels * scale + -low * scale).astype(np.int64), 0, 255)
    return levels.astype(np.uint8)


def _evened(counts: _Counts) -> Pixels:
    """``Equalize`` of a channel."""
    there = np.flatnonzero(counts)
    # Of a single level nothing is left, so that its step is 0, too.
    step = int(counts.sum() - counts[there[-1]]) // 255
    levels = np.arange(_LEVELS)
    if step:
        below = np.cumsum(counts) - counts
        levels = np.minimum((step // 2 + below) // step, 255)
    return levels.astype(np.uint8)
