"""The weights of Pillow's resize in its own fixed point (Resample.c, ``precompute_coeffs``, ``normalize_coeffs_8bpc``).

One source for every device: the CPU's loops and the GPU's kernels read what is computed here, and what was made for
lines of pixels is kept, since images of one size need it again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import PIL

from onestream.preprocess.geometry import Size
from onestream.preprocess.moves import SUPPORT
from onestream.preprocess.operations import Filter

Indices = npt.NDArray[np.int32]
Weights = tuple[Indices, Indices, Indices]
"""First indices and counts, (count,), and weights in units of 2^-22, (count, longest), all int32."""

Neighbours = tuple[Indices, Indices, npt.NDArray[np.float64]]
"""First and second indices, int32, and shares of the second, float64, each (count,)."""

LONGEST_REMEMBERED = 8192
"""Weights of a line of this many pixels take 64 KB and more; longer ones are rare and are not kept."""

DIGITS = 22
"""Binary digits of a weight after the point."""

_COLUMNS_MAY_BE_FIRST = int(PIL.__version__.partition(".")[0]) >= 13


_Make = TypeVar("_Make", bound=Callable[..., Any])


def _of_span(_count: int, _start: float, _end: float, source: int, *_rest: object) -> int:
    return source


def remembered(at_most: int, *, source: Callable[..., int] = _of_span) -> Callable[[_Make], _Make]:
    """Let a function that makes tables keep the last ``at_most``, but not those of lines that are too long.

    ``source`` gives the pixels of a call's line from its arguments; by default (count, start, end, source, …).
    """

    def decorate(make: _Make) -> _Make:
        kept = lru_cache(at_most)(make)

        @wraps(make)
        def table(*arguments: Any, **options: Any) -> Any:
            is_kept = source(*arguments, **options) <= LONGEST_REMEMBERED
            return (kept if is_kept else make)(*arguments, **options)

        return cast("_Make", table)

    return decorate


def columns_first(source_hw: Size, resized_hw: Size) -> bool:
    """Whether Pillow resamples an image along its columns before it goes along the rows, which rounds otherwise.

    Since version 13 it does, where the height shrinks by more than twice the pixels that the width shrinks by.
    """
    fewer_rows, fewer_columns = (old - new for old, new in zip(source_hw, resized_hw, strict=True))
    return _COLUMNS_MAY_BE_FIRST and fewer_rows > max(2 * fewer_columns, 0)


def window_weights(count: int, start: float, end: float, source: int, filter: Filter) -> Weights:
    """The source pixels of each of ``count`` output pixels, and their weights.

    The output spans ``start`` to ``end`` of a line of ``source`` pixels.
    """
    scale = (end - start) / count
    return _weights(start + (np.arange(count) + 0.5) * scale, scale, source, filter)


def line_weights(source: int, resized: int, first: int, count: int, filter: Filter) -> Weights:
    """The same for output pixels ``first`` to ``first + count`` of a whole line that is resized: Pillow's every bit."""
    scale = source / resized
    return _weights((np.arange(first, first + count) + 0.5) * scale, scale, source, filter)


def line_neighbours(source: int, resized: int, first: int, count: int, *, nearest: bool) -> Neighbours:
    """Of the same output pixels, the two source pixels beside the centre of each, and the share of the second.

    This is the definition's resize without antialiasing: centres at half coordinates, the border repeated outwards.
    *nearest* is Pillow's: steps are added up from the first pixel on (``ImagingScaleAffine`` in Geometry.c).
    """
    if nearest:
        steps = np.full(resized, source / resized)
        steps[0] *= 0.5
        places = np.floor(np.add.accumulate(steps)[first : first + count])
    else:
        places = (np.arange(first, first + count) + 0.5) * source / resized - 0.5
    below = np.floor(places)
    shares = places - below
    one, other = (np.clip(at, 0, source - 1).astype(np.int32) for at in (below, below + 1))
    return one, other, shares


def _weights(centres: npt.NDArray[np.float64], scale: float, source: int, filter: Filter) -> Weights:
    stretch = max(scale, 1.0)
    reach = SUPPORT[filter] * stretch
    first = np.maximum((centres - reach + 0.5).astype(np.int64), 0)
    last = np.minimum((centres + reach + 0.5).astype(np.int64), source)
    taps = first[:, None] + np.arange(2 * math.ceil(reach) + 1)
    places = (taps - centres[:, None] + 0.5) * (1.0 / stretch)
    weights = _CURVES[filter](places) * (taps < last[:, None])
    # Added in order, as Pillow does.
    weights /= np.cumsum(weights, axis=1)[:, -1:]
    fixed = np.trunc(weights * (1 << DIGITS) + np.where(weights < 0, -0.5, 0.5))
    return first.astype(np.int32), (last - first).astype(np.int32), np.ascontiguousarray(fixed, np.int32)


def _triangle(places: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.maximum(1.0 - np.abs(places), 0.0)


def bicubic(places: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The weight of a pixel so far away: Keys's cubic with a = -0.5."""
    x, a = np.abs(places), -0.5
    near, far = ((a + 2.0) * x - (a + 3.0)) * x * x + 1, (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _lanczos(places: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.where((places >= -3) & (places < 3), np.sinc(places) * np.sinc(places / 3), 0.0)


_CURVES = {"bilinear": _triangle, "bicubic": bicubic, "lanczos": _lanczos}
