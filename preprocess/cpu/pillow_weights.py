"""The weights of Pillow's resize in its own fixed point (Resample.c, ``precompute_coeffs``, ``normalize_coeffs_8bpc``).

PyTorch's are the same in fewer digits (``line_digits``), which the loops and kernels need not know: sums of multiples
of 2^-digits, shifted, are the same in units of 2^-22.

One source for every device: the CPU's loops and the GPU's kernels read what is computed here. It is compiled, since
every picture of a size that was not seen before needs weights of its own; the CPU keeps them for images of one size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt
import PIL

from onestream.preprocess.cpu.loops import compiled
from onestream.preprocess.geometry import Size
from onestream.preprocess.operations import SUPPORT, Arithmetic, Filter

Indices = npt.NDArray[np.int32]
Weights = tuple[Indices, Indices, Indices]
"""First indices and counts, (count,), and weights in units of 2^-22, (count, longest), all int32."""

LONGEST_REMEMBERED = 8192
"""Weights of a line of this many pixels take 64 KB and more; longer ones are rare and are not kept."""

DIGITS = 22
"""Binary digits of a weight after the point."""

Sides = npt.NDArray[np.int64]
_COLUMNS_MAY_BE_FIRST = int(PIL.__version__.partition(".")[0]) >= 13


_Make = TypeVar("_Make", bound=Callable[..., Any])


def remembered(at_most: int) -> Callable[[_Make], _Make]:
    """Let a function that makes tables keep the last ``at_most``, but not those of lines that are too long.

    Its arguments are (count, start, end, source, …), of which ``source`` is the line's length.
    """

    def decorate(make: _Make) -> _Make:
        kept = lru_cache(at_most)(make)

        @wraps(make)
        def table(count: int, start: float, end: float, source: int, *rest: Any) -> Any:
            return (kept if source <= LONGEST_REMEMBERED else make)(count, start, end, source, *rest)

        return cast("_Make", table)

    return decorate


@overload
def columns_first(source_hw: Size, resized_hw: Size) -> bool: ...
@overload
def columns_first(source_hw: tuple[Sides, Sides], resized_hw: tuple[Sides, Sides]) -> npt.NDArray[np.bool_]: ...
def columns_first(
    source_hw: Size | tuple[Sides, Sides], resized_hw: Size | tuple[Sides, Sides]
) -> bool | npt.NDArray[np.bool_]:
    """Whether Pillow resamples an image along its columns before it goes along the rows, which rounds otherwise.

    Since version 13 it does, where the height shrinks by more than twice the pixels that the width shrinks by. Sides
    may be those of several images.
    """
    fewer_rows, fewer_columns = source_hw[0] - resized_hw[0], source_hw[1] - resized_hw[1]
    return _COLUMNS_MAY_BE_FIRST & (fewer_rows > 0) & (fewer_rows > 2 * fewer_columns)


@lru_cache(1024)
def line_digits(source: int, resized: int, filter: Filter, arithmetic: Arithmetic) -> int:
    """Binary digits after the point to which the weights of a line of ``source`` pixels are rounded.

    ``resized`` is the whole line's length after it, of which a window may be all that is computed.
    """
    return int(aten_digits(source, resized, SUPPORT[filter])) if arithmetic == "aten" else DIGITS


def window_weights(count: int, start: float, end: float, source: int, filter: Filter, digits: int = DIGITS) -> Weights:
    """The source pixels of each of ``count`` output pixels, and their weights.

    The output spans ``start`` to ``end`` of a line of ``source`` pixels; ``digits`` is of ``line_digits``.
    """
    found: Weights = _window_weights(count, start, (end - start) / count, source, SUPPORT[filter], digits)
    return found


# A filter is named by its support: 1 is bilinear, 2 bicubic, 3 lanczos.


@compiled("float64(float64)")
def _sinc(place: float) -> float:
    turned = place * math.pi
    return 1.0 if place == 0 else math.sin(turned) / turned


@compiled("float64(float64, int64)")
def _weight(place: float, support: int) -> float:
    """The weight of a pixel so far away."""
    x, a = abs(place), -0.5
    if support == 1:
        return max(1.0 - x, 0.0)
    if support == 2:
        # Keys's cubic.
        if x < 1:
            return ((a + 2.0) * x - (a + 3.0)) * x * x + 1
        return (((x - 5) * x + 8) * x - 4) * a if x < 2 else 0.0
    return _sinc(place) * _sinc(place / 3) if -3 <= place < 3 else 0.0


@compiled("UniTuple(int64, 2)(float64, float64, int64, int64)")
def taps(centre: float, scale: float, source: int, support: int) -> tuple[int, int]:
    """The first source pixel of an output pixel, and how many there are; it shrinks by ``scale``."""
    reach = support * max(scale, 1.0)
    first = max(int(centre - reach + 0.5), 0)
    return first, min(int(centre + reach + 0.5), source) - first


@compiled("void(float64, float64, int64, int64, int64, float64[::1])")
def _write_shares(
    centre: float, scale: float, first: int, count: int, support: int, shares: npt.NDArray[np.float64]
) -> None:
    """Write the weights of these source pixels, whose sum is 1."""
    narrower, total = 1.0 / max(scale, 1.0), 0.0
    for tap in range(count):
        shares[tap] = _weight((first + tap - centre + 0.5) * narrower, support)
        # Added in order, as Pillow does.
        total += shares[tap]
    for tap in range(count):
        shares[tap] /= total


@compiled("void(float64, float64, int64, int64, int64, int64, float64[::1], int32[:])")
def write_weights(
    centre: float,
    scale: float,
    first: int,
    count: int,
    support: int,
    digits: int,
    shares: npt.NDArray[np.float64],
    weights: Indices,
) -> None:
    """Write the weights of these source pixels in units of 2^-22, rounded to ``digits``.

    ``shares`` is memory for as many numbers.
    """
    _write_shares(centre, scale, first, count, support, shares)
    for tap in range(count):
        share = shares[tap] * (1 << digits)
        weights[tap] = int(share + (-0.5 if share < 0 else 0.5)) << (DIGITS - digits)


@compiled("int64(int64, int64, int64)")
def aten_digits(source: int, resized: int, support: int) -> int:
    """``line_digits`` of PyTorch: as many as the line's largest weight leaves in 16 bits (UpSampleKernel.cpp)."""
    scale, largest = source / resized, 0.0
    shares = np.empty(2 * math.ceil(support * max(scale, 1.0)) + 1)
    for pixel in range(resized):
        centre = (pixel + 0.5) * scale
        first, count = taps(centre, scale, source, support)
        _write_shares(centre, scale, first, count, support, shares)
        for tap in range(count):
            largest = max(largest, shares[tap])
    digits = 0
    while digits < DIGITS and int(0.5 + largest * (1 << (digits + 1))) < 1 << 15:
        digits += 1
    return digits


@compiled("Tuple((int32[::1], int32[::1], int32[:,::1]))(int64, float64, float64, int64, int64, int64)")
def _window_weights(count: int, start: float, scale: float, source: int, support: int, digits: int) -> Weights:
    longest = 2 * math.ceil(support * max(scale, 1.0)) + 1
    firsts, counts = np.empty(count, np.int32), np.empty(count, np.int32)
    weights, shares = np.zeros((count, longest), np.int32), np.empty(longest)
    for pixel in range(count):
        centre = start + (pixel + 0.5) * scale
        firsts[pixel], counts[pixel] = taps(centre, scale, source, support)
        write_weights(centre, scale, firsts[pixel], counts[pixel], support, digits, shares, weights[pixel])
    return firsts, counts, weights
