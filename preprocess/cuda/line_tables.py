"""The tables that the kernels of the resize read: those of many lines by one compiled call, without Python's lock."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from onestream.preprocess.cpu.loops import compiled
from onestream.preprocess.cpu.pillow_weights import DIGITS, Indices, aten_digits, taps, write_weights
from onestream.preprocess.cuda.resample_kernels import ENTRY
from onestream.preprocess.cuda.resize_kernels import NEIGHBOURS
from onestream.preprocess.cuda.tables import Made
from onestream.preprocess.operations import SUPPORT, Arithmetic, Filter

Numbers = npt.NDArray[np.int64]


class Line(NamedTuple):
    """``pixels`` of the output, from ``first`` on, of a line of ``source`` pixels that is resized to ``resized``.

    ``step``, 1 or -1, leads from a pixel to the one that is written after it.
    """

    source: int
    resized: int
    first: int
    pixels: int
    step: int


def weight_tables(lines: Numbers, filter: Filter, arithmetic: Arithmetic = "pil") -> Made:
    """The tables for ``resample`` of lines, int64 (n, 5), as ``resample_kernels`` says.

    About each: its place, the first pixel of the source that it reads, to which indices are relative, and how many.
    """
    values, about = _weight_tables(lines, SUPPORT[filter], arithmetic == "aten")
    return values.view(np.uint8), about


def neighbour_tables(lines: Numbers, filter: Filter, arithmetic: Arithmetic = "pil") -> Made:
    """The tables for ``interpolate``: the definition's resize without antialiasing, centres at half coordinates.

    The border is repeated outwards. *nearest* is Pillow's: steps are added up from the first pixel on
    (``ImagingScaleAffine`` in Geometry.c). PyTorch's are computed in float32 (``cpu.aten.nearest_places``).
    """
    ends = np.cumsum(lines[:, 3])
    found = np.empty(ends[-1], NEIGHBOURS)
    if arithmetic == "aten":
        middle = np.float32(0.5 if filter == "nearest-exact" else 0.0)
        _write_aten_nearest(lines, middle, found["first"])
        found["second"], found["share"] = found["first"], 0.0
    else:
        _write_neighbours(lines, filter == "nearest", found["first"], found["second"], found["share"])
    places = (ends - lines[:, 3]) * NEIGHBOURS.itemsize
    return found.view(np.uint8), np.stack([places, np.zeros_like(places), lines[:, 0]], axis=1)


@compiled("Tuple((int32[::1], int64[:,::1]))(int64[:,::1], int64, boolean)")
def _weight_tables(lines: Numbers, support: int, aten: bool) -> tuple[Indices, Numbers]:
    about = np.empty((len(lines), 3), np.int64)
    used, most = 0, 0
    for at in range(len(lines)):
        source, resized, first, pixels, _ = lines[at]
        scale = source / resized
        low, end = taps((first + 0.5) * scale, scale, source, support)[0], 0
        about[at, 0] = used * ENTRY
        used += pixels
        for pixel in range(pixels):
            begin, count = taps((first + pixel + 0.5) * scale, scale, source, support)
            end, most = begin + count, max(most, count)
            used += ((begin - low) % 4 + count + 3) // 4
        about[at, 1:] = low, end - low
    values, weights, shares = np.zeros(used * 4, np.int32), np.empty(most, np.int32), np.empty(most)
    for at in range(len(lines)):
        source, resized, first, pixels, step = lines[at]
        scale, low, entry = source / resized, about[at, 1], pixels
        table = values[about[at, 0] // 4 :]
        bytes_of = table.view(np.int8)
        digits = aten_digits(source, resized, support) if aten else DIGITS
        for pixel in range(pixels):
            centre = (first + pixel + 0.5) * scale
            begin, count = taps(centre, scale, source, support)
            write_weights(centre, scale, begin, count, support, digits, shares, weights)
            word, place = divmod(begin - low, 4)
            words, total = (place + count + 3) // 4, 0
            for tap in range(count):
                total += weights[tap]
                # Signed digits of base 256, the highest first.
                packed = weights[tap] + 0x808080 ^ 0x808080
                to = (entry + (place + tap >> 2)) * ENTRY + (place + tap & 3)
                bytes_of[to], bytes_of[to + 4], bytes_of[to + 8] = packed >> 16, packed >> 8, packed
            head = 4 * (pixel if step > 0 else pixels - 1 - pixel)
            table[head], table[head + 1] = word, words
            table[head + 2], table[head + 3] = (1 << 21) + 128 * total, entry
            entry += words
    return values, about


@compiled("void(int64[:,::1], float32, int32[:])")
def _write_aten_nearest(lines: Numbers, middle: np.float32, places: Indices) -> None:
    used = 0
    for at in range(len(lines)):
        source, resized, first, pixels, step = lines[at]
        scale = np.float32(source) / np.float32(resized)
        for pixel in range(pixels):
            place = np.int64(np.floor((np.float32(first + pixel) + middle) * scale))
            places[used + (pixel if step > 0 else pixels - 1 - pixel)] = min(place, source - 1)
        used += pixels


@compiled("void(int64[:,::1], boolean, int32[:], int32[:], float64[:])")
def _write_neighbours(
    lines: Numbers, nearest: bool, firsts: Indices, seconds: Indices, shares: npt.NDArray[np.float64]
) -> None:
    used = 0
    for at in range(len(lines)):
        source, resized, first, pixels, step = lines[at]
        place, scale = 0.0, source / resized
        for pixel in range(first + pixels if nearest else pixels):
            if nearest:
                place += scale if pixel else scale * 0.5
                if pixel < first:
                    continue
                number = pixel - first
            else:
                place = (first + pixel + 0.5) * source / resized - 0.5
                number = pixel
            to = used + (number if step > 0 else pixels - 1 - number)
            below = np.floor(place)
            firsts[to] = min(max(below, 0), source - 1)
            seconds[to] = min(max(below + 1, 0), source - 1)
            shares[to] = 0.0 if nearest else place - below
        used += pixels
